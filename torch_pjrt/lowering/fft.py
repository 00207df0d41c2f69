"""The three FFTs that all of torch.fft is made of: complex to complex, real to complex, complex to real."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array, lax
from jax.lax import FftType

from .registry import lower

_AT_ONCE = 3  # XLA transforms at most three (trailing) dimensions in one op


@lower("_fft_c2c")
def fft_c2c(self: Array, dim: Sequence[int], normalization: int, forward: bool) -> Array:
    lengths = [self.shape[d] for d in dim]
    return _scaled(_complex(self, dim, forward), normalization, lengths, inverse=not forward)


@lower("_fft_r2c")
def fft_r2c(self: Array, dim: Sequence[int], normalization: int, onesided: bool) -> Array:
    lengths = [self.shape[d] for d in dim]
    if not onesided:
        wide = self.astype(jnp.complex128 if self.dtype == jnp.float64 else jnp.complex64)
        return _scaled(_complex(wide, dim, True), normalization, lengths, inverse=False)
    half = _last(self, dim[-1], FftType.RFFT, lengths[-1])
    return _scaled(_complex(half, dim[:-1], True), normalization, lengths, inverse=False)


@lower("_fft_c2r")
def fft_c2r(self: Array, dim: Sequence[int], normalization: int, last_dim_size: int) -> Array:
    lengths = [*(self.shape[d] for d in dim[:-1]), last_dim_size]
    x = _complex(self, dim[:-1], False)
    x = lax.slice_in_dim(x, 0, last_dim_size // 2 + 1, axis=dim[-1])
    return _scaled(_last(x, dim[-1], FftType.IRFFT, last_dim_size), normalization, lengths, inverse=True)


def _complex(x: Array, dim: Sequence[int], forward: bool) -> Array:
    """The transform over `dim` with XLA's scale: 1 forward, 1/n backward."""
    kind = FftType.FFT if forward else FftType.IFFT
    dims = [d % x.ndim for d in dim]
    for i in range(0, len(dims), _AT_ONCE):
        group = dims[i : i + _AT_ONCE]
        trailing = range(x.ndim - len(group), x.ndim)
        moved = jnp.moveaxis(x, group, trailing)
        x = jnp.moveaxis(lax.fft(moved, kind, moved.shape[x.ndim - len(group) :]), trailing, group)
    return x


def _last(x: Array, dim: int, kind: FftType, length: int) -> Array:
    return jnp.moveaxis(lax.fft(jnp.moveaxis(x, dim, -1), kind, (length,)), -1, dim)


def _scaled(x: Array, normalization: int, lengths: Sequence[int], *, inverse: bool) -> Array:
    """PyTorch's scale in place of XLA's. `normalization`: 0 none, 1 by 1/sqrt(n), 2 by 1/n."""
    n = math.prod(lengths)
    wanted = {0: 1.0, 1: 1 / math.sqrt(n), 2: 1 / n}[normalization]
    factor = wanted * n if inverse else wanted
    return x if math.isclose(factor, 1.0) else x * factor
