"""Rearranging: where the padding goes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import sympy  # type: ignore[import-untyped]
from jax import Array, lax

from .aligned import NotPaddable
from .arrays import Atom, Extent, Extents, Padded, extent, meet, met_along
from .rules import Call, plain, rule, unpadded


@rule("transpose")
def transpose(call: Call) -> list[Padded]:
    (x,) = call.operands
    return [Padded(call.bind(x.array), tuple(x.extents[a] for a in call.params["permutation"]), x.zero)]


@rule("squeeze")
def squeeze(call: Call) -> list[Padded]:
    (x,) = call.operands
    gone = {a % x.array.ndim for a in call.params["dimensions"]}
    return [Padded(call.bind(x.array), tuple(e for a, e in enumerate(x.extents) if a not in gone), x.zero)]


@rule("broadcast_in_dim", may_differ=["shape", "sharding"])
def broadcast_in_dim(call: Call) -> list[Padded]:
    """Along a new dimension all elements are the same, padding included."""
    x = call.operands[0]
    extents: list[Extent | None] = [None if e is None else Extent(e.real, e.padded, None) for e in call.fresh()]
    for axis, to in enumerate(call.params["broadcast_dimensions"]):
        if x.array.shape[axis] != 1 or x.extents[axis] is not None:
            extents[to] = x.extents[axis]
    made = lax.broadcast_in_dim(x.array, call.step.shapes[0], call.params["broadcast_dimensions"])
    return [Padded(made, tuple(extents))]


@rule("reshape", may_differ=["new_sizes", "sharding"])
def reshape(call: Call) -> list[Padded]:
    x = call.operands[0]
    if call.params["dimensions"] is not None:
        raise NotPaddable("it permutes as it reshapes")
    shape, dims = call.step.shapes[0], call.step.dims[0]
    made = lax.reshape(x.array, shape)
    return [Padded(made, regroup(x, shape, dims), x.zero)]


def regroup(x: Padded, shape: Sequence[int], dims: Sequence[Any]) -> Extents:
    """The extents of x's elements in the same order under another shape."""
    source = list(range(x.array.ndim))
    found: list[Extent | None] = []
    target = 0
    while target < len(shape) or source:
        # The smallest groups of dimensions with the same elements, in truth as well as in the array.
        here: list[int] = [source.pop(0)] if source else []
        there: list[int] = [target] if target < len(shape) else []
        target += len(there)
        while not _same(x, here, shape, dims, there):
            if math.prod(x.array.shape[a] for a in here) <= math.prod(shape[a] for a in there) and source:
                here.append(source.pop(0))
            elif target < len(shape):
                there.append(target)
                target += 1
            elif source:
                here.append(source.pop(0))
            else:
                raise NotPaddable("it mixes real elements with padding")
        if len(here) == len(there) == 1:
            found.append(x.extents[here[0]])
        elif all(x.extents[a] is None for a in here):
            found += [None] * len(there)
        elif (
            all((e := x.extents[a]) is None or e.atoms is None for a in here)
            and any(x.extents[a] is not None and x.array.shape[a] != 1 for a in here)
            and all(x.extents[a] is not None or x.array.shape[a] == 1 for a in here)
        ):
            # The same everywhere, and so whatever its structure is called.
            found += [None if dims[a] is None else Extent(dims[a], shape[a], None) for a in there]
        else:
            found += _divide(_atoms(x, here), [(dims[a], shape[a]) for a in there])
    return tuple(found)


def _same(x: Padded, here: Sequence[int], shape: Sequence[int], dims: Sequence[Any], there: Sequence[int]) -> bool:
    if math.prod(x.array.shape[a] for a in here) != math.prod(shape[a] for a in there):
        return False
    mine = sympy.Mul(*(_real(x.extents[a], x.array.shape[a]) for a in here))
    its = sympy.Mul(*(shape[a] if dims[a] is None else dims[a] for a in there))
    return bool(sympy.expand(mine - its) == 0)


def _real(e: Extent | None, n: int) -> Any:
    return n if e is None else e.real


def _atoms(x: Padded, axes: Sequence[int]) -> list[Atom]:
    """The structure of these dimensions as one, the slowest first."""
    made: list[Atom] = []
    for a in axes:
        e, n = x.extents[a], x.array.shape[a]
        for atom in (Atom(n, n),) if e is None else e.atoms or (Atom(e.real, e.padded),):
            if atom.padded == 1 and atom.fixed:
                continue
            # What lies within one element of a padded run is padded with it.
            if made and atom.fixed:
                made[-1] = Atom(made[-1].real * atom.padded, made[-1].padded * atom.padded)
            else:
                made.append(atom)
    return made


def _divide(atoms: list[Atom], targets: Sequence[tuple[Any, int]]) -> list[Extent | None]:
    """Give each new dimension (its real size, its padded size) the atoms that it spans."""
    rest = list(atoms)
    found: list[Extent | None] = []
    for real, padded in targets:
        wanted, taken = padded, []
        while wanted > 1:
            if not rest:
                raise NotPaddable("it mixes real elements with padding")
            atom = rest.pop(0)
            if atom.padded > wanted:
                within = atom.padded // wanted
                outer = sympy.expand(sympy.sympify(atom.real) / within)
                if (
                    within * wanted != atom.padded
                    or not outer.as_coefficients_dict()
                    or any(not c.is_Integer for c in outer.as_coefficients_dict().values())
                ):
                    raise NotPaddable("it splits a run of real elements from within")
                rest.insert(0, Atom(within, within))
                atom = Atom(int(outer) if outer.is_Integer else outer, wanted)
            if wanted % atom.padded:
                raise NotPaddable("it mixes real elements with padding")
            wanted //= atom.padded
            taken.append(atom)
        if real is None:
            if not all(t.fixed for t in taken):
                raise NotPaddable("it mixes real elements with padding")
            found.append(None)
            continue
        joined: list[Atom] = []
        for t in taken:
            if joined and t.fixed:
                joined[-1] = Atom(joined[-1].real * t.padded, joined[-1].padded * t.padded)
            else:
                joined.append(t)
        if sympy.expand(sympy.Mul(*(t.real for t in joined)) - real) != 0:
            raise NotPaddable("it mixes real elements with padding")
        found.append(Extent(real, padded, tuple(joined) or (Atom(real, padded),)))
    return found


@rule("slice", may_differ=["start_indices", "limit_indices"])
def slice_(call: Call) -> list[Padded]:
    (x,) = call.operands
    shape, fresh = call.step.shapes[0], call.fresh()
    strides = call.params["strides"] or (1,) * x.array.ndim
    made, extents, zero = x.array, list(fresh), x.zero
    for a in range(x.array.ndim):
        start, before = call.fitted("start_indices")[a], x.extents[a]
        if (
            isinstance(start, int)
            and start == 0
            and strides[a] == 1
            and _is_all(before, fresh[a], made.shape[a], shape[a])
        ):
            extents[a] = before
            continue
        plain(before)
        if before is not None and before.atoms is None and fresh[a] is not None:
            extents[a] = Extent(fresh[a].real, fresh[a].padded, None)  # type: ignore[union-attr]
        if isinstance(start, int):
            made = lax.slice_in_dim(
                made, start, start + (shape[a] - 1) * strides[a] + 1 if shape[a] else start, strides[a], a
            )
            zero = False  # it may have cut off real elements
            continue
        if strides[a] != 1:
            raise NotPaddable("it takes every so-many-th element from a place that depends on sizes")
        made = read_at(made, call.numbers.size(start), shape[a], a)
        zero = False
    return [Padded(made, tuple(extents), zero)]


def _is_all(before: Extent | None, after: Extent | None, n: int, m: int) -> bool:
    return n == m and (before is None) == (after is None) and (before is None or before.real == after.real)  # type: ignore[union-attr]


def read_at(x: Array, start: Any, size: int, axis: int) -> Array:
    """`size` elements from a run-time start on; beyond the end there are zeros."""
    longer = [(0, 0, 0)] * x.ndim
    longer[axis] = (0, size, 0)
    extended = lax.pad(x, jnp.zeros((), x.dtype), longer)
    return lax.dynamic_slice_in_dim(extended, start, size, axis)


@rule("pad", may_differ=["padding_config"])
def pad(call: Call) -> list[Padded]:
    """The array's own padding becomes what it is padded with."""
    x, value = call.operands
    fresh, config = call.fresh(), call.fitted("padding_config")
    axes = [a for a, c in enumerate(config) if tuple(c) != (0, 0, 0)]
    for a in axes:
        plain(x.extents[a])
    made = call.numbers.fill(x, value.array, axes)
    extents = tuple(fresh[a] if a in axes else x.extents[a] for a in range(x.array.ndim))
    for a in axes:
        low, _, within = map(_number, config[a])
        size = call.step.shapes[0][a]
        if not isinstance(within, int):
            raise NotPaddable("how many elements it puts in between depends on sizes")
        if isinstance(low, int):
            one: list[Any] = [(0, 0, 0)] * made.ndim
            one[a] = (low, size - low - (made.shape[a] + max(made.shape[a] - 1, 0) * within), within)
            made = lax.pad(made, value.array, one)
            continue
        if within:
            raise NotPaddable("it puts elements in between at a place that depends on sizes")
        # Enough on both sides, then the part that is asked for: `low` may be negative.
        around: list[Any] = [(0, 0, 0)] * made.ndim
        around[a] = (size, size, 0)
        made = lax.pad(made, value.array, around)
        made = lax.dynamic_slice_in_dim(made, np.int32(size) - call.numbers.size(low), size, a)
    return [Padded(made, extents)]


def _number(n: Any) -> Any:
    return int(n) if isinstance(n, np.integer) else n


@rule("concatenate")
def concatenate(call: Call) -> list[Padded]:
    """Each operand is written over the padding of the one before."""
    axis = call.params["dimension"]
    shape, fresh = call.step.shapes[0], call.fresh()
    extents = list(fresh)
    for a in range(len(shape)):
        if a != axis:
            extents[a] = met_along([x.extents[a] for x in call.operands])
    if fresh[axis] is None:
        unpadded(tuple(x.extents[axis] for x in call.operands), range(len(call.operands)), "one of what it joins")
        return [
            Padded(call.bind(*(x.array for x in call.operands)), tuple(extents), all(x.zero for x in call.operands))
        ]
    made = call.operands[0].array
    plain(call.operands[0].extents[axis])
    more = [(0, 0, 0)] * made.ndim
    more[axis] = (0, shape[axis] - made.shape[axis], 0)
    made = lax.pad(made, jnp.zeros((), made.dtype), more)
    at: Any = np.int32(0)
    for before, x in zip(call.operands, call.operands[1:], strict=False):
        plain(x.extents[axis])
        e = before.extents[axis]
        at = at + (np.int32(before.array.shape[axis]) if e is None else call.numbers.size(e))
        made = lax.dynamic_update_slice_in_dim(made, x.array, at, axis)
    return [Padded(made, tuple(extents))]


@rule("rev")
def rev(call: Call) -> list[Padded]:
    (x,) = call.operands
    made, extents = call.bind(x.array), list(x.extents)
    for a in call.params["dimensions"]:
        e = x.extents[a]
        if e is not None and e.atoms is not None:
            plain(e)
            made = read_at(made, np.int32(e.padded) - call.numbers.size(e), e.padded, a)
            extents[a] = extent(e.real, e.padded)
    return [Padded(made, tuple(extents))]


@rule("split")
def split(call: Call) -> list[Padded]:
    (x,) = call.operands
    if x.extents[call.params["axis"]] is not None:
        raise NotPaddable("it splits a size that varies")
    return [Padded(a, x.extents, x.zero) for a in call.bind(x.array)]


@rule("tile", may_differ=["reps"])
def tile(call: Call) -> list[Padded]:
    """n elements repeated c times are c rows of n."""
    (x,) = call.operands
    fresh, extents = call.fresh(), list(x.extents)
    for a, times in enumerate(call.fitted("reps")):
        e, n = x.extents[a], x.array.shape[a]
        if isinstance(times, int) and times == 1:
            continue
        after = fresh[a]
        if after is None:
            continue
        if e is not None and e.atoms is None:
            extents[a] = Extent(after.real, after.padded, None)
            continue
        rows = [Atom(times, after.padded // n)]
        inner = _atoms(x, [a])
        if e is None and n > 1:  # a varying number of fixed rows: its padding lies at the end
            extents[a] = after
        elif n > 1:
            extents[a] = Extent(after.real, after.padded, (*rows, *inner))
        else:
            extents[a] = after
    return [Padded(call.bind(x.array), tuple(extents))]


@rule("stack")
def stack(call: Call) -> list[Padded]:
    extents = list(meet(call.operands[0].array.shape, call.operands))
    extents.insert(call.params["axis"], None)
    return [Padded(call.bind(*(x.array for x in call.operands)), tuple(extents), all(x.zero for x in call.operands))]


@rule("unstack")
def unstack(call: Call) -> list[Padded]:
    (x,) = call.operands
    axis = call.params["axis"]
    unpadded(x.extents, [axis], "what it takes apart")
    rest = (*x.extents[:axis], *x.extents[axis + 1 :])
    return [Padded(a, rest, x.zero) for a in call.bind(x.array)]
