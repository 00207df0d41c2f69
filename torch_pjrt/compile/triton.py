"""A user's Triton kernel in a graph: refused by its name. Triton compiles for GPUs that it knows and no other."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from .bodies import bodies, hop_of

_WRAPPERS = frozenset({"triton_kernel_wrapper_functional", "triton_kernel_wrapper_mutation"})


class TritonKernelError(RuntimeError):
    """The graph calls a Triton kernel; the message names it and the user's line."""


def refuse_triton_kernels(gm: GraphModule) -> None:
    """Raise TritonKernelError if the graph or a body in it calls a Triton kernel."""
    for node in gm.graph.nodes:
        if str(hop_of(node)) in _WRAPPERS:
            raise TritonKernelError(_message(node))
        for body in bodies(node):
            refuse_triton_kernels(body)


def _message(node: Node) -> str:
    from .evaluate import user_line

    device = torch._C._get_privateuse1_backend_name()
    line = user_line(node)
    return (
        f"the Triton kernel {_kernel_name(node)} cannot run on {device}: Triton compiles for GPUs that it knows. "
        "Write it with PyTorch's ops, which become one program here, or make it an op of torch.library with a kernel "
        "for the CPU" + (f"  # {line}" if line else "")
    )


def _kernel_name(node: Node) -> str:
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

    index: Any = node.kwargs.get("kernel_idx", node.args[0] if node.args else None)
    kernel: Any = kernel_side_table.get_kernel(index)
    while not hasattr(kernel, "__name__") and hasattr(kernel, "fn"):  # an autotuner, heuristics
        kernel = kernel.fn
    return getattr(kernel, "__name__", str(kernel))
