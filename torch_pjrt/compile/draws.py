"""Random numbers in a compiled graph: keys from the device's generator, the same ones that eager would draw.

AOTAutograd traces forward and backward as one joint graph, which a partitioner then splits; what it recomputes in the
backward pass must draw the numbers of the forward pass. So every random op of the joint graph is given its key as an
argument. The keys are drawn in the forward pass and, where the backward pass needs them, saved: 16 bytes each.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from ..lowering import find
from .bodies import bodies, called


class RedrawnError(RuntimeError):
    """A gradient would be that of other random numbers than the forward pass has drawn."""


def draw_key(index: int) -> torch.Tensor:
    """Node target: a fresh key, uint32[4]. `index` only keeps equal nodes from being merged."""
    raise RuntimeError("draw_key stands for a program's input and is never called")


@functools.cache
def keyed(op: OpOverload | HigherOrderOperator) -> Callable[..., Any]:
    """Node target: `op` with its key before its own arguments."""

    def call(key: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(f"{op.name()} with a key of its own runs only inside a compiled program")

    call.__name__ = call.__qualname__ = "keyed_" + op.name().removeprefix("aten::").replace(".", "_").replace("::", "_")
    call.op = op  # type: ignore[attr-defined]
    return call


def op_of(node: Node) -> OpOverload | None:
    """The ATen op of a node, with or without a key; None for anything else."""
    return called(node, OpOverload)


def is_view(node: Node) -> bool:
    """Whether the node's op returns a view of its first argument."""
    op = op_of(node)
    return op is not None and bool(op._schema.returns) and op._schema.returns[0].alias_info is not None


def is_random(node: Node) -> bool:
    """Whether the node draws its own key."""
    if node.op != "call_function":
        return False
    if isinstance(node.target, HigherOrderOperator):
        return any(draws(n) for body in bodies(node) for n in body.graph.nodes)
    if not isinstance(node.target, OpOverload):
        return False
    if torch.Tag.nondeterministic_seeded not in node.target.tags:
        return False
    lowering = find(node.target)
    return lowering is not None and lowering.random


def draws(node: Node) -> bool:
    """Whether the node takes one of the program's keys: a random op, or a key drawn for several nodes."""
    return node.target is draw_key or is_random(node)


def give_keys(graph: GraphModule, can_lower: Callable[[Node], bool]) -> None:
    """Replace each random op of a joint graph by one that is given its key, in place.

    Raises RedrawnError if a body draws in the backward pass what it has drawn in the forward pass.
    """
    for index, node in enumerate([n for n in graph.graph.nodes if is_random(n) and can_lower(n)]):
        assert isinstance(node.target, (OpOverload, HigherOrderOperator))
        if isinstance(node.target, HigherOrderOperator):
            _refuse_to_redraw(node)
        fake = next(t for t in torch.utils._pytree.tree_leaves(node.meta["val"]) if isinstance(t, torch.Tensor))
        with graph.graph.inserting_before(node):
            key = graph.graph.call_function(draw_key, (index,))
        with fake.fake_mode if hasattr(fake, "fake_mode") else torch.no_grad():
            key.meta["val"] = torch.empty(4, dtype=torch.uint32, device=fake.device)
        key.meta["recompute"] = CheckpointPolicy.MUST_SAVE
        for name in ("partitioner_tag", "autograd_backward", "seq_nr", "stack_trace"):
            if name in node.meta:
                key.meta[name] = node.meta[name]
        node.args = (key, *node.args)
        node.target = keyed(node.target)
    graph.recompile()


def _refuse_to_redraw(node: Node) -> None:
    """PyTorch's backward pass of a branch runs its forward pass again, random ops and all: not the same numbers."""
    if node.meta.get("autograd_backward") or node.meta.get("partitioner_tag") == "is_backward":
        random = next(n for body in bodies(node) for n in body.graph.nodes if draws(n))
        raise RedrawnError(
            f"the backward pass of {node.target} would draw the random numbers of {random.target} again, and others; "
            f"draw them before and pass them in\n{node.meta.get('stack_trace') or ''}"
        )
