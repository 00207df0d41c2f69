"""Counts and histograms are CPU PyTorch's, made on the device."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ...conftest import DEVICE
from .test_unique import same

module = getattr(torch, DEVICE)


@pytest.mark.parametrize("weights", [None, torch.float16, torch.float32, torch.int64])
def test_bincount(weights: torch.dtype | None) -> None:
    x = torch.tensor([1, 4, 1, 0, 4])
    w = None if weights is None else torch.tensor([1.0, 2, 3, 4, 5]).to(weights)
    for t in (x, x.int(), x.to(torch.uint8)):
        same(lambda i: torch.bincount(i, None if w is None else w.to(i.device)), t, syncs=1)
        same(lambda i: torch.bincount(i, None if w is None else w.to(i.device), minlength=9), t)
    same(lambda i: torch.bincount(i, minlength=3), torch.tensor([], dtype=torch.int64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_histc(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 50, dtype=dtype)
    same(lambda t: torch.histc(t, 7), x, syncs=1)
    same(lambda t: torch.histc(t, 10, -1, 1), x, syncs=0)
    same(lambda t: torch.histc(t, 4), torch.full((3,), 2.0, dtype=dtype))
    same(lambda t: torch.histc(t, 4), torch.zeros(0, dtype=dtype))
    same(lambda t: torch.histc(t, 5, 0, 10), torch.tensor([0.0, 2, 4, 10, 11, -1, math.nan], dtype=dtype))
    out = torch.empty(0, dtype=dtype, device=DEVICE)
    assert torch.histc(x.to(DEVICE), 7, out=out) is out
    torch.testing.assert_close(out.cpu(), torch.histc(x, 7))


@pytest.mark.parametrize("density", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_histogram_of_a_count_and_of_edges(weighted: bool, density: bool) -> None:
    torch.manual_seed(0)
    x, w, edges = torch.randn(60), torch.rand(60), torch.tensor([-1.5, -0.2, 0.0, 0.9, 1.0])

    def options(device: torch.device) -> dict[str, Any]:
        return {"density": density, "weight": w.to(device) if weighted else None}

    same(lambda t: tuple(torch.histogram(t, 6, **options(t.device))), x)
    same(lambda t: tuple(torch.histogram(t, 6, range=(-1.0, 1.5), **options(t.device))), x, syncs=0)
    same(lambda t: tuple(torch.histogram(t, edges.to(t.device), **options(t.device))), x, syncs=0)


@pytest.mark.parametrize("density", [False, True])
def test_histogramdd(density: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(40, 2, dtype=torch.float64)

    def flat(h: Any) -> tuple[torch.Tensor, ...]:
        return h.hist, *h.bin_edges

    same(lambda t: flat(torch.histogramdd(t, bins=[3, 4], density=density)), x)
    same(lambda t: flat(torch.histogramdd(t, bins=[3, 4], range=[-1.0, 1.0, -2.0, 2.0], density=density)), x)
    edges = [torch.tensor([-1.0, 0, 2], dtype=torch.float64), torch.tensor([-2.0, 1], dtype=torch.float64)]
    same(lambda t: flat(torch.histogramdd(t, bins=[e.to(t.device) for e in edges], density=density)), x)


BAD: dict[str, Callable[[str], Any]] = {
    "negative numbers": lambda d: torch.bincount(torch.tensor([-1], device=d)),
    "floats counted": lambda d: torch.bincount(torch.tensor([1.0], device=d)),
    "two dimensions": lambda d: torch.bincount(torch.tensor([[1]], device=d)),
    "a negative length": lambda d: torch.bincount(torch.tensor([1], device=d), minlength=-1),
    "too few weights": lambda d: torch.bincount(torch.tensor([1, 2], device=d), torch.ones(1, device=d)),
    "no finite range": lambda d: torch.histc(torch.tensor([1.0, math.nan], device=d)),
    "no bins": lambda d: torch.histc(torch.ones(1, device=d), bins=0),
    "a range upside down": lambda d: torch.histc(torch.ones(1, device=d), min=2, max=1),
    "a histogram's too": lambda d: torch.histogram(torch.ones(1, device=d), bins=2, range=(2.0, 1.0)),
    "weights of another shape": lambda d: torch.histogram(torch.ones(1, device=d), 2, weight=torch.ones(2, device=d)),
}


@pytest.mark.parametrize("name", BAD)
def test_what_the_cpu_refuses_is_refused(name: str) -> None:
    with pytest.raises(Exception) as expected:
        BAD[name]("cpu")
    with pytest.raises(expected.type):
        BAD[name](DEVICE)
