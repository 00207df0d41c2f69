"""How a torch dtype is named in JAX, and PyTorch's type promotion over JAX values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import torch

_TO_NUMPY: dict[torch.dtype, np.dtype] = {
    torch.bool: np.dtype(np.bool_),
    torch.uint8: np.dtype(np.uint8),
    torch.uint16: np.dtype(np.uint16),
    torch.uint32: np.dtype(np.uint32),
    torch.uint64: np.dtype(np.uint64),
    torch.int8: np.dtype(np.int8),
    torch.int16: np.dtype(np.int16),
    torch.int32: np.dtype(np.int32),
    torch.int64: np.dtype(np.int64),
    torch.float16: np.dtype(np.float16),
    torch.bfloat16: np.dtype(ml_dtypes.bfloat16),
    torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64),
    # XLA has no pairs of float16: the array holds them as complex64, twice as large as PyTorch thinks.
    torch.complex32: np.dtype(np.complex64),
    torch.complex64: np.dtype(np.complex64),
    torch.complex128: np.dtype(np.complex128),
    torch.float8_e4m3fn: np.dtype(ml_dtypes.float8_e4m3fn),
    torch.float8_e5m2: np.dtype(ml_dtypes.float8_e5m2),
    torch.float8_e4m3fnuz: np.dtype(ml_dtypes.float8_e4m3fnuz),
    torch.float8_e5m2fnuz: np.dtype(ml_dtypes.float8_e5m2fnuz),
    torch.float8_e8m0fnu: np.dtype(ml_dtypes.float8_e8m0fnu),
}
SUPPORTED: tuple[torch.dtype, ...] = tuple(_TO_NUMPY)
_TO_TORCH: dict[np.dtype, torch.dtype] = {n: t for t, n in _TO_NUMPY.items() if t != torch.complex32}


def to_numpy(dtype: torch.dtype) -> np.dtype:
    """The numpy (ml_dtypes) dtype that holds `dtype` in a JAX array.

    Raises TypeError for a dtype that XLA has no type for (quantized, sub-byte).
    """
    try:
        return _TO_NUMPY[dtype]
    except KeyError:
        raise TypeError(f"{dtype} has no XLA element type; supported: {', '.join(map(str, _TO_NUMPY))}") from None


def to_torch(dtype: np.dtype | type) -> torch.dtype:
    """The torch dtype of a JAX array's dtype: complex64 for the arrays of complex32 tensors too."""
    return _TO_TORCH[np.dtype(dtype)]


def in_array(tensor: torch.Tensor) -> torch.Tensor:
    """The CPU tensor whose memory is that of the array that holds `tensor`: itself, or complex64 for complex32."""
    return tensor.to(torch.complex64) if tensor.dtype == torch.complex32 else tensor


def opmath(dtype: torch.dtype) -> torch.dtype:
    """The dtype PyTorch computes in for tensors of `dtype`: float32 for the half and 8-bit floats."""
    if dtype.is_floating_point and dtype.itemsize < 4:
        return torch.float32
    return dtype


def promote(operands: Sequence[Any], *, floating: bool = False) -> torch.dtype:
    """PyTorch's result type of JAX arrays and Python numbers.

    Tensors with dimensions outrank 0-d tensors, which outrank numbers, within a category (bool < int < float
    < complex): https://docs.pytorch.org/docs/stable/tensor_attributes.html#type-promotion-doc.
    Weakly typed JAX values (run-time scalars) rank as numbers. With `floating`, an integer or bool result
    becomes the default float dtype, as in `torch.sin`.
    """
    ranks: tuple[list[torch.dtype], list[torch.dtype], list[torch.dtype]] = ([], [], [])
    for x in operands:
        if x is None:
            continue
        if isinstance(x, (bool, int, float, complex)):
            ranks[2].append(_number_dtype(x))
        elif getattr(x, "weak_type", False):
            ranks[2].append(_weak_dtype(to_torch(x.dtype)))
        else:
            ranks[0 if x.ndim else 1].append(to_torch(x.dtype))
    result: torch.dtype | None = None
    for group in ranks:
        if not group:
            continue
        top = group[0]
        for d in group[1:]:
            top = torch.promote_types(top, d)
        if result is None:
            result = top
        elif _category(top) > _category(result):
            result = torch.promote_types(result, top) if _category(top) == 3 else top
    if result is None:
        raise TypeError("promote() needs at least one operand")
    if floating and not (result.is_floating_point or result.is_complex):
        return torch.get_default_dtype()
    return result


def _number_dtype(x: bool | int | float | complex) -> torch.dtype:
    if isinstance(x, bool):
        return torch.bool
    if isinstance(x, int):
        return torch.int64
    return _weak_dtype(torch.float64 if isinstance(x, float) else torch.complex128)


def _weak_dtype(dtype: torch.dtype) -> torch.dtype:
    if dtype.is_complex:
        return torch.complex64 if torch.get_default_dtype() != torch.float64 else torch.complex128
    return torch.get_default_dtype() if dtype.is_floating_point else dtype


def _category(dtype: torch.dtype) -> int:
    if dtype.is_complex:
        return 3
    if dtype.is_floating_point:
        return 2
    return 0 if dtype == torch.bool else 1
