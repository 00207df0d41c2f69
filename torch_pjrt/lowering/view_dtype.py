"""The same memory as another dtype: what `tensor.view(dtype)`, `view_as_real` and `view_as_complex` need.

XLA can reinterpret the bits of everything but bool and complex. So both ends of the way are *raw*: a bool is its byte
(a view of dtype bool lives as uint8 until it is read, so that writing one element leaves the others' bytes alone), a
complex number its two parts (float16 for complex32, whose arrays are complex64); between them is one bitcast along the
innermost dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import jax.numpy as jnp
import numpy as np
import torch
from jax import Array, lax

from .dtypes import to_numpy

_PARTS = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}


@dataclass(frozen=True, slots=True)
class Reinterpret:
    """From a base of dtype `source`, in memory order, to an array of `shape` and dtype `domain`, and back.

    `domain` is the view's dtype `target`, but uint8 for bool. If the base's bytes are no whole number of targets,
    those left over at its end aren't in the array.
    """

    source: torch.dtype
    target: torch.dtype
    domain: torch.dtype
    shape: tuple[int, ...]

    def forward(self, x: Array) -> Array:
        """The base's memory as `domain`."""
        raw = _to_raw(x, self.source)
        kept = prod(self.shape) * self.domain.itemsize // raw.dtype.itemsize
        # One row for each row of the result.
        rows = (*self.shape[:-1], kept // max(1, prod(self.shape[:-1])))
        return _from_raw(_bitcast(raw.reshape(-1)[:kept].reshape(rows), _raw(self.domain)), self.domain)

    def backward(self, y: Array, x: Array) -> Array:
        """The base `x` with the memory that `forward` gave replaced by `y`."""
        raw = _bitcast(_to_raw(y, self.domain), _raw(self.source)).reshape(-1)
        old = _to_raw(x, self.source).reshape(-1)
        if raw.size < old.size:
            raw = jnp.concatenate([raw, old[raw.size :]])
        return _from_raw(raw, self.source).reshape(x.shape)

    def finish(self, value: Array) -> Array:
        """Elements of the array as the view's dtype."""
        return value != 0 if self.target == torch.bool else value

    def begin(self, value: Array) -> Array:
        """Elements of the view's dtype as the array's."""
        return value.astype(jnp.uint8) if self.target == torch.bool else value


def reinterpret(source: torch.dtype, target: torch.dtype, sizes: Sequence[int]) -> Reinterpret:
    """How a base of dtype `source` and, in memory order, of `sizes` is seen as `target`: rows stay rows if they can."""
    domain = torch.uint8 if target == torch.bool else target
    rows, last = (tuple(sizes[:-1]), sizes[-1]) if sizes else ((), 1)
    if last * source.itemsize % domain.itemsize:
        rows, last = (), prod(sizes)
    return Reinterpret(source, target, domain, (*rows, last * source.itemsize // domain.itemsize))


def seen_as(x: Array, source: torch.dtype, target: torch.dtype) -> Array:
    """`tensor.view(target)` of a tensor of dtype `source`, row by row."""
    if source == target:
        return x
    how = reinterpret(source, target, x.shape)
    return how.finish(how.forward(x)).reshape(how.shape if x.ndim else ())


def _raw(dtype: torch.dtype) -> np.dtype:
    return to_numpy(torch.uint8 if dtype == torch.bool else _PARTS.get(dtype, dtype))


def _to_raw(x: Array, dtype: torch.dtype) -> Array:
    if dtype == torch.bool:
        return x.astype(jnp.uint8)
    if dtype.is_complex:
        pairs = jnp.stack([x.real, x.imag], axis=-1).astype(_raw(dtype))
        return pairs.reshape(*x.shape[:-1], -1) if x.ndim else pairs
    return x


def _from_raw(raw: Array, dtype: torch.dtype) -> Array:
    if dtype == torch.bool:
        return raw != 0
    if dtype.is_complex:
        pairs = raw.reshape(*raw.shape[:-1], -1, 2).astype(np.promote_types(raw.dtype, np.float32))
        return lax.complex(pairs[..., 0], pairs[..., 1])
    return raw


def _bitcast(x: Array, dtype: np.dtype) -> Array:
    """The innermost dimension's bits as `dtype`."""
    if x.dtype == dtype:
        return x
    before, after = x.dtype.itemsize, dtype.itemsize
    if before < after:
        return lax.bitcast_convert_type(x.reshape(*x.shape[:-1], -1, after // before), dtype)
    y = lax.bitcast_convert_type(x, dtype)
    return y if before == after else y.reshape(*x.shape[:-1], -1)
