"""Copies, casts and fills agree with CPU PyTorch."""

from __future__ import annotations

import math

import pytest
import torch

from .check import check

aten = torch.ops.aten
DTYPES = [
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.complex64, torch.float8_e4m3fn,
]  # fmt: skip


@pytest.mark.parametrize("to", DTYPES)
@pytest.mark.parametrize("source", DTYPES)
def test_casts_agree_with_cpu(source: torch.dtype, to: torch.dtype) -> None:
    x = torch.tensor([-2.75, -1.0, 0.0, 0.5, 1.9, 100.0])
    x = x.abs() if source == torch.uint8 else x
    check(aten._to_copy.default, x.to(source), dtype=to)


@pytest.mark.parametrize("dtype", [torch.uint32, torch.uint64], ids=str)
def test_negative_floats_wrap_in_unsigned_integers(dtype: torch.dtype) -> None:
    for of in (torch.float32, torch.float64, torch.bfloat16):
        check(
            torch.ops.aten._to_copy.default,
            torch.tensor([-1.0, -1.5, -300.0, -0.5, 0.0, 7.9, 2.0**31], dtype=of),
            dtype=dtype,
        )


def test_floats_beyond_a_short_integer_wrap() -> None:
    check(aten._to_copy.default, torch.tensor([-1.0, 300.0, 255.5]), dtype=torch.uint8)
    check(aten.copy.default, torch.zeros(3, dtype=torch.int8), torch.tensor([-1.0, 300.0, 255.5]))


def test_nan_and_infinity_are_true() -> None:
    check(aten._to_copy.default, torch.tensor([math.nan, math.inf, 0.0]), dtype=torch.bool)


def test_copy_broadcasts_and_casts_to_self() -> None:
    check(aten.copy.default, torch.zeros(2, 3, dtype=torch.int32), torch.tensor([1.7, -2.2, 3.0]))
    check(aten.copy_.default, torch.zeros(2, 3, dtype=torch.bfloat16), torch.tensor([1.7, -2.2, 3.1]))
    check(aten.copy_.default, torch.zeros(0, 3), torch.tensor([1.7, -2.2, 3.1]))


def test_clone_keeps_values() -> None:
    check(aten.clone.default, torch.randn(2, 3), memory_format=torch.preserve_format)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
def test_fills_agree_with_cpu(dtype: torch.dtype) -> None:
    x = torch.ones(2, 3).to(dtype)
    check(aten.fill.Scalar, x, 2)
    check(aten.fill_.Scalar, x, 0)
    check(aten.fill_.Tensor, x, torch.tensor(1.5))
    check(aten.zero_.default, x)
