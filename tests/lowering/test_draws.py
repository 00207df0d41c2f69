"""Every public random function draws from its distribution on the device, at the sizes of its documentation."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.nn import functional as F

from ..conftest import DEVICE

module = getattr(torch, DEVICE)
N = 20_000
# A verdict of a test that holds in 999 of 1,000 seeds; the seed is fixed, so it never changes.
LEVEL = 1e-3


def permutations(n: int, count: int) -> torch.Tensor:
    """Permutations of n, one a row: few enough that one small program draws them, again and again."""
    return torch.stack([torch.randperm(n, device=DEVICE) for _ in range(count)]).cpu()


CONTINUOUS: dict[str, tuple[Callable[[], Tensor], Callable[[np.ndarray], np.ndarray]]] = {
    "rand": (lambda: torch.rand(N, device=DEVICE), stats.uniform.cdf),
    "randn": (lambda: torch.randn(N, device=DEVICE), stats.norm.cdf),
    "uniform_": (lambda: _empty().uniform_(-2, 3), stats.uniform(-2, 5).cdf),
    "normal_": (lambda: _empty().normal_(1, 2), stats.norm(1, 2).cdf),
    "normal": (lambda: torch.normal(torch.ones(N, device=DEVICE), 0.5), stats.norm(1, 0.5).cdf),
    "exponential_": (lambda: _empty().exponential_(0.7), stats.expon(scale=1 / 0.7).cdf),
    "cauchy_": (lambda: _empty().cauchy_(1, 3), stats.cauchy(1, 3).cdf),
    "log_normal_": (lambda: _empty().log_normal_(0.2, 0.6), stats.lognorm(0.6, scale=math.exp(0.2)).cdf),
    "gamma, small": (lambda: torch._standard_gamma(torch.full((N,), 0.2, device=DEVICE)), stats.gamma(0.2).cdf),
    "gamma": (lambda: torch._standard_gamma(torch.full((N,), 3.5, device=DEVICE)), stats.gamma(3.5).cdf),
    "beta": (lambda: _distribution(torch.distributions.Beta, 0.7, 2.0), stats.beta(0.7, 2.0).cdf),
    "dirichlet": (
        lambda: torch._sample_dirichlet(torch.tensor([1.0, 2.0, 4.0], device=DEVICE).repeat(N, 1))[:, 1],
        stats.beta(2, 5).cdf,
    ),
    "student": (lambda: _distribution(torch.distributions.StudentT, 4.0), stats.t(4).cdf),
    "rrelu": (
        lambda: -F.rrelu(torch.full((N,), -1.0, device=DEVICE), 0.1, 0.4, training=True),
        stats.uniform(0.1, 0.3).cdf,
    ),
}


def _empty() -> Tensor:
    return torch.empty(N, device=DEVICE)


def _distribution(kind: Callable[..., torch.distributions.Distribution], *parameters: float) -> Tensor:
    return kind(*(torch.tensor(p, device=DEVICE) for p in parameters)).sample((N,))


@pytest.mark.parametrize("name", CONTINUOUS)
def test_a_continuous_draw_follows_its_distribution_function(name: str) -> None:
    torch.manual_seed(1)
    draw, cdf = CONTINUOUS[name]
    x = draw()
    assert x.device.type == DEVICE
    assert stats.kstest(x.double().cpu().numpy(), cdf).pvalue > LEVEL
    assert module.metrics()["fallbacks"] == {}


DISCRETE: dict[str, tuple[Callable[[], Tensor], Callable[[np.ndarray], np.ndarray]]] = {
    "bernoulli_": (lambda: _empty().bernoulli_(0.3), stats.bernoulli(0.3).pmf),
    "bernoulli": (lambda: torch.bernoulli(torch.full((N,), 0.6, device=DEVICE)), stats.bernoulli(0.6).pmf),
    "geometric_": (lambda: _empty().geometric_(0.4), stats.geom(0.4).pmf),
    "random_": (lambda: _empty().random_(2, 9), stats.randint(2, 9).pmf),
    "randint": (lambda: torch.randint(-3, 4, (N,), device=DEVICE), stats.randint(-3, 4).pmf),
    "poisson, small": (lambda: torch.poisson(torch.full((N,), 0.8, device=DEVICE)), stats.poisson(0.8).pmf),
    "poisson": (lambda: torch.poisson(torch.full((N,), 15.0, device=DEVICE)), stats.poisson(15).pmf),
    "binomial, small": (lambda: _binomial(7.0, 0.2), stats.binom(7, 0.2).pmf),
    "binomial": (lambda: _binomial(60.0, 0.4), stats.binom(60, 0.4).pmf),
    "multinomial": (
        lambda: torch.multinomial(torch.tensor([1.0, 0.0, 2.0, 5.0], device=DEVICE), N, replacement=True),
        lambda k: np.array([1, 0, 2, 5])[k.astype(int)] / 8,
    ),
    "dropout": (lambda: F.dropout(torch.ones(N, device=DEVICE), 0.25) * 0.75, stats.bernoulli(0.75).pmf),
    "randperm's places": (
        lambda: torch.cat([permutations(8, 25)[:, 3] for _ in range(20)]),
        stats.randint(0, 8).pmf,
    ),
}


def _binomial(count: float, probability: float) -> Tensor:
    return torch.binomial(torch.full((N,), count, device=DEVICE), torch.full((N,), probability, device=DEVICE))


@pytest.mark.parametrize("name", DISCRETE)
def test_a_discrete_draw_has_its_probabilities(name: str) -> None:
    torch.manual_seed(1)
    draw, pmf = DISCRETE[name]
    x = draw().double().cpu().numpy()
    values, counts = np.unique(np.rint(x), return_counts=True)
    assert np.allclose(x, np.rint(x), atol=1e-6)
    expected = pmf(values) * len(x)
    assert (expected > 0).all()
    often = expected >= 5  # below that a chi-square test does not hold; what is rarer is one class
    observed = np.append(counts[often], len(x) - counts[often].sum())
    wanted = np.append(expected[often], len(x) - expected[often].sum())
    if wanted[-1] < 5:
        observed, wanted = observed[:-1], wanted[:-1] * observed[:-1].sum() / wanted[:-1].sum()
    assert stats.chisquare(observed, wanted).pvalue > LEVEL
    assert module.metrics()["fallbacks"] == {}


def test_multinomial_without_replacement_draws_the_first_by_weight_and_the_second_by_what_is_left() -> None:
    torch.manual_seed(1)
    weights = [1.0, 2.0, 5.0]
    x = torch.multinomial(torch.tensor(weights, device=DEVICE).repeat(N, 1), 2).cpu()
    counts = torch.bincount(x[:, 0] * 3 + x[:, 1], minlength=9).reshape(3, 3)
    pairs = [(i, j) for i in range(3) for j in range(3) if i != j]
    observed = [counts[i, j].item() for i, j in pairs]
    wanted = [N * weights[i] / 8 * weights[j] / (8 - weights[i]) for i, j in pairs]
    assert counts.diagonal().sum() == 0
    assert stats.chisquare(observed, wanted).pvalue > LEVEL


def test_a_permutation_is_uniform() -> None:
    torch.manual_seed(1)
    orders = torch.cat([permutations(4, 24) for _ in range(20)])
    _, counts = orders.unique(dim=0, return_counts=True)
    assert len(counts) == 24 and stats.chisquare(counts.numpy()).pvalue > LEVEL


def test_neighbouring_and_repeated_draws_are_independent() -> None:
    torch.manual_seed(1)
    first, second = torch.randn(N, device=DEVICE).cpu(), torch.randn(N, device=DEVICE).cpu()
    for a, b in ((first[1:], first[:-1]), (first, second)):
        assert stats.pearsonr(a.numpy(), b.numpy()).pvalue > LEVEL
