"""Which of a graph's sizes are padded, and to what."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import lcm
from typing import Any

import torch
from torch.fx import Node
from torch.utils._pytree import tree_leaves

from .padding.arrays import Extents
from .padding.buckets import bucket_of, previous_bucket

# How many sizes are padded at once: the orders of three samples tell no more apart.
_MOST = 3


@dataclass(frozen=True, slots=True)
class Range:
    """What Dynamo knows of a symbol: its bounds (upper: None if there is none), and that it is a multiple."""

    lower: int
    upper: int | None
    multiple: int

    def bucket(self, size: int) -> int | None:
        """The size to pad to; None if the buckets here are too narrow to be worth it."""
        units = None if self.upper is None else self.upper // self.multiple
        made = bucket_of(size // self.multiple, units) * self.multiple
        return made if len(self.samples(made)) == 3 else None

    def samples(self, bucket: int) -> list[int]:
        """Three other sizes that have this bucket, the smallest among them."""
        m = self.multiple
        units = None if self.upper is None else self.upper // m
        high = bucket // m
        low = max(previous_bucket(high, units) + 1, -(-self.lower // m), 1)
        return [n * m for n in dict.fromkeys((low, (low + high) // 2, high - 1)) if low <= n < high]


@dataclass(frozen=True, slots=True)
class Left:
    """The padded tensors that a call of the forward graph leaves for the backward graph.

    Attributes:
        buckets: what sizes were padded to.
        structure: name of the tensor's node -> where its padding is.
    """

    buckets: Mapping[Any, int]
    structure: Mapping[str, Extents]


@dataclass(slots=True)
class Link:
    """What a forward graph tells its backward graph.

    Attributes:
        left: real sizes -> what calls of these sizes leave.
        whole: whether the backward graph is one program, which knows what to make of it.
        recomputes: whether the program asked for activations to be recomputed rather than kept.
    """

    left: dict[frozenset[tuple[Any, int]], Left] = field(default_factory=dict)
    whole: bool = True
    recomputes: bool = False

    def find(self, known: Mapping[Any, int]) -> Left:
        """What a call left whose sizes are among these."""
        told = {(s, int(n)) for s, n in known.items()}
        fitting = [real for real in self.left if real <= told]
        return self.left[max(fitting, key=len)] if fitting else Left({}, {})


class Buckets:
    """The sizes that a graph was called with, and which of them are worth padding.

    A symbol with an upper bound (`mark_dynamic(..., max=)`) is padded from the first call on. Another is taken as it is
    until it changes; what never changes (the batch, often) is never padded.

    Args:
        nodes: of the graph.
        needed: those that its results depend on.

    Attributes:
        relevant: the symbols that results depend on. Where an argument begins in its storage is a symbol too, say.
        ranges: what is known of those that can be padded.
    """

    def __init__(self, nodes: Sequence[Node], needed: Collection[Node]) -> None:
        self.relevant = _relevant([n for n in nodes if n in needed])
        self.ranges = {s: r for s, r in _ranges(nodes).items() if s in self.relevant}
        self.first: dict[Any, int] = {}
        self.varied: set[Any] = {s for s, r in self.ranges.items() if r.upper is not None}

    def choose(self, known: Mapping[Any, int]) -> dict[Any, int]:
        """symbol -> the size it is padded to, of those that are to be padded."""
        for symbol, size in known.items():
            if self.first.setdefault(symbol, size) != size:
                self.varied.add(symbol)
        found: dict[Any, int] = {}
        for symbol in sorted(self.varied & set(known) & set(self.ranges), key=str):
            bucket = self.ranges[symbol].bucket(known[symbol])
            if bucket is not None and len(found) < _MOST and self._apart({**found, symbol: bucket}):
                found[symbol] = bucket
        return found

    def _apart(self, chosen: Mapping[Any, int]) -> bool:
        """Whether the samples tell the last symbol from the others: that it is no `a * n + b` of one of them."""
        *others, last = ([sample[s] for sample in self.samples(chosen)] for s in chosen)
        return not any(
            all((x - a[0]) * (last[1] - last[0]) == (y - last[0]) * (a[1] - a[0]) for x, y in zip(a, last, strict=True))
            for a in others
        )

    def samples(self, chosen: Mapping[Any, int]) -> list[dict[Any, int]]:
        """The buckets themselves, then three sets of other sizes that have them, each symbol's in another order."""
        others = {s: self.ranges[s].samples(n) for s, n in chosen.items()}
        turned = [{s: sizes[(k + i) % len(sizes)] for i, (s, sizes) in enumerate(others.items())} for k in range(3)]
        return [dict(chosen), *turned]


def _ranges(nodes: Iterable[Node]) -> dict[Any, Range]:
    found: dict[Any, Range] = {}
    for node in nodes:
        if node.op != "placeholder":
            continue
        for size in _symbolic(node.meta.get("val")):
            environment = size.node.shape_env
            for symbol in size.node.expr.free_symbols:
                if symbol not in found:
                    bounds = environment.var_to_range.get(symbol)
                    if bounds is not None:
                        found[symbol] = Range(
                            max(_number(bounds.lower, 1), 1), _bound(bounds.upper), _multiple(environment, symbol)
                        )
    return found


# Ops to which it matters how their argument lies in memory.
_OF_MEMORY = {
    torch.ops.aten.as_strided.default, torch.ops.aten.as_strided_copy.default,
    torch.ops.aten.as_strided_scatter.default, torch.ops.aten.sym_stride.int, torch.ops.aten.sym_storage_offset.default,
}  # fmt: skip


def _relevant(nodes: Sequence[Node]) -> set[Any]:
    strides = any(n.target in _OF_MEMORY for n in nodes)
    found: set[Any] = set()
    for node in nodes:
        for value in tree_leaves(node.meta.get("val")):
            sizes: list[Any] = [value]
            if isinstance(value, torch.Tensor):
                sizes = [*value.shape, *((*value.stride(), value.storage_offset()) if strides else ())]
            for size in sizes:
                if isinstance(size, torch.SymInt):
                    found |= size.node.expr.free_symbols
    return found


def _symbolic(value: Any) -> Sequence[torch.SymInt]:
    leaves = value.shape if isinstance(value, torch.Tensor) else tree_leaves(value)
    return [s for s in leaves if isinstance(s, torch.SymInt)]


def _number(bound: Any, otherwise: int) -> int:
    return int(bound) if getattr(bound, "is_Integer", False) else otherwise


def _bound(upper: Any) -> int | None:
    # What is no bound of the program's: infinity, or the largest number that an index can be.
    known = _number(upper, 2**62)
    return known if known < 2**31 - 1 else None


def _multiple(environment: Any, symbol: Any) -> int:
    """What the symbol is known to be divisible by."""
    found = 1
    for known in getattr(environment, "divisible", ()):
        if len(known.args) == 2 and known.args[0] == symbol and known.args[1].is_Integer:
            found = lcm(found, int(known.args[1]))
    return found
