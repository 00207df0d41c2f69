"""PyTorch's opmath for arrays: half-precision values are computed in float32 and rounded once, at the end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jax import Array

from .dtypes import opmath, promote, to_numpy, to_torch


def wide_dtype(*arrays: Array | None) -> np.dtype:
    """The dtype PyTorch computes in for operands that meet, e.g. (bfloat16, float32) -> float32."""
    return to_numpy(opmath(promote([x for x in arrays if x is not None])))


def widen(x: Array) -> Array:
    """`x` in the dtype PyTorch computes in: float32 for bfloat16, float16 and the 8-bit floats, else its own."""
    return x.astype(to_numpy(opmath(to_torch(x.dtype))))


def asked(gradients: Sequence[Array | None], output_mask: Sequence[bool]) -> list[Array]:
    """The gradients that `output_mask` asks for; the others are undefined tensors, which have no output."""
    return [g for g, wanted in zip(gradients, output_mask, strict=True) if wanted and g is not None]
