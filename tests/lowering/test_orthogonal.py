"""Orthogonal polynomials of every degree give CPU PyTorch's values."""

from __future__ import annotations

import pytest
import torch

from .check import check

aten = torch.ops.aten
NAMES = """
    chebyshev_polynomial_t chebyshev_polynomial_u chebyshev_polynomial_v chebyshev_polynomial_w
    shifted_chebyshev_polynomial_t shifted_chebyshev_polynomial_u shifted_chebyshev_polynomial_v
    shifted_chebyshev_polynomial_w hermite_polynomial_h hermite_polynomial_he laguerre_polynomial_l
    legendre_polynomial_p
"""


@pytest.mark.parametrize("name", NAMES.split())
def test_each_element_has_its_own_degree(name: str) -> None:
    x = torch.linspace(0.02, 0.97, 9, dtype=torch.float64).unsqueeze(1)
    x = torch.cat([x, -x, x + 1.2]) if "shifted" not in name else x
    n = torch.tensor([-1.0, 0.0, 1.0, 2.0, 5.0, 6.0, 12.0], dtype=torch.float64)
    op = getattr(aten, f"special_{name}")
    check(op.default, x, n, rtol=1e-7, atol=1e-8)
    check(op.n_scalar, x, 4, rtol=1e-7, atol=1e-8)
    check(op.x_scalar, 0.3, n, rtol=1e-7, atol=1e-8)
    check(op.default, x.float(), n.float(), rtol=2e-3, atol=2e-3)
