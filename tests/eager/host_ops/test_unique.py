"""unique and its kin give CPU PyTorch's results on the device, with one number read from it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ...conftest import DEVICE

module = getattr(torch, DEVICE)
SAMPLES = {
    "integers": torch.tensor([[3, 1, 2], [1, 3, 3]]),
    "floats": torch.tensor([2.0, -1.0, 2.0, math.inf, 0.5, -1.0]),
    "bools": torch.tensor([True, False, True]),
    "bytes": torch.tensor([7, 7, 0], dtype=torch.uint8),
    "half": torch.tensor([2.0, 1.0, 2.0], dtype=torch.bfloat16),
    "one": torch.tensor(5),
    "nothing": torch.zeros(0),
    "transposed": torch.tensor([[3, 1, 2], [1, 3, 3]]).T,
}


def same(fn: Callable[[Tensor], Any], x: Tensor, syncs: int | None = None) -> None:
    expected = fn(x)
    given = x.to(DEVICE)
    module.synchronize()
    module.reset_metrics()
    got = fn(given)
    metrics = module.metrics()
    assert metrics["fallbacks"] == {}
    if syncs is not None:
        assert sum(metrics["host_syncs"].values()) == syncs, metrics["host_syncs"]
    for g, e in zip(*(r if isinstance(r, tuple) else (r,) for r in (got, expected)), strict=True):
        assert g.device.type == DEVICE
        torch.testing.assert_close(g.cpu(), e, check_stride=False, equal_nan=True)


@pytest.mark.parametrize("name", SAMPLES)
def test_values_inverse_and_counts_are_the_cpus(name: str) -> None:
    x = SAMPLES[name]
    same(lambda t: t.unique(return_inverse=True, return_counts=True), x)
    same(lambda t: t.unique_consecutive(return_inverse=True, return_counts=True), x)
    same(lambda t: t.unique(), x, syncs=1 if x.numel() else 0)


def test_nans_are_all_distinct() -> None:
    same(torch.unique, torch.tensor([math.nan, 1.0, math.nan]))


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_slices_are_in_lexicographic_order(dim: int) -> None:
    torch.manual_seed(0)
    x = torch.randint(0, 2, (6, 5, 3))
    x[4] = x[1]
    same(lambda t: t.unique(dim=dim, return_inverse=True, return_counts=True), x, syncs=1)
    x = x.sort(dim).values
    same(lambda t: t.unique_consecutive(dim=dim, return_inverse=True, return_counts=True), x, syncs=1)


def test_float_rows_and_no_rows_too() -> None:
    same(lambda t: t.unique(dim=0), torch.tensor([[1.5, -2.0], [1.5, -3.0], [1.5, -2.0]]))
    same(lambda t: t.unique(dim=0), torch.zeros(0, 3))


def test_what_the_cpu_refuses_is_refused() -> None:
    for device in ("cpu", DEVICE):
        with pytest.raises(RuntimeError, match="0 sized dimensions"):
            torch.unique(torch.zeros(2, 0, device=device), dim=0)
        with pytest.raises((RuntimeError, NotImplementedError)):
            torch.unique(torch.zeros(2, dtype=torch.complex64, device=device))
