"""Special functions give CPU PyTorch's values."""

from __future__ import annotations

import math

import pytest
import torch

from .check import check, lowered

aten = torch.ops.aten
UNARY = """
    erf erfc erfinv special_erfcx lgamma digamma i0 special_i0e special_i1 special_i1e special_ndtri special_log_ndtr
    special_entr sinc logit special_modified_bessel_i0 special_modified_bessel_i1
"""
BINARY = ["igamma", "igammac", "special_zeta", "special_xlog1py"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", UNARY.split())
def test_special_functions_agree_with_cpu(name: str, dtype: torch.dtype) -> None:
    x = torch.tensor([-3.2, -0.9, -0.3, 0.0, 1e-3, 0.2, 0.5, 0.99, 1.0, 2.5, 8.0, math.inf, math.nan], dtype=dtype)
    check(getattr(aten, name).default, x, rtol=2e-5 if dtype == torch.float32 else 1e-9, atol=2e-6)


def test_the_tail_of_erfinv_is_right_to_the_last_digits() -> None:
    x = 1 - torch.logspace(-7, -0.5, 400, dtype=torch.float64).float()
    (ours,), _ = lowered(aten.erfinv.default, x)
    torch.testing.assert_close(ours, x.double().erfinv().float(), rtol=3e-7, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["erf", "erfc", "erfinv", "lgamma", "digamma", "i0", "sinc", "logit"])
def test_half_types_are_computed_in_float32(name: str, dtype: torch.dtype) -> None:
    check(getattr(aten, name).default, torch.tensor([-0.8, -0.3, 0.2, 0.7]).to(dtype))


@pytest.mark.parametrize("name", ["erf", "lgamma", "i0", "special_ndtri", "sinc"])
def test_integers_become_the_default_float(name: str) -> None:
    check(getattr(aten, name).default, torch.tensor([0, 1, 2]))


@pytest.mark.parametrize("name", BINARY)
def test_special_functions_of_two_tensors_agree_with_cpu(name: str) -> None:
    check(
        getattr(aten, name).default,
        torch.tensor([1.5, 2.0, 0.5, 4.0]),
        torch.tensor([[0.5], [3.0]]),
        rtol=2e-5,
        atol=1e-6,
    )


def test_xlogy_is_zero_at_zero_and_nan_at_nan() -> None:
    x, y = torch.tensor([0.0, 0.0, 2.0, 1.0]), torch.tensor([0.0, math.nan, 3.0, 0.0])
    check(aten.xlogy.Tensor, x, y)
    check(aten.xlogy.Scalar_Self, 0, y)
    check(aten.xlogy.Scalar_Other, x, 2.5)
    check(aten.special_xlog1py.self_scalar, 2.0, y)
    check(aten.special_zeta.other_scalar, torch.tensor([1.5, 2.0]), 3.0)


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_polygamma_agrees_with_cpu(n: int) -> None:
    check(aten.polygamma.default, n, torch.tensor([0.5, 1.0, 2.5, 10.0]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("eps", [None, 0.1])
def test_logit_and_its_backward_clamp_by_eps(eps: float | None) -> None:
    x = torch.tensor([-0.5, 0.05, 0.5, 0.97, 1.5])
    check(aten.logit.default, x, eps)
    check(aten.logit_backward.default, torch.randn(5), x, eps)
    check(aten.logit_backward.default, torch.randn(5).bfloat16(), x.bfloat16(), eps)


@pytest.mark.parametrize("p", [1, 3])
def test_mvlgamma_agrees_with_cpu(p: int) -> None:
    check(aten.mvlgamma.default, torch.tensor([2.5, 3.0, 7.25]), p)


def test_zeta_and_trigamma_have_their_poles() -> None:
    q = torch.tensor([-2.0, -1.5, 0.0, 0.5, 3.0])
    check(aten.special_zeta.default, torch.tensor([[0.5], [1.0], [2.0], [2.5], [3.0]]), q, rtol=1e-5, atol=1e-6)
    for n in (1, 2, 3, 6):
        check(aten.polygamma.default, n, torch.tensor([-20.3, -0.5, 0.25, 0.75, 30.0]), rtol=1e-5, atol=1e-6)
    below = torch.tensor([-7.25, -0.5, -1.0])
    check(aten.special_zeta.default, torch.tensor([[2.0], [2.5], [5.0]]), below, rtol=1e-5, atol=1e-6)
