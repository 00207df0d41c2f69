"""The three FFT ops against CPU PyTorch (pocketfft or MKL)."""

from __future__ import annotations

import pytest
import torch

from .check import check

aten = torch.ops.aten
TOLERANCE = {torch.float32: 2e-4, torch.float64: 1e-12}
DIMS = [[0], [3], [2, 0], [0, 1, 2, 3]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("normalization", [0, 1, 2])
def test_ffts_agree_over_any_dimensions(dim: list[int], normalization: int, dtype: torch.dtype) -> None:
    tolerance = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    x = torch.randn(4, 3, 5, 6, dtype=dtype)
    z = torch.complex(x, torch.randn_like(x))
    for flag in (True, False):
        check(aten._fft_c2c.default, z, dim, normalization, flag, **tolerance)
        check(aten._fft_r2c.default, x, dim, normalization, flag, **tolerance)
    size = x.shape[dim[-1]]
    half = torch.fft.rfftn(x, dim=dim)
    check(aten._fft_c2r.default, half, dim, normalization, size, **tolerance)


@pytest.mark.parametrize("length", [6, 7])
def test_the_inverse_real_fft_has_the_length_asked_for(length: int) -> None:
    check(aten._fft_c2r.default, torch.randn(2, 4, dtype=torch.complex64), [1], 2, length)
