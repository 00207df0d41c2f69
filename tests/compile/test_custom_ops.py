"""Custom autograd functions, ops of `torch.library` and Triton kernels in compiled graphs."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest
import torch
from jax import Array
from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table, triton_kernel_wrapper_functional
from torch.fx import Graph, GraphModule

from torch_pjrt.compile.options import read_options
from torch_pjrt.compile.segments import compile_graph
from torch_pjrt.compile.triton import TritonKernelError
from torch_pjrt.lowering.registry import _TABLE, lower

from ..conftest import DEVICE
from .check import check, same

module = getattr(torch, DEVICE)
Tensor = torch.Tensor


class Triple(torch.autograd.Function):
    """x squared, with a gradient that nobody would derive from it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, n: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.n = n
        return x * x * n

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0] * 3 * ctx.saved_tensors[0] + ctx.n, None


def test_a_custom_autograd_function_is_part_of_the_program_with_its_own_gradient() -> None:
    check(lambda x: Triple.apply(x.sin(), 2.0).cos(), torch.randn(5, requires_grad=True))
    assert all(g.segments == 1 for g in module.compiler.report().graphs)


def test_an_op_with_a_cpu_kernel_alone_runs_there_with_a_warning_and_has_its_gradient() -> None:
    @torch.library.custom_op("torch_pjrt_tests::cpu_only", mutates_args=(), device_types="cpu")
    def cpu_only(x: Tensor) -> Tensor:
        return torch.from_numpy(x.detach().numpy() ** 2)

    cpu_only.register_fake(torch.empty_like)
    cpu_only.register_autograd(
        lambda ctx, g: g * 2 * ctx.saved_tensors[0],
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
    with pytest.warns(UserWarning, match="cpu_only"):
        check(lambda x: cpu_only(x.exp()) + 1, torch.randn(4, requires_grad=True))
    assert any("cpu_only" in op for g in module.compiler.report().graphs for op in g.eager_ops)


def test_an_op_without_a_fake_kernel_is_pytorchs_error() -> None:
    @torch.library.custom_op("torch_pjrt_tests::no_fake", mutates_args=())
    def no_fake(x: Tensor) -> Tensor:
        return x.clone()

    compiled = torch.compile(lambda x: no_fake(x) + 1, backend="pjrt", fullgraph=True)
    with pytest.raises(Exception, match="register_fake"):
        compiled(torch.ones(2, device=DEVICE))


def test_an_op_with_a_lowering_is_part_of_the_program() -> None:
    @torch.library.custom_op("torch_pjrt_tests::lowered", mutates_args=())
    def lowered(x: Tensor, scale: float) -> Tensor:
        return x.sinh() * scale

    lowered.register_fake(lambda x, scale: torch.empty_like(x))
    lowered.register_autograd(
        lambda ctx, g: (g * ctx.saved_tensors[0].cosh() * ctx.scale, None),
        setup_context=lambda ctx, inputs, output: (
            ctx.save_for_backward(inputs[0]), setattr(ctx, "scale", inputs[1]), None
        )[2],
    )  # fmt: skip

    @lower("torch_pjrt_tests::lowered")
    def lowering(x: Array, scale: float) -> Array:
        return jnp.sinh(x) * scale

    try:
        check(lambda x: lowered(x, 2.0) + 1, torch.randn(4, requires_grad=True))
        assert all(g.segments == 1 and not g.eager_ops for g in module.compiler.report().graphs)
    finally:
        del _TABLE["torch_pjrt_tests::lowered"]


class JITFunction:
    """Stands for Triton's class: Triton is not installed where the tests run."""

    def __init__(self, name: str) -> None:
        self.__name__ = name


class Autotuner:
    def __init__(self, fn: JITFunction) -> None:
        self.fn = fn


@pytest.mark.parametrize("kernel", [JITFunction("add_kernel"), Autotuner(JITFunction("add_kernel"))])
def test_a_triton_kernel_is_refused_by_its_name(kernel: Any) -> None:
    graph = Graph()
    x = graph.placeholder("x")
    call = graph.call_function(
        triton_kernel_wrapper_functional,
        kwargs={
            "kernel_idx": kernel_side_table.add_kernel(kernel), "constant_args_idx": 0, "grid": [(1,)],
            "tma_descriptor_metadata": {}, "kwargs": {"x": x}, "tensors_to_clone": ["x"],
        },
    )  # fmt: skip
    call.meta["stack_trace"] = '  File "model.py", line 7, in forward\n    add_kernel[(1,)](x)'
    graph.output((call,))
    with pytest.raises(TritonKernelError, match=r"the Triton kernel add_kernel cannot run on .*model.py:7 in forward"):
        compile_graph(GraphModule(torch.nn.Module(), graph), "inference", read_options(None, None))


def test_a_custom_op_in_the_body_of_a_scan() -> None:
    from torch._higher_order_ops import scan

    @torch.library.custom_op("torch_pjrt_tests::in_a_scan", mutates_args=())
    def in_a_scan(x: Tensor) -> Tensor:
        return x * 2

    in_a_scan.register_fake(torch.empty_like)

    def fn(x: Tensor) -> Any:
        return scan(lambda c, t: (c + in_a_scan(t), c * 1), torch.zeros(3, device=x.device), x)

    x = torch.randn(2, 3)
    same(torch.compile(fn, backend="pjrt", fullgraph=True)(x.to(DEVICE)), fn(x))
