"""Fractional max pooling agrees with CPU PyTorch, which gets the same random samples."""

from __future__ import annotations

import math

import pytest
import torch

from .check import check

aten = torch.ops.aten


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("shape", "kernel", "out"),
    [((2, 3, 9, 11), (2, 3), (4, 5)), ((3, 8, 8), (3, 2), (1, 7)), ((2, 3, 7, 8, 9), (2, 2, 3), (3, 4, 2))],
)
def test_maxima_positions_and_gradients_agree(
    shape: tuple[int, ...], kernel: tuple[int, ...], out: tuple[int, ...], dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    dims = len(out)
    x = torch.randn(shape, dtype=dtype)
    x.flatten()[3::17] = math.nan
    samples = torch.rand(shape[0] if len(shape) == dims + 2 else 1, shape[-dims - 1], dims, dtype=dtype)
    op, backward = getattr(aten, f"fractional_max_pool{dims}d"), getattr(aten, f"fractional_max_pool{dims}d_backward")
    check(op.default, x, kernel, out, samples)
    values, indices = op.default(x, kernel, out, samples)
    check(backward.default, torch.randn(values.shape, dtype=dtype), x, kernel, out, indices)


def test_samples_beyond_zero_and_one_place_windows_as_the_cpu_does() -> None:
    samples = torch.tensor([[[0.9, -0.713]]])
    check(aten.fractional_max_pool2d.default, torch.randn(1, 1, 16, 16), [1, 1], [8, 8], samples)
