"""An FX graph's calling convention: what it takes, what it writes to, and how each of its outputs is made.

An output that is an argument, or a view of an argument or of another output, is not computed: a view costs nothing and
shares its storage, as in eager.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import GraphModule, Node

from ..eager.infer import LayoutTuple, number_of
from ..lowering.view import is_dense
from .bodies import asserts, outputs, reached
from .draws import draws, is_view, op_of
from .evaluate import can_lower
from .sizes import Sizes

aten = torch.ops.aten


class Takes(IntEnum):
    """What a program does with an argument (csrc/compiled.cpp)."""

    NOTHING = 0
    TENSOR = 1
    HOST = 2
    INT = 3


class Makes(IntEnum):
    """How an output is made (csrc/compiled.cpp)."""

    RESULT = 0
    HOST = 1
    ARGUMENT = 2
    OUTPUT = 3
    VIEW_OF_ARGUMENT = 4
    VIEW_OF_OUTPUT = 5
    CONSTANT = 6


# (Makes, index, layout, offset in elements, constant): an output as the C++ core wants it.
OutputTuple = tuple[int, int, LayoutTuple | None, int, Any]


class UnsupportedGraph(RuntimeError):
    """The graph cannot be one program; it says why."""


@dataclass(slots=True)
class Convention:
    """How a graph is called.

    Attributes:
        placeholders: its arguments.
        takes: what the program does with each.
        written: argument number -> the node whose value is its content afterwards.
        results: the nodes whose values the program returns, each once.
        outputs: the graph's outputs, None and numbers among them.
        device: index of the device.
        draws: how many random keys the program takes.
        roots: outputs that are views -> the argument or other output that they are views of.
        asserted: the nodes that assert something of their data.
    """

    placeholders: list[Node]
    takes: list[Takes]
    written: dict[int, Node]
    results: list[Node]
    outputs: list[Any]
    device: int
    draws: int
    roots: dict[Node, Node]
    asserted: list[Node]

    @property
    def kept(self) -> set[Node]:
        """The arguments that the graph does not write to."""
        return {n for i, n in enumerate(self.placeholders) if i not in self.written}

    @property
    def ints(self) -> list[Node]:
        """The arguments that are sizes."""
        return [n for n, t in zip(self.placeholders, self.takes, strict=True) if t is Takes.INT]

    @property
    def tensors(self) -> set[Node]:
        """The arguments that are tensors of the program."""
        return {n for n, t in zip(self.placeholders, self.takes, strict=True) if t in (Takes.TENSOR, Takes.HOST)}

    def needed(self, further: Iterable[Node] = ()) -> set[Node]:
        """The nodes that the results, the assertions and `further` nodes depend on."""
        return reached([*self.results, *self.asserted, *further])

    def recipes(
        self, sizes: Sizes, padded: Collection[Node] = (), padded_sizes: Sizes | None = None
    ) -> list[OutputTuple]:
        """How to make each output when the graph's sizes are these; those that are `padded` have other sizes."""
        made: list[OutputTuple] = []
        seen: dict[Node, int] = {}
        places = {out: i for i, out in reversed(list(enumerate(self.outputs))) if isinstance(out, Node)}
        for i, out in enumerate(self.outputs):
            if isinstance(out, Node) and is_ragged(out.meta.get("val")) and out in self.placeholders:
                made.append((Makes.ARGUMENT, self.placeholders.index(out), None, 0, None))
                continue
            if not isinstance(out, Node) or not isinstance(out.meta.get("val"), torch.Tensor):
                made.append((Makes.CONSTANT, 0, None, 0, _constant(out, sizes)))
                continue
            if out in seen:
                made.append((Makes.OUTPUT, seen[out], None, 0, None))
                continue
            made.append(self._recipe(out, padded_sizes if padded_sizes and out in padded else sizes, places))
            seen[out] = i
        return made

    def _recipe(self, out: Node, sizes: Sizes, places: dict[Node, int]) -> OutputTuple:
        if out in self.kept:
            return Makes.ARGUMENT, self.placeholders.index(out), None, 0, None
        layout = layout_of(out, sizes)
        root = self.roots.get(out, out)
        if root is not out:
            offset = sizes.of([out.meta["val"].storage_offset()])[0]
            offset -= sizes.of([root.meta["val"].storage_offset()])[0]
            if root in self.kept:
                return Makes.VIEW_OF_ARGUMENT, self.placeholders.index(root), layout, offset, None
            return Makes.VIEW_OF_OUTPUT, places[root], layout, offset, None
        kind = Makes.HOST if out.meta["val"].device.type == "cpu" else Makes.RESULT
        return kind, self.results.index(out), _dense(layout), 0, None


def is_ragged(size: Any) -> bool:
    """Whether it is the size of a jagged tensor's ragged dimension, a name and no number: graphs only hand it on."""
    return isinstance(size, torch.SymInt) and bool(size.node.is_nested_int())


def layout_of(node: Node, sizes: Sizes) -> LayoutTuple:
    """(dtype number, sizes, strides) of the node's tensor."""
    fake = node.meta["val"]
    return number_of(fake.dtype), sizes.of(fake.shape), sizes.of(fake.stride())


def _dense(layout: LayoutTuple) -> LayoutTuple:
    """A fresh tensor has no gaps and no overlaps, whatever its fake strides say."""
    dtype, shape, strides = layout
    return layout if is_dense(shape, strides) else contiguous(dtype, shape)


def contiguous(dtype: int, shape: tuple[int, ...]) -> LayoutTuple:
    """The layout of a contiguous tensor; `dtype` as in `LayoutTuple`."""
    strides: list[int] = []
    step = 1
    for n in reversed(shape):
        strides.insert(0, step)
        step *= max(n, 1)
    return dtype, shape, tuple(strides)


def _constant(out: Any, sizes: Sizes) -> Any:
    value = out.meta["val"] if isinstance(out, Node) else out
    if isinstance(value, torch.SymInt):
        return sizes.of([value])[0]
    if isinstance(value, (torch.SymFloat, torch.SymBool)):
        raise UnsupportedGraph(f"output {out} is a {type(value).__name__}")
    return value


def read_convention(gm: GraphModule) -> Convention:
    """The convention of a graph whose nodes can all be lowered.

    Raises UnsupportedGraph if the graph mutates anything but its arguments' content, or spans several devices.
    """
    nodes = list(gm.graph.nodes)
    placeholders = [n for n in nodes if n.op == "placeholder"]
    written: dict[int, Node] = {}
    for node in nodes:
        op = op_of(node)
        if op is aten.copy_.default and node.args[0] in placeholders:
            written[placeholders.index(node.args[0])] = _content(node)
        elif isinstance(op, OpOverload) and op._schema.is_mutable:
            raise UnsupportedGraph(f"{op.name()} writes to something that is no argument of the graph")
        elif not can_lower(node):
            raise UnsupportedGraph(f"{node.target} has no lowering")
    returned = outputs(gm)
    tensors = [o for o in returned if isinstance(o, Node) and isinstance(o.meta.get("val"), torch.Tensor)]
    kept = {n for i, n in enumerate(placeholders) if i not in written}
    roots = _view_roots(tensors, kept)
    computed = [o for o in tensors if o not in roots and o not in kept]
    results = list(dict.fromkeys([*written.values(), *computed]))
    device, drawn = device_of(nodes), sum(draws(n) for n in nodes)
    asserted = [n for n in nodes if asserts(n)]
    convention = Convention(placeholders, [], written, results, returned, device, drawn, roots, asserted)
    needed = convention.needed() | {root for out, root in roots.items() if root in kept and _symbolic(out)}
    convention.takes = [_takes(n, i in written or n in needed) for i, n in enumerate(placeholders)]
    return convention


def _symbolic(view: Node) -> bool:
    """Whether how the view lies depends on sizes, which its argument tells: so that is read, whoever else needs it."""
    fake = view.meta["val"]
    return any(isinstance(n, torch.SymInt) for n in (*fake.shape, *fake.stride(), fake.storage_offset()))


def _content(copy: Node) -> Node:
    """The node whose value `copy_` puts into an argument: what is copied, unless the copy casts or broadcasts it."""
    target, source = copy.args[0], copy.args[1]
    assert isinstance(target, Node)
    if not isinstance(source, Node) or not isinstance(source.meta.get("val"), torch.Tensor):
        return copy
    to, content = target.meta["val"], source.meta["val"]
    return source if to.dtype == content.dtype and to.shape == content.shape else copy


def _takes(node: Node, used: bool) -> Takes:
    value = node.meta.get("val")
    if is_ragged(value):
        return Takes.NOTHING
    if isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool):
        return Takes.INT
    if not isinstance(value, torch.Tensor) or not used:
        return Takes.NOTHING
    return Takes.HOST if value.device.type == "cpu" else Takes.TENSOR


def device_of(nodes: Sequence[Node]) -> int:
    """The index of the device that the nodes' tensors are on. Raises UnsupportedGraph if they are on several."""
    name = torch._C._get_privateuse1_backend_name()
    found = {
        t.device
        for n in nodes
        for t in torch.utils._pytree.tree_leaves(n.meta.get("val"))
        if isinstance(t, torch.Tensor) and t.device.type not in ("cpu", "meta")
    }
    foreign = [d for d in found if d.type != name]
    if foreign:
        raise UnsupportedGraph(f"the graph has tensors on {foreign[0]}; this backend compiles for {name} and the CPU")
    if len(found) > 1:
        raise UnsupportedGraph(f"the graph has tensors on {len(found)} devices: {', '.join(sorted(map(str, found)))}")
    return next(iter(found)).index or 0 if found else 0


def _view_roots(outputs: Sequence[Node], kept: set[Node]) -> dict[Node, Node]:
    """For each output that can be a view: the argument or other output that it is a view of."""
    roots: dict[Node, Node] = {}
    for out in outputs:
        source = None if out in kept else _viewed(out)
        while source is not None:
            if source in kept or (source in outputs and source not in roots and _lies_dense(source)):
                roots[out] = source
                break
            source = _viewed(source)
    return roots


def _lies_dense(node: Node) -> bool:
    fake = node.meta["val"]
    hints = [[s.node.hint if isinstance(s, torch.SymInt) else s for s in of] for of in (fake.shape, fake.stride())]
    return None not in hints[0] + hints[1] and is_dense(*hints)


def _viewed(node: Node) -> Node | None:
    """What the node is a strided view of; None if it computes something, or the memory is read as another dtype."""
    op = op_of(node)
    if op is None or not is_view(node) or len(op._schema.returns) != 1 or not node.args:
        return None
    source = node.args[0]
    if not isinstance(source, Node) or not isinstance(source.meta.get("val"), torch.Tensor):
        return None
    mine, its = node.meta["val"], source.meta["val"]
    if mine.dtype != its.dtype or mine.device != its.device or mine.device.type == "cpu":
        return None
    # as_strided may reach beyond the tensor it is called on.
    return None if op in (aten.as_strided.default, aten._conj.default, aten._neg_view.default) else source
