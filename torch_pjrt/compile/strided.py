"""`as_strided` in a graph: strides and offsets count in the memory that a tensor has in PyTorch, not in its elements.

The memory of what the graph computes is that of the tensor at the root of its views. The memory of an argument is the
array under its storage, of which the argument may be a part: where that part starts is known at run time only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np
import torch
from jax import Array, lax
from torch.fx import Node

from ..eager.infer import LayoutTuple, dtype_of
from ..lowering import view
from ..lowering.check import require
from ..lowering.view_apply import Empty, Start, Structure
from .draws import is_view, op_of

if TYPE_CHECKING:
    from .evaluate import Evaluation

aten = torch.ops.aten

# They share their argument's memory and read other values in it.
_OTHER_VALUES = frozenset({aten._conj.default, aten._neg_view.default})


@dataclass(frozen=True, slots=True)
class Memory:
    """What lies under an argument of a graph.

    Attributes:
        array: under its storage.
        base: how that lies in the storage.
        structure, starts: the view that the argument is of it; None: all of it.
        moved: whether the argument was copied out of its storage on its way here, so that nothing lies around it.
    """

    array: Array
    base: LayoutTuple
    structure: Structure | None
    starts: Sequence[Start]
    moved: bool

    @property
    def layout(self) -> view.Layout:
        dtype, sizes, strides = self.base
        return view.Layout(dtype_of(dtype), sizes, strides)

    def offset(self) -> Array:
        """Where in the storage the argument starts, in elements of the array."""
        sizes = self.layout.sizes
        places = jnp.zeros(sizes, np.int64)
        for d, stride in enumerate(self.layout.strides):
            places = places + lax.broadcasted_iota(np.int64, sizes, d) * stride
        assert self.structure is not None
        return view.read(places, self.structure, self.starts).reshape(-1)[0]


def as_strided(
    run: Evaluation, node: Node, x: Array, size: Sequence[int], stride: Sequence[int], offset: int | None = None
) -> Array:
    """The elements `offset + sum(i[d] * stride[d])` of the memory under `x`; without an offset, from where `x` starts.

    Raises:
        ValueError: they are not all inside the memory. Where that is known at run time only, the program finds it.
    """
    source = node.args[0]
    assert isinstance(source, Node)
    array, structure, starts = _locate(run, source, size, stride, offset)
    return view.read(array, structure, starts)


def as_strided_scatter(
    run: Evaluation,
    node: Node,
    x: Array,
    src: Array,
    size: Sequence[int],
    stride: Sequence[int],
    offset: int | None = None,
) -> Array:
    """`x` with `src` in their place. What of them lies beside `x` in its memory is lost, as in PyTorch."""
    source = node.args[0]
    assert isinstance(source, Node)
    array, structure, starts = _locate(run, source, size, stride, offset)
    written = view.write(array, structure, starts, jnp.broadcast_to(src, tuple(size)))
    own = run.layout(source)
    _, structure, starts = _locate(run, source, own.sizes, own.strides, None)
    return view.read(written, structure, starts)


def _locate(
    run: Evaluation, source: Node, size: Sequence[int], stride: Sequence[int], offset: int | None
) -> tuple[Array, Structure, Sequence[Start]]:
    """The array under `source`, and the view of it that `as_strided` of `source` is."""
    root = _root(source)
    fake, rooted, memory = source.meta["val"], root.meta["val"], run.memories.get(root)
    start, first = run.sizes.of([fake.storage_offset(), rooted.storage_offset()])
    first = first * rooted.dtype.itemsize // fake.dtype.itemsize  # offsets count elements of a tensor's own dtype
    ahead = start - first
    base, array = run.layout(root), run.values[root]
    if memory is None:  # what the graph computes begins where its storage does
        at = ahead if offset is None else offset - first
    elif memory.structure is None:  # all of its storage
        if memory.moved and (offset is not None or not view.is_dense(base.sizes, base.strides)):
            raise NotImplementedError("as_strided of an argument that is padded: the memory around it is not there")
        at = ahead if offset is None else offset
    elif offset is None:
        return _from_where_it_starts(memory, ahead, fake.dtype, size, stride)
    else:
        base, array, at = memory.layout, memory.array, offset
    plan = view.plan(base, view.Layout(fake.dtype, tuple(size), tuple(stride), at))
    return array, plan.structure, plan.starts


def _from_where_it_starts(
    memory: Memory, ahead: int, dtype: torch.dtype, size: Sequence[int], stride: Sequence[int]
) -> tuple[Array, Structure, Sequence[Start]]:
    """`as_strided` from `ahead` elements after the argument's first one, which is known when the program runs."""
    layout = memory.layout
    if isinstance(memory.structure, Empty):
        raise NotImplementedError("as_strided of an argument without elements: where it starts is not known")
    if dtype != layout.dtype:
        raise NotImplementedError(f"as_strided of a {dtype} view of memory that holds {layout.dtype}")
    sizes, strides = tuple(size), tuple(stride)
    spanned = 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
    last = prod(layout.sizes) - spanned
    plan = view.plan(layout, view.Layout(dtype, sizes, strides))  # raises if there is no place for it at all
    if 0 in sizes:
        return memory.array, plan.structure, plan.starts
    at = memory.offset() + ahead
    require(
        (at >= 0) & (at <= last),
        f"as_strided: sizes {list(sizes)} with strides {list(strides)} reach outside of the storage, which has "
        f"{prod(layout.sizes)} elements",
    )
    return memory.array, view.gathered(layout, sizes, strides), [jnp.clip(at, 0, last)]


def _root(node: Node) -> Node:
    """The tensor that the node's is a view of, by way of other views maybe: a computed one, an argument, or itself."""
    while True:
        source = node.args[0] if node.args else None
        if not is_view(node) or op_of(node) in _OTHER_VALUES:
            return node
        if not isinstance(source, Node) or not isinstance(source.meta.get("val"), torch.Tensor):
            return node
        node = source
