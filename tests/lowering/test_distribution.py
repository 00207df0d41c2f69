"""Draws from parametrized distributions follow them."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from .check import check
from .test_rng import N, draw, fits

aten = torch.ops.aten


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("samples", "replacement"), [(1, False), (1, True), (3, True)])
def test_multinomial_draws_in_proportion_to_the_weights(samples: int, replacement: bool, dtype: torch.dtype) -> None:
    weights = torch.tensor([0.0, 1.0, 2.0, 0.0, 5.0, 0.0], dtype=dtype).repeat(N, 1)
    (x,) = draw(aten.multinomial.default, weights, samples, replacement, out=[((N, samples), torch.int64)])
    share = torch.bincount(x.flatten(), minlength=6) / x.numel()
    assert torch.allclose(share, torch.tensor([0, 0.125, 0.25, 0, 0.625, 0]), atol=0.015)
    assert bool((share[[0, 3, 5]] == 0).all())


def test_multinomial_without_replacement_repeats_nothing() -> None:
    weights = torch.tensor([1.0, 2.0, 3.0, 0.0, 4.0]).repeat(1000, 1)
    (x,) = draw(aten.multinomial.default, weights, 4, False, out=[((1000, 4), torch.int64)])
    assert torch.equal(x.sort(1).values, torch.tensor([0, 1, 2, 4]).repeat(1000, 1))
    (y,) = draw(aten.multinomial.default, weights[0], 2, False, out=[((2,), torch.int64)])
    assert y.unique().numel() == 2


@pytest.mark.parametrize("shape", [0.3, 1.0, 4.5])
def test_gamma_and_poisson_draws_have_their_distributions(shape: float) -> None:
    (gamma,) = draw(aten._standard_gamma.default, torch.full((N,), shape), out=[((N,), torch.float32)])
    assert fits(gamma, stats.gamma(shape).cdf)
    (poisson,) = draw(aten.poisson.default, torch.full((N,), shape), out=[((N,), torch.float32)])
    assert abs(poisson.mean() - shape) < 0.07 and abs(poisson.var() - shape) < 0.25
    assert torch.equal(poisson, poisson.round())


def test_binomial_and_dirichlet_draws_have_their_means() -> None:
    (b,) = draw(aten.binomial.default, torch.full((N,), 10.0), torch.full((N,), 0.3), out=[((N,), torch.float32)])
    assert abs(b.mean() - 3) < 0.05 and abs(b.var() - 2.1) < 0.1
    concentration = torch.tensor([1.0, 2.0, 5.0]).repeat(N, 1)
    (d,) = draw(aten._sample_dirichlet.default, concentration, out=[((N, 3), torch.float32)])
    assert torch.allclose(d.sum(1), torch.ones(N), atol=1e-5)
    assert torch.allclose(d.mean(0), torch.tensor([1.0, 2.0, 5.0]) / 8, atol=0.01)


def test_the_gradient_of_a_gamma_draw_agrees_with_cpu() -> None:
    alpha = torch.tensor([0.5, 1.0, 3.0, 20.0])
    check(aten._standard_gamma_grad.default, alpha, alpha * torch.tensor([0.7, 1.2, 0.9, 1.0]), rtol=1e-3, atol=1e-4)
