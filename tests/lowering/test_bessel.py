"""Bessel, modified Bessel and Airy functions give CPU PyTorch's values, and more exactly SciPy's."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import special

from .check import check, lowered

aten = torch.ops.aten
# SciPy's function of the same meaning. CPU PyTorch's own are off by up to 7e-7 just beyond 5, in float64 too.
FUNCTIONS = {
    "special_bessel_j0": special.j0,
    "special_bessel_j1": special.j1,
    "special_bessel_y0": special.y0,
    "special_bessel_y1": special.y1,
    "special_modified_bessel_k0": special.k0,
    "special_modified_bessel_k1": special.k1,
    "special_scaled_modified_bessel_k0": special.k0e,
    "special_scaled_modified_bessel_k1": special.k1e,
    "special_spherical_bessel_j0": lambda x: special.spherical_jn(0, x),
    "special_airy_ai": lambda x: special.airy(x)[0],
}


def arguments(name: str, dtype: torch.dtype) -> torch.Tensor:
    edges = torch.tensor([0.0, 1e-6, 1e-3, 1.99, 2.0, 2.01, 7.99, 8.0, 8.01, math.nan], dtype=dtype)
    x = torch.cat([edges, torch.linspace(0.01, 60, 500, dtype=dtype)])
    if name in ("special_airy_ai", "special_bessel_j0", "special_bessel_j1", "special_spherical_bessel_j0"):
        return torch.cat([x, -torch.linspace(0.01, 25, 200, dtype=dtype)])
    return torch.cat([x, torch.tensor([-1.0], dtype=dtype)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_values_are_the_cpus(name: str, dtype: torch.dtype) -> None:
    check(getattr(aten, name).default, arguments(name, dtype), rtol=2e-4, atol=3e-6)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_in_double_precision_the_values_are_scipys(name: str) -> None:
    x = arguments(name, torch.float64)
    (ours,), _ = lowered(getattr(aten, name).default, x)
    torch.testing.assert_close(
        ours, torch.from_numpy(FUNCTIONS[name](x.numpy())), rtol=1e-8, atol=1e-13, equal_nan=True
    )


def test_integers_become_the_default_float() -> None:
    check(aten.special_bessel_y0.default, torch.tensor([1, 2, 9]), rtol=1e-5, atol=1e-6)
