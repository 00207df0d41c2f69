"""Reading and writing a view as a JAX program: what each structure that `view.plan` makes stands for.

`read` and `write` are inverse to one another over the same structure. Starts are Python integers (static slices) or
0-d integer arrays (dynamic slices): the caller's choice, not the structure's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

import jax.numpy as jnp
import numpy as np
import torch
from jax import Array, lax

from .dtypes import to_numpy
from .view_dtype import Reinterpret

Start: TypeAlias = int | Array


@dataclass(frozen=True, slots=True)
class Whole:
    """The view is the base."""

    @property
    def identity(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Empty:
    """The view has no elements."""

    dtype: torch.dtype
    sizes: tuple[int, ...]

    @property
    def identity(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class Cut:
    """Of a dimension of `size` (then `pad` more, unused), each `step`-th element of a window of `window` elements."""

    size: int
    window: int
    step: int = 1
    pad: int = 0

    @property
    def moves(self) -> bool:
        """Whether the window can start in more than one place, so that the cut has a start."""
        return self.window < self.size + self.pad

    @property
    def count(self) -> int:
        return -(-self.window // self.step)


@dataclass(frozen=True, slots=True)
class Stage:
    """Reshape to the cuts' sizes, then cut each dimension."""

    cuts: tuple[Cut, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(c.size for c in self.cuts)


@dataclass(frozen=True, slots=True)
class Grid:
    """Slices of the base.

    The base's dimensions in memory `order`; the `stages` one after the other; what is left has shape `core` (widest
    stride first) and becomes, permuted, the view's dimensions `kept`; the others have size 1 or stride 0.
    """

    order: tuple[int, ...]
    stages: tuple[Stage, ...]
    core: tuple[int, ...]
    permutation: tuple[int, ...]
    kept: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def identity(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class Gather:
    """Elements of the flat base by index: `offset + sum(i[d] * strides[d])` over the view's dimensions `kept`."""

    order: tuple[int, ...]
    core: tuple[int, ...]
    strides: tuple[int, ...]
    kept: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def identity(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class Reinterpreted:
    """A view of the base's memory as another dtype."""

    order: tuple[int, ...]
    how: Reinterpret
    inner: Structure

    @property
    def identity(self) -> bool:
        return False


Structure: TypeAlias = Whole | Empty | Grid | Gather | Reinterpreted


def read(x: Array, structure: Structure, starts: Sequence[Start]) -> Array:
    """The view's elements, in its logical shape and dtype, of the base `x` in the base's logical shape."""
    match structure:
        case Whole():
            return x
        case Empty(dtype, sizes):
            return jnp.zeros(sizes, to_numpy(dtype))
        case Reinterpreted(order, how, inner):
            return how.finish(read(how.forward(_transpose(x, order)), inner, starts))
        case Gather():
            flat = _transpose(x, structure.order).reshape(-1)
            at = flat.at[_indices(structure, starts[0], flat.size)]
            return _expand(
                at.get(mode="promise_in_bounds", wrap_negative_indices=False), structure.kept, structure.sizes
            )
        case Grid():
            x = _transpose(x, structure.order)
            for stage, where in _per_stage(structure, starts):
                x = _cut(_padded(_reshape(x, stage.shape), stage), stage, where)
            x = _transpose(_reshape(x, structure.core), structure.permutation)
            return _expand(x, structure.kept, structure.sizes)


def write(x: Array, structure: Structure, starts: Sequence[Start], value: Array) -> Array:
    """The base `x` with the view's elements replaced by `value`, which has the view's logical shape and dtype.

    Where the view has an element several times (stride 0, overlapping windows) any one of its values wins.
    """
    match structure:
        case Whole():
            return value
        case Empty():
            return x
        case Reinterpreted(order, how, inner):
            memory = _transpose(x, order)
            changed = write(how.forward(memory), inner, starts, how.begin(value))
            return _transpose(how.backward(changed, memory), _inverse(order))
        case Gather():
            memory = _transpose(x, structure.order)
            flat = memory.reshape(-1)
            at = flat.at[_indices(structure, starts[0], flat.size)]
            value = _unexpand(value, structure.kept, structure.core)
            flat = at.set(value, mode="promise_in_bounds", wrap_negative_indices=False)
            return _transpose(flat.reshape(memory.shape), _inverse(structure.order))
        case Grid():
            memory = _transpose(x, structure.order)
            kept_sizes = [structure.core[i] for i in structure.permutation]
            value = _unexpand(value, structure.kept, kept_sizes)
            value = _transpose(value, _inverse(structure.permutation))
            changed = _write_stages(memory, _per_stage(structure, starts), value)
            return _transpose(changed, _inverse(structure.order))


def _write_stages(x: Array, stages: Sequence[tuple[Stage, Sequence[Start]]], value: Array) -> Array:
    (stage, where), rest = stages[0], stages[1:]
    grid = _padded(_reshape(x, stage.shape), stage)
    if rest:
        value = _write_stages(_cut(grid, stage, where), rest, value)
    value = _reshape(value, [c.count for c in stage.cuts])
    if any(c.moves or c.step > 1 for c in stage.cuts):
        value = _paste(grid, stage, where, value)
    if any(c.pad for c in stage.cuts):
        value = lax.slice(value, [0] * value.ndim, stage.shape)
    return _reshape(value, x.shape)


def _per_stage(grid: Grid, starts: Sequence[Start]) -> list[tuple[Stage, list[Start]]]:
    """Each stage with one start for each of its cuts (0 for those that don't move)."""
    left = iter(starts)
    return [(stage, [next(left) if c.moves else 0 for c in stage.cuts]) for stage in grid.stages]


def _padded(x: Array, stage: Stage) -> Array:
    if not any(c.pad for c in stage.cuts):
        return x
    return lax.pad(x, jnp.zeros((), x.dtype), [(0, c.pad, 0) for c in stage.cuts])


def _cut(x: Array, stage: Stage, starts: Sequence[Start]) -> Array:
    steps = [c.step for c in stage.cuts]
    fixed = [int(s) for s in starts if isinstance(s, (int, np.integer))]
    if len(fixed) == len(starts):
        limits = [s + c.window for s, c in zip(fixed, stage.cuts, strict=True)]
        if limits == list(x.shape) and not any(fixed) and max(steps, default=1) == 1:
            return x
        return lax.slice(x, fixed, limits, steps)
    x = lax.dynamic_slice(x, _as_arrays(starts), [c.window for c in stage.cuts], allow_negative_indices=False)
    if max(steps) == 1:
        return x
    return lax.slice(x, [0] * x.ndim, x.shape, steps)


def _paste(x: Array, stage: Stage, starts: Sequence[Start], value: Array) -> Array:
    """`x` with what `_cut` takes out of it replaced by `value`."""
    if any(c.step > 1 for c in stage.cuts):
        # Spread the values over the window and choose between them and what is there: XLA has no strided update, and
        # this fuses where a scatter would not.
        windows = [c.window for c in stage.cuts]
        there = _cut(x, Stage(tuple(Cut(c.size, c.window, 1, c.pad) for c in stage.cuts)), starts)
        spread = lax.pad(value, jnp.zeros((), x.dtype), [(0, 0, c.step - 1) for c in stage.cuts])
        hit = jnp.ones((), bool)
        for d, c in enumerate(stage.cuts):
            if c.step > 1:
                hit = hit & (lax.broadcasted_iota(jnp.int32, windows, d) % c.step == 0)
        value = jnp.where(hit, spread, there)
    if value.shape == x.shape:
        return value
    return lax.dynamic_update_slice(x, value, _as_arrays(starts), allow_negative_indices=False)


def _as_arrays(starts: Sequence[Start]) -> list[Array]:
    """Starts of one dtype, which XLA wants: that of those known at run time only."""
    dtypes = [s.dtype for s in starts if isinstance(s, Array)]
    return [jnp.asarray(s, dtypes[0] if dtypes else jnp.int32) for s in starts]


def _indices(structure: Gather, offset: Start, numel: int) -> Array:
    dtype = jnp.int32 if numel <= np.iinfo(np.int32).max else jnp.int64
    index = jnp.broadcast_to(jnp.asarray(offset).astype(dtype), structure.core)
    for d, stride in enumerate(structure.strides):
        index = index + lax.broadcasted_iota(dtype, structure.core, d) * stride
    return index


def _expand(x: Array, kept: tuple[int, ...], sizes: tuple[int, ...]) -> Array:
    """Put the dimensions of `x` at `kept` among `sizes`, and repeat along the others."""
    if x.size == prod(sizes):
        return _reshape(x, sizes)
    return lax.broadcast_in_dim(x, sizes, kept)


def _unexpand(x: Array, kept: tuple[int, ...], core: Sequence[int]) -> Array:
    if x.size != prod(core):
        x = lax.slice(x, [0] * x.ndim, [n if d in kept else 1 for d, n in enumerate(x.shape)])
    return _reshape(x, core)


def _reshape(x: Array, shape: Sequence[int]) -> Array:
    return x if x.shape == tuple(shape) else lax.reshape(x, shape)


def _transpose(x: Array, order: tuple[int, ...]) -> Array:
    return x if order == tuple(range(len(order))) else lax.transpose(x, order)


def _inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    inverse = [0] * len(order)
    for i, d in enumerate(order):
        inverse[d] = i
    return tuple(inverse)
