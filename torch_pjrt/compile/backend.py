"""The backend that `torch.compile(backend="pjrt")` names: AOTAutograd, the min-cut partitioner, one program a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from .buckets import Link
from .draws import give_keys
from .evaluate import can_lower
from .inline import inline_regions
from .merge import merge_equal
from .options import Options, read_options
from .segments import compile_graph, fits, keeps_regions

Boxed = Callable[[list[Any]], Sequence[Any]]


def pjrt(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile what Dynamo captured, for inference or with a backward pass.

    Args:
        gm: Dynamo's graph.
        example_inputs: its arguments, fake.
        mode, options: of `torch.compile`; see `options.read_options`.

    Raises:
        OptionError: a mode or an option that does not exist.

    Example:
        >>> torch.compile(model, backend="pjrt", options={"xla_cpu_enable_fast_math": True})(x)
    """
    chosen = read_options(mode, options)
    link = Link()

    def compiler(kind: str) -> Callable[[GraphModule, Sequence[Any]], Boxed]:
        def compile_kind(graph: GraphModule, inputs: Sequence[Any]) -> Boxed:
            return compile_graph(graph, kind, chosen, link, _visible() if kind == "forward" else None)

        return compile_kind

    compiled: Callable[..., Any] = aot_autograd(
        fw_compiler=compiler("forward"),
        bw_compiler=compiler("backward"),
        inference_compiler=compiler("inference"),
        partition_fn=_partition(chosen, link),
        keep_inference_input_mutations=True,
    )(gm, example_inputs)
    return compiled


def _visible() -> int | None:
    """How many outputs of the forward graph being compiled are not for the backward graph alone; None: unknown."""
    context = torch._guards.TracingContext.try_get()
    if context is None or context.fw_metadata is None:
        return None
    return int(context.fw_metadata.num_forward)


def _partition(options: Options, link: Link) -> Callable[..., tuple[GraphModule, GraphModule]]:
    def partition(joint: GraphModule, inputs: Any, **settings: Any) -> tuple[GraphModule, GraphModule]:
        if not keeps_regions(joint, options):
            inline_regions(joint)
        give_keys(joint, can_lower)
        if torch._functorch.config.cse:
            merge_equal(joint)
        with torch._functorch.config.patch(cse=False, activation_memory_budget=options.activation_memory_budget):
            parts: tuple[GraphModule, GraphModule] = min_cut_rematerialization_partition(joint, inputs, **settings)
        link.recomputes = options.activation_memory_budget < 1 or any(_is_recomputed(n) for n in joint.graph.nodes)
        link.whole = all(fits(n) for n in parts[1].graph.nodes if n.op == "call_function")
        return parts

    return partition


def _is_recomputed(node: Node) -> bool:
    return node.meta.get("recompute") in (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)
