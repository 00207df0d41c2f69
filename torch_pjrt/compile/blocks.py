"""Equal blocks of a graph: the N layers of a model, as runs of nodes that repeat.

A run is found by what each node is: its op, its constants, the shape and dtype of what it makes. Its blocks are then
held to what their nodes read: the same node of their own block, or anything from outside, which becomes an argument.
Where a block begins is chosen so that little passes from one to the next: the residual stream, not the inside of
attention.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np
import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves

from ..eager.content import Unknown
from .bodies import attribute, bodies
from .content import call_text, value_text
from .draws import draw_key, is_view, op_of
from .inline import is_region
from .sizes import Sizes

aten = torch.ops.aten

# A block of fewer nodes is taken together with the next: each costs a call.
SHORTEST = 16
# How many periods are tried before nodes are given up as not repeating.
_TRIES = 8
_NEVER = float("inf")

# What costs less to make than to pass on: masks, positions.
_CHEAP = frozenset(
    {
        "full", "ones", "zeros", "arange", "iota", "scalar_tensor", "tril", "triu", "where", "view", "expand",
        "unsqueeze", "squeeze", "permute", "transpose", "t", "slice", "select", "_to_copy", "clone", "lt", "le",
        "gt", "ge", "eq", "ne", "logical_and", "logical_or", "logical_not", "logical_xor", "bitwise_and", "bitwise_or",
        "bitwise_not", "bitwise_xor", "add", "sub", "mul", "neg", "detach", "alias", "lift_fresh_copy", "masked_fill",
    }
)  # fmt: skip

# A tensor that the graph holds is compared by its content up to this many elements.
_SMALL = 64

# Ops to which it matters how the memory of what they are called with goes on outside of it.
_OF_MEMORY = frozenset({aten.as_strided.default, aten.as_strided_scatter.default, aten.as_strided_copy.default})


@dataclass(frozen=True, slots=True)
class Run:
    """`count` blocks of `length` nodes each, one after the other, the first of which begins at node `start`."""

    start: int
    length: int
    count: int

    @property
    def end(self) -> int:
        return self.start + self.length * self.count

    def blocks(self) -> list[range]:
        """The places of each block's nodes."""
        return [range(b, b + self.length) for b in range(self.start, self.end, self.length)]


def find_runs(nodes: Sequence[Node], fewest: int, made_anew: Mapping[Node, str]) -> list[Run]:
    """The runs of at least `fewest` equal blocks among the operations of a graph without symbolic sizes, in order.

    `made_anew` are the graph's `constants`, which are not among the operations.

    Example:
        >>> find_runs(nodes_of_a_model_with_48_layers, 4, {})
        [Run(start=9, length=31, count=48)]
    """
    place = {node: i for i, node in enumerate(nodes)}
    numbers, sizes = _numbered(nodes), np.array([_size(n) for n in nodes], np.int64)
    cuts = _cuts(nodes, place)
    found: list[Run] = []
    rest = [(0, len(nodes))]
    while rest:
        low, high = rest.pop()
        for start, length, period in _repeating(numbers[low:high], sizes[low:high], fewest):
            aligned = _aligned(cuts, low + start, length, period, fewest)
            run = _matching(nodes, place, made_anew, aligned, cuts, fewest)
            if run is not None:
                found.append(run)
                rest += [(low, run.start), (run.end, high)]
                break
    return sorted(found, key=lambda run: run.start)


def constants(nodes: Sequence[Node]) -> dict[Node, str]:
    """The nodes that read no argument and are cheap, each with what it is: every block makes its own.

    PyTorch merges them, so that the first block makes the causal mask of all.
    """
    found: dict[Node, str] = {}
    for node in nodes:
        if node.op == "get_attr":
            held = attribute(node)
            if isinstance(held, torch.Tensor) and held.numel() <= _SMALL:
                found[node] = call_text(node, {}, _NO_SIZES)
            continue
        op = op_of(node)
        if op is None or op._schema.name.partition("::")[2] not in _CHEAP or op._schema.is_mutable:
            continue
        if all(s in found for s in node.all_input_nodes) and all(u.op != "output" for u in node.users):
            text = f"({_form(node, found)})"
            if len(text) < 10_000:
                found[node] = text
    return found


def references(node: Node) -> list[Node]:
    """The nodes among a node's arguments, each as often and where it occurs."""
    found: list[Node] = []
    map_arg((node.args, node.kwargs), found.append)
    return found


def on_device(value: Any) -> TypeGuard[torch.Tensor]:
    """Whether a node's value is a tensor of the device, which one program can hand to the next."""
    return isinstance(value, torch.Tensor) and value.device.type != "cpu"


def _numbered(nodes: Sequence[Node]) -> np.ndarray:
    """A number for each node, equal where nodes differ in nothing but what they read."""
    known: dict[str, int] = {}
    arguments = _Anything()
    return np.array([known.setdefault(_form(node, arguments), len(known)) for node in nodes], np.int64)


def _size(node: Node) -> int:
    """How many operations the node stands for."""
    if not is_region(node):
        return 1
    return sum(_size(n) for body in bodies(node) for n in body.graph.nodes if n.op == "call_function")


class _Anything(dict[Node, str]):
    """Each node's text as an argument: what it is does not matter here, but for the graph of a branch or loop."""

    def __init__(self) -> None:
        self.graphs: dict[GraphModule, str] = {}

    def __missing__(self, node: Node) -> str:
        inner = attribute(node) if node.op == "get_attr" else None
        if not isinstance(inner, GraphModule):
            return "%"
        if inner not in self.graphs:
            self.graphs[inner] = call_text(node, self, _NO_SIZES)
        return self.graphs[inner]


_NO_SIZES = Sizes()


def _form(node: Node, arguments: Mapping[Node, str]) -> str:
    value = node.meta.get("val")
    if node.target is draw_key:
        return "draw_key"  # its argument only numbers it
    try:
        call = call_text(node, arguments, _NO_SIZES)
    except Unknown:
        call = f"{id(node.target)} {map_arg((node.args, dict(node.kwargs)), lambda n: None)}"
    return f"{call}: {_form_of(value)}"


def _form_of(value: Any) -> str:
    """What a node's value is like: dtypes, shapes, strides, where it begins in memory, kinds of devices."""
    kinds = [t.device.type for t in tree_leaves(value) if isinstance(t, torch.Tensor)]
    return f"{value_text(value, _NO_SIZES)} {kinds}"


def _cuts(nodes: Sequence[Node], place: Mapping[Node, int]) -> np.ndarray:
    """For each place between nodes what a cut there costs: the bytes that would pass it, infinite if that cannot be."""
    size, barred = np.zeros(len(nodes) + 2, np.int64), np.zeros(len(nodes) + 2, np.int64)
    kept: set[Node] = set()
    for node in reversed(nodes):
        if any(user not in place or (user in kept and is_view(user)) for user in node.users):
            kept.add(node)  # it is in memory after the graph, itself or as a view
    for i, node in enumerate(nodes):
        value, returned = node.meta.get("val"), any(user not in place for user in node.users)
        last = max((place[user] for user in node.users if user in place), default=i)
        if on_device(value):
            change, by = size, 1 if node in kept else 1 + value.numel() * value.element_size()
        else:
            change, by, last = barred, 1, len(nodes) if returned else last
        if last > i:
            change[i + 1] += by
            change[last + 1] -= by
    passing = np.cumsum(size)[: len(nodes) + 1].astype(np.float64)
    return np.where(np.cumsum(barred)[: len(nodes) + 1] > 0, _NEVER, passing)


def _repeating(numbers: np.ndarray, sizes: np.ndarray, fewest: int) -> list[tuple[int, int, int]]:
    """Stretches that repeat: (start, length, period) of the best few, those first that leave the fewest nodes over."""
    found = []
    before = np.concatenate(([0], np.cumsum(sizes)))
    for period in range(1, len(numbers) // fewest + 1):
        equal = numbers[period:] == numbers[:-period]
        if np.count_nonzero(equal) < (fewest - 1) * period:
            continue
        edges = np.flatnonzero(np.diff(np.concatenate(([False], equal, [False])).astype(np.int8)))
        begins, ends = edges[::2], edges[1::2]
        at = int(np.argmax(ends - begins))
        start, length = int(begins[at]), int(ends[at] - begins[at]) + period
        size = int(before[start + period] - before[start])
        together = max(1, -(-SHORTEST // size))
        count = length // (period * together)
        if count >= fewest:
            found.append(((count - 1) * size * together, -period * together, start, length))
    return [(start, length, -negative) for _, negative, start, length in sorted(found, reverse=True)[:_TRIES]]


def _aligned(cuts: np.ndarray, start: int, length: int, period: int, fewest: int) -> Run:
    """The run in a stretch that repeats, cut where least passes from one block to the next; of equals the longest."""
    passing: dict[Run, float] = {}
    for offset in range(period):
        run = Run(start + offset, period, (length - offset) // period)
        if run.count >= fewest:
            passing[run] = float(cuts[run.start + run.count // 2 * period])
    least = min(passing.values())
    good = [run for run, cost in passing.items() if cost <= 1.1 * least + 64]
    return min(good, key=lambda run: (-run.count, passing[run], run.start))


def _matching(
    nodes: Sequence[Node],
    place: Mapping[Node, int],
    made_anew: Mapping[Node, str],
    run: Run,
    cuts: np.ndarray,
    fewest: int,
) -> Run | None:
    """The longest part of a run whose blocks read alike; None if that is too short."""
    forms = [_reads(nodes, place, made_anew, block) for block in run.blocks()]
    best = Run(run.start, run.length, 0)
    first = 0
    for i in range(1, len(forms) + 1):
        if i == len(forms) or forms[i] != forms[first]:
            for part in _possible(Run(run.start + first * run.length, run.length, i - first), cuts):
                best = max(best, part, key=lambda r: r.count)
            first = i
    return best if best.count >= fewest else None


def _possible(run: Run, cuts: np.ndarray) -> Iterator[Run]:
    """The parts of a run at whose ends, and between whose blocks, a program can end."""
    bounds = [*range(run.start, run.end + 1, run.length)]
    first = 0
    for i, bound in enumerate(bounds):
        if cuts[bound] == _NEVER:
            yield Run(bounds[first], run.length, max(i - 1 - first, 0))
            first = i + 1
    if first < len(bounds):
        yield Run(bounds[first], run.length, len(bounds) - 1 - first)


def _reads(nodes: Sequence[Node], place: Mapping[Node, int], made_anew: Mapping[Node, str], block: range) -> list[Any]:
    """What the nodes of a block read: of their block by its place in it, of outside by what it is like."""
    found: list[Any] = []
    outside: dict[Node, int] = {}
    for i in block:
        node = nodes[i]
        own_memory = all(place.get(source, -1) in block for source in memory_of(node))
        for source in references(node):
            value = source.meta.get("val")
            if place.get(source, -1) in block:
                found.append(place[source] - block.start)
            elif source in made_anew:
                found.append(made_anew[source])
            elif source.op == "get_attr":
                found.append("graph" if isinstance(attribute(source), GraphModule) else str(source.target))
            elif on_device(value):
                found.append((outside.setdefault(source, len(outside)), value.dtype, value.shape, value.stride()))
            else:
                found.append(("like no other", i))
        if not own_memory:
            found.append(("like no other", i))
    return found


def memory_of(node: Node) -> list[Node]:
    """Where the memory comes from that an op reads by strides of its own: views, and at last what they are views of."""
    found: list[Node] = []
    at: Any = node if op_of(node) in _OF_MEMORY else None
    while at is not None and at.args and isinstance(at.args[0], Node):
        found.append(at.args[0])
        at = at.args[0] if is_view(at.args[0]) else None
    return found


def symbolic(node: Node) -> bool:
    """Whether the node is a size or has one that is not a number. Such graphs are padded (`padded.py`)."""
    for value in tree_leaves(node.meta.get("val")):
        sizes = [value]
        if isinstance(value, torch.Tensor):
            sizes = [*value.shape, *value.stride(), value.storage_offset()]
        if any(isinstance(s, (torch.SymInt, torch.SymFloat, torch.SymBool)) for s in sizes):
            return True
    return False
