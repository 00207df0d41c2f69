"""Reading and writing at run-time places: padding is neither read by real indices nor written by padded ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .aligned import NotPaddable
from .arrays import Extent, Extents, Numbers, Padded, at_the_end, met_along
from .rules import Call, plain, rule
from .shape import read_at

Mode = lax.GatherScatterMode


@rule("dynamic_slice", may_differ=["slice_sizes"])
def dynamic_slice(call: Call) -> list[Padded]:
    x, starts = call.operands[0], call.operands[1:]
    shape, fresh = call.step.shapes[0], call.fresh()
    made, extents = x.array, list(x.extents)
    for a, start in enumerate(starts):
        before = x.extents[a]
        if shape[a] == made.shape[a] and (before is None or (fresh[a] is not None and fresh[a].real == before.real)):  # type: ignore[union-attr]
            continue  # all of it, wherever it is said to begin
        plain(before)
        if before is None:
            if fresh[a] is not None:
                raise NotPaddable("it takes a number of elements that varies from a size that does not")
            made = lax.dynamic_slice_in_dim(made, start.array, shape[a], a)
            continue
        last = call.numbers.size(before) - (shape[a] if fresh[a] is None else call.numbers.size(fresh[a]))
        made = read_at(made, jnp.clip(start.array, 0, last), shape[a], a)
        extents[a] = fresh[a]
    return [Padded(made, tuple(extents))]


@rule("dynamic_update_slice")
def dynamic_update_slice(call: Call) -> list[Padded]:
    """One padded axis at most, on which the update may be as long as varies: its padding puts back what was there."""
    x, update, starts = call.operands[0], call.operands[1], call.operands[2:]
    partial = [
        a for a in range(x.array.ndim) if x.extents[a] != update.extents[a] or x.array.shape[a] != update.array.shape[a]
    ]
    moved = [a for a in partial if x.extents[a] is not None or update.extents[a] is not None]
    extents = meet_around(x, update, moved)
    if not moved:
        return [Padded(call.bind(*(o.array for o in call.operands)), extents)]
    at = [jnp.zeros((), np.int32) if a not in partial else s.array.astype(np.int32) for a, s in enumerate(starts)]
    spare = [(0, 0, 0)] * x.array.ndim
    for a in moved:
        plain(x.extents[a])
        plain(update.extents[a])
        e, u = x.extents[a], update.extents[a]
        room: Any = x.array.shape[a] if e is None else call.numbers.size(e)
        length: Any = update.array.shape[a] if u is None else call.numbers.size(u)
        at[a] = jnp.clip(at[a], 0, room - length).astype(np.int32)
        spare[a] = (0, update.array.shape[a], 0)
    whole = lax.pad(x.array, jnp.zeros((), x.array.dtype), spare)
    mask = call.numbers.real_in(update.extents, moved)
    written = update.array
    if mask is not None:
        written = jnp.where(mask, written, lax.dynamic_slice(whole, at, update.array.shape))
    made = lax.dynamic_update_slice(whole, written, at)
    return [Padded(lax.slice(made, (0,) * made.ndim, x.array.shape), extents)]


def meet_around(x: Padded, update: Padded, apart: Sequence[int]) -> Extents:
    """x's extents, where those of the update must agree but for the axes `apart`."""
    same = [a for a in range(x.array.ndim) if a not in apart]
    found = [at_the_end(e) for e in x.extents]
    for a in same:
        found[a] = _met(x.extents[a], update.extents[a])
    return tuple(found)


@rule("gather", may_differ=["slice_sizes"])
def gather(call: Call) -> list[Padded]:
    x, indices = call.operands
    numbers, mode = call.params["dimension_numbers"], call.params["mode"]
    batching = dict(zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True))
    whole = [a for a in range(x.array.ndim) if a not in numbers.collapsed_slice_dims and a not in batching]
    offsets = dict(zip(numbers.offset_dims, whole, strict=True))
    _indexed(x, numbers.start_index_map)
    for a in whole:
        if x.extents[a] is not None and a not in numbers.start_index_map:
            continue
        if not isinstance(call.fitted("slice_sizes")[a], int):
            raise NotPaddable("it reads windows whose size varies")
    at = _within(x, call.numbers, indices.array, numbers.start_index_map, mode, call.params["slice_sizes"])
    made = call.bind(x.array, at)
    batch_axes = iter([a for a in range(indices.array.ndim - 1)])
    extents: list[Extent | None] = []
    for a in range(made.ndim):
        if a in offsets:
            e = x.extents[offsets[a]]
            extents.append(e if a is not None and offsets[a] not in numbers.start_index_map else None)
            continue
        axis = next(batch_axes)
        e = indices.extents[axis]
        for operand_axis, index_axis in batching.items():
            if index_axis == axis:
                e = _met(e, x.extents[operand_axis])
        extents.append(e)
    return [Padded(made, tuple(extents))]


@rule("scatter", "scatter-add", "scatter-sub", "scatter-mul", "scatter-min", "scatter-max")
def scatter(call: Call) -> list[Padded]:
    """A padded index points beyond the end, where nothing is written."""
    x, indices, updates = call.operands
    numbers, mode = call.params["dimension_numbers"], call.params["mode"]
    indexed = numbers.scatter_dims_to_operand_dims
    _indexed(x, indexed)
    extents = [at_the_end(e) for e in x.extents]
    for a, i in zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True):
        extents[a] = _met(x.extents[a], indices.extents[i])
    window = [0] * x.array.ndim
    inserted = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    for a, u in zip((a for a in range(x.array.ndim) if a not in inserted), numbers.update_window_dims, strict=True):
        window[a] = updates.array.shape[u]
        if a not in indexed:
            extents[a] = _met(x.extents[a], updates.extents[u])
        if (updates.extents[u] is None) != (x.extents[a] is None) and a not in indexed:
            raise NotPaddable("it writes windows whose size varies")
        if a in indexed and updates.extents[u] is not None:
            raise NotPaddable("it writes windows whose size varies")
    sizes = [max(w, 1) for w in window]
    at = _within(x, call.numbers, indices.array, indexed, mode, sizes)
    others = [a for a in range(updates.array.ndim) if a not in numbers.update_window_dims]
    places = [met_along([e, updates.extents[u]]) for e, u in zip(indices.extents[:-1], others, strict=True)]
    mask = call.numbers.real_in((*places, None))
    if mask is None:
        made = call.bind(x.array, at, updates.array)
    else:
        away = jnp.asarray(jnp.iinfo(at.dtype).max, at.dtype)
        made = call.bind(
            x.array, jnp.where(mask, at, away), updates.array,
            mode=Mode.FILL_OR_DROP, unique_indices=False, indices_are_sorted=False,
        )  # fmt: skip
    return [Padded(made, tuple(extents))]


def _met(a: Extent | None, b: Extent | None) -> Extent | None:
    return met_along([a, b])


def _indexed(x: Padded, axes: Sequence[int]) -> None:
    for a in axes:
        plain(x.extents[a])


def _within(x: Padded, numbers: Numbers, indices: Array, axes: Sequence[int], mode: Any, sizes: Sequence[int]) -> Array:
    """Indices such that what is out of range for the real size is so for the padded one, or clipped to the real one."""
    if mode != Mode.CLIP and not any(x.extents[a] is not None for a in axes):
        return indices
    wide = indices.astype(np.int32) if indices.dtype.itemsize < 4 else indices  # room for the sizes
    columns = []
    for k, a in enumerate(axes):
        column, e = wide[..., k], x.extents[a]
        size: Any = x.array.shape[a] if e is None else numbers.size(e)
        last = jnp.asarray(size - sizes[a], column.dtype)
        if mode == Mode.CLIP:
            column = jnp.clip(column, jnp.zeros_like(last), last)
        elif mode == Mode.FILL_OR_DROP:
            column = jnp.where(column > last, jnp.asarray(jnp.iinfo(column.dtype).max, column.dtype), column)
        columns.append(column)
    return jnp.stack(columns, -1)
