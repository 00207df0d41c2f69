"""The two ops of GradScaler against CPU PyTorch."""

from __future__ import annotations

import pytest
import torch

from .check import check

aten = torch.ops.aten
INF = float("inf")


@pytest.mark.parametrize("bad", [0.0, INF, -INF, float("nan")])
@pytest.mark.parametrize("found", [0.0, 1.0])
def test_unscale_divides_by_the_scale_and_reports_infinities(bad: float, found: float) -> None:
    grads = [torch.randn(3, 2), torch.tensor([1.0, bad]), torch.randn(4).half()]
    check(aten._amp_foreach_non_finite_check_and_unscale_.default, grads, torch.tensor([found]), torch.tensor([0.25]))


@pytest.mark.parametrize("found", [0.0, 1.0])
@pytest.mark.parametrize("tracker", [0, 3])
@pytest.mark.parametrize("scale", [65536.0, 3.0e38])
def test_the_scale_backs_off_grows_and_stays_finite(scale: float, tracker: int, found: float) -> None:
    state = (torch.tensor([scale]), torch.tensor([tracker], dtype=torch.int32), torch.tensor([found]))
    check(aten._amp_update_scale_.default, *state, 2.0, 0.5, 4)
