"""Merging equal computations of a joint graph before it is partitioned, so that the backward pass saves each once.

PyTorch's partitioner has a pass for this (`torch._functorch.config.cse`), which imports Inductor for two small helpers:
a third of what a process that has its programs in the cache does until the first gradients of a GPT are there.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import GraphModule, Node
from torch.multiprocessing.reductions import StorageWeakRef

from .draws import draw_key, op_of

# What they return is undefined, so no two of them are equal.
_EMPTY = frozenset({"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"})


def merge_equal(gm: GraphModule) -> None:
    """Replace each node that computes what an earlier one has computed by that one, in place.

    Left alone: what draws numbers or acts on the world, and outputs (with what shares their memory), which two names
    for one tensor would make aliases of each other.
    """
    output = next(n for n in gm.graph.nodes if n.op == "output")
    returned = {storage for n in output.all_input_nodes if (storage := _storage(n)) is not None}
    seen: dict[Hashable, Node] = {}
    for node in list(gm.graph.nodes):
        op = op_of(node)
        if op is not None and op._schema.is_mutable:
            seen.clear()  # what was computed before may be computed from something else now
        if not _mergeable(node, op) or _storage(node) in returned:
            continue
        first = seen.setdefault((node.target, _form(node.args), _form(node.kwargs)), node)
        if first is not node:
            node.replace_all_uses_with(first)
            gm.graph.erase_node(node)
    gm.recompile()


def _mergeable(node: Node, op: OpOverload | None) -> bool:
    if node.op != "call_function" or node.target is draw_key or node.meta.get("unbacked_bindings"):
        return False
    if op is None:  # arithmetic on sizes, parts of a tuple
        return not isinstance(node.target, torch._ops.HigherOrderOperator)
    if op.namespace not in ("aten", "prims") or op._schema.is_mutable or not op._schema.returns:
        return False
    # A random op that is given its key is a function of it.
    drawing = torch.Tag.nondeterministic_seeded in op.tags and node.target is op
    return not drawing and op._schema.name.partition("::")[2] not in _EMPTY


def _storage(node: Node) -> StorageWeakRef | None:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return None
    try:
        return StorageWeakRef(value.untyped_storage())
    except NotImplementedError:  # a kind of tensor without one
        return None


def _form(a: Any) -> Hashable:
    """Equal for equal arguments only: 1, 1.0 and True are not, nor are 0.0 and -0.0."""
    if isinstance(a, (list, tuple)):
        return (type(a).__name__, *map(_form, a))
    if isinstance(a, dict):
        return tuple((k, _form(v)) for k, v in a.items())
    if isinstance(a, slice):
        return ("slice", _form((a.start, a.stop, a.step)))
    return a if isinstance(a, Node) else (type(a), repr(a))
