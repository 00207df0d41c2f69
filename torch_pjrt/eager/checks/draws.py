"""Refusals of random draws: parameters without a meaning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .table import NUMBER_CHECKS, refuse_for


@refuse_for("multinomial")
def _check_multinomial(given: Mapping[str, Any]) -> None:
    samples, choices = given["num_samples"], given["self"].shape[-1:]
    if samples <= 0:
        raise RuntimeError("cannot sample n_sample <= 0 samples")
    if choices and choices[0] == 0:
        raise RuntimeError("invalid multinomial distribution (sum of probabilities <= 0)")
    if choices and not given["replacement"] and samples > choices[0]:
        raise RuntimeError("cannot sample n_sample > prob_dist.size(-1) samples without replacement")


@refuse_for("random")
def _check_random(given: Mapping[str, Any]) -> None:
    low, high = given.get("from", 0), given.get("to")
    if high is not None and low >= high:
        raise RuntimeError(f"random_ expects 'from' to be less than 'to', but got from={low} >= to={high}")


@refuse_for("uniform", table=NUMBER_CHECKS)
def _check_uniform(given: Mapping[str, Any]) -> None:
    if given["from"] > given["to"]:
        raise RuntimeError(
            f"uniform_ expects to return a [from, to) range, but found from={given['from']} > to={given['to']}"
        )


@refuse_for("bernoulli", table=NUMBER_CHECKS)
def _check_bernoulli(given: Mapping[str, Any]) -> None:
    p = given.get("p")
    if isinstance(p, float) and not 0 <= p <= 1:
        raise RuntimeError(f"bernoulli_ expects p to be in [0, 1], but got p={p}")


@refuse_for("geometric", table=NUMBER_CHECKS)
def _check_geometric(given: Mapping[str, Any]) -> None:
    if not 0 < given["p"] < 1:
        raise RuntimeError(f"geometric_ expects p to be in (0, 1), but got p={given['p']}")


@refuse_for("normal", "normal_functional", table=NUMBER_CHECKS)
def _check_normal(given: Mapping[str, Any]) -> None:
    std = given["std"]
    if isinstance(std, float) and not std >= 0:
        raise RuntimeError(f"normal expects std >= 0.0, but found std {std}")


@refuse_for("exponential", "cauchy", "log_normal", table=NUMBER_CHECKS)
def _check_positive(given: Mapping[str, Any]) -> None:
    name = next(n for n in ("lambd", "sigma", "std") if n in given)
    if not given[name] > 0:
        raise RuntimeError(f"expected {name} > 0.0, but found {name}={given[name]}")
