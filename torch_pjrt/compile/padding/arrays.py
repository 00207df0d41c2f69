"""Arrays that are longer than what they hold, and how to tell the one from the other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .aligned import Aligned, NotPaddable, Sized


@dataclass(frozen=True, slots=True)
class Atom:
    """A run of elements: the first `real` (an expression, or a number) of `padded`."""

    real: Any
    padded: int

    @property
    def fixed(self) -> bool:
        """Whether all of its elements are real at all sizes."""
        return isinstance(self.real, int)


@dataclass(frozen=True, slots=True)
class Extent:
    """A padded dimension.

    Attributes:
        real: the expression of its real size.
        padded: its size in the array.
        atoms: its structure, the slowest first: [B * n] that was [B, n] has (B, B) and (n, N), and its padding lies
            between the rows. One atom: the padding lies at the end. None: all elements along it are the same, padding
            included, so that it has the structure of whatever it meets.
    """

    real: Any
    padded: int
    atoms: tuple[Atom, ...] | None

    @property
    def prefix(self) -> bool:
        return self.atoms is None or len(self.atoms) == 1


def extent(real: Any, padded: int) -> Extent:
    """A dimension whose padding lies at the end."""
    return Extent(real, padded, (Atom(real, padded),))


def at_the_end(e: Extent | None) -> Extent | None:
    """The same for an array that is written to: what was the same everywhere is so no longer."""
    return extent(e.real, e.padded) if e is not None and e.atoms is None else e


# For each dimension what is padded of it; None: nothing.
Extents = tuple[Extent | None, ...]


@dataclass(frozen=True, slots=True)
class Padded:
    """An array; `zero`: it has padding, and that is known to be zero."""

    array: Array
    extents: Extents
    zero: bool = False

    @property
    def fixed(self) -> bool:
        return not any(self.extents)


class Numbers:
    """The run-time numbers of one evaluation.

    Args:
        program: what is evaluated.
        whole: int64, the values of `program.whole`; None if there are none.
        real: float64, the values of `program.real`.
    """

    def __init__(self, program: Aligned, whole: Array | None, real: Array | None) -> None:
        self.program = program
        self.whole = whole
        self.real = real
        self._masks: dict[Any, Array] = {}

    def inside(self) -> Numbers:
        """The same for a loop's body: masks made in it are not known outside."""
        return Numbers(self.program, self.whole, self.real)

    def size(self, expression: Any) -> Array | int:
        """A size as int32, or as a number if it is one."""
        if isinstance(expression, int):
            return expression
        if isinstance(expression, Atom | Extent):
            return self.size(expression.real)
        if expression not in self.program.whole or self.whole is None:
            raise NotPaddable(f"size {expression} is not known at run time")
        return self.whole[self.program.whole[expression]].astype(np.int32)

    def value(self, sized: Sized) -> Array:
        if sized.dtype.kind in "iu":
            assert self.whole is not None
            return self.whole[self.program.whole[sized.expression]].astype(sized.dtype)
        assert self.real is not None
        return self.real[self.program.real[sized.expression]].astype(sized.dtype)

    def real_along(self, e: Extent) -> Array:
        """bool[e.padded]: which elements are real."""
        atoms = e.atoms if e.atoms is not None else (Atom(e.real, e.padded),)
        key = (e.padded, atoms)
        if key not in self._masks:
            index = lax.iota(np.int32, e.padded)
            mask: Array | None = None
            below = math.prod(a.padded for a in atoms)
            for a in atoms:
                below //= a.padded
                if not a.fixed:
                    at = index // below % a.padded if len(atoms) > 1 else index
                    here = at < self.size(a)
                    mask = here if mask is None else mask & here
            assert mask is not None, e
            self._masks[key] = mask
        return self._masks[key]

    def real_in(self, extents: Extents, axes: Sequence[int] | None = None) -> Array | None:
        """bool, broadcastable to the array: which elements are real along `axes` (None: all); None: all are."""
        mask: Array | None = None
        for axis in range(len(extents)) if axes is None else axes:
            e = extents[axis]
            if e is not None:
                shape = [1] * len(extents)
                shape[axis] = e.padded
                here = self.real_along(e).reshape(shape)
                mask = here if mask is None else mask & here
        return mask

    def fill(self, x: Padded, value: Any, axes: Sequence[int] | None = None) -> Array:
        """The array with `value` wherever it is padding along `axes` (None: all)."""
        is_zero = isinstance(value, (int, float)) and value == 0
        if x.zero and is_zero:
            return x.array
        mask = self.real_in(x.extents, axes)
        if mask is None:
            return x.array
        other = value if isinstance(value, Array) else jnp.asarray(value, x.array.dtype)
        return jnp.where(mask, x.array, other)


def meet(shape: Sequence[int], operands: Sequence[Padded]) -> Extents:
    """The extents of an elementwise result. Raises NotPaddable where paddings lie in different places."""
    whole = [x for x in operands if x.array.ndim == len(shape)]
    return tuple(met_along([x.extents[a] for x in whole if x.array.shape[a] == n]) for a, n in enumerate(shape))


def met_along(extents: Sequence[Extent | None]) -> Extent | None:
    """One dimension of what combines arrays elementwise."""
    here = set(extents)
    settled = {e for e in here if e is not None and e.atoms is not None}
    if len(settled) > 1:
        raise NotPaddable("it pairs tensors whose padding lies in different places")
    if None in here and any(here):
        raise NotPaddable("it pairs a size that varies with one that does not")
    return next(iter(settled or here), None)
