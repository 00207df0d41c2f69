"""Factories agree with CPU PyTorch, as functional ops (FX graphs) and as the `out=` forms that the device runs."""

from __future__ import annotations

import pytest
import torch

from .check import check, lowered

aten = torch.ops.aten
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32]


@pytest.mark.parametrize("dtype", [None, *DTYPES, torch.bool])
def test_fills_agree_with_cpu(dtype: torch.dtype | None) -> None:
    x = torch.zeros(2, 3, dtype=torch.int16)
    check(aten.zeros.default, [2, 3], dtype=dtype)
    check(aten.ones.default, [], dtype=dtype)
    check(aten.full.default, [2, 0], 1, dtype=dtype)
    check(aten.full.default, [2], 2.5, dtype=dtype)
    check(aten.scalar_tensor.default, 3, dtype=dtype)
    check(aten.zeros_like.default, x, dtype=dtype, memory_format=torch.preserve_format)
    check(aten.ones_like.default, x, dtype=dtype)
    check(aten.full_like.default, x, 7, dtype=dtype)
    check(aten.new_zeros.default, x, [4], dtype=dtype)
    check(aten.new_ones.default, x, [4], dtype=dtype)
    check(aten.new_full.default, x, [4], 5, dtype=dtype, device=torch.device("cpu"))


@pytest.mark.parametrize("fill", [True, 3, 0.5, 2 + 1j])
def test_full_infers_its_dtype_from_the_number(fill: complex) -> None:
    check(aten.full.default, [2], fill)


@pytest.mark.parametrize(
    ("start", "end", "step"),
    [(0, 5, 1), (2, 11, 3), (5, 0, -2), (0.0, 1.0, 0.1), (1, 2, 0.25), (3, 3, 1), (-1.5, 4, 1)],
)
def test_arange_agrees_with_cpu(start: float, end: float, step: float) -> None:
    check(aten.arange.start_step, start, end, step)
    size = torch.arange(start, end, step).numel()
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        check(aten.arange.start_step, start, end, step, dtype=dtype)
        check(aten.arange.start_out, start, end, step, out=torch.empty(size, dtype=dtype))
    if step == int(step):
        check(aten.arange.start_out, start, end, step, out=torch.empty(0, dtype=torch.int64))
        check(aten.arange.default, end + 4)
        check(aten.arange.start, start, start + 3, dtype=torch.int32)


def test_a_long_float_arange_is_rounded_once() -> None:
    got, _ = lowered(aten.arange.start_step, 0, 1000.0, 0.1, dtype=torch.float32)
    assert torch.equal(got[0], torch.arange(0, 1000.0, 0.1, dtype=torch.float64).float())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("steps", [0, 1, 2, 5, 64])
def test_linspace_and_logspace_agree_with_cpu(steps: int, dtype: torch.dtype) -> None:
    # CPU PyTorch's step is rounded to bfloat16, ours to float32.
    loose = {"rtol": 0.03, "atol": 0.03} if dtype == torch.bfloat16 else {}
    check(aten.linspace.default, -3, 10, steps, dtype=dtype, **loose)
    check(aten.linspace.out, 1.5, 7, steps, out=torch.empty(steps, dtype=dtype), **loose)
    if dtype.is_floating_point:
        check(aten.logspace.default, -1, 2, steps, 2.0, dtype=dtype, **loose)
        check(aten.logspace.out, 0, 2, steps, out=torch.empty(steps, dtype=dtype), **loose)
    check(aten.logspace.default, 0, 4, steps, 2.0, dtype=torch.int64)
    check(aten.linspace.Tensor_Scalar, torch.tensor(0.5), 2, steps, dtype=dtype, **loose)


@pytest.mark.parametrize(("n", "m"), [(3, 3), (2, 4), (0, 2)])
def test_eye_agrees_with_cpu(n: int, m: int) -> None:
    check(aten.eye.default, n)
    check(aten.eye.m, n, m, dtype=torch.bfloat16)
    check(aten.eye.m_out, n, m, out=torch.empty(n, m, dtype=torch.int64))


@pytest.mark.parametrize("offset", [0, 1, -2, 9])
@pytest.mark.parametrize(("row", "col"), [(3, 3), (2, 5), (4, 2), (0, 3)])
def test_triangle_indices_agree_with_cpu(row: int, col: int, offset: int) -> None:
    check(aten.tril_indices.default, row, col, offset)
    check(aten.triu_indices.default, row, col, offset, dtype=torch.int32)
