import itertools

import pytest
import torch

from .check import check

aten = torch.ops.aten
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


@pytest.mark.parametrize(("mode", "padding"), list(itertools.product([0, 1, 2], [0, 1, 2])))
def test_grid_sampler_2d_and_its_gradient_agree_with_cpu(mode: int, padding: int) -> None:
    align = (mode + padding) % 2 == 0  # every mode and every padding meets both
    x, grid = torch.randn(2, 3, 5, 6), torch.rand(2, 4, 3, 2) * 5 - 2.5
    check(aten.grid_sampler_2d.default, x, grid, mode, padding, align, **CLOSE)
    grad = torch.randn(2, 3, 4, 3)
    check(aten.grid_sampler_2d_backward.default, grad, x, grid, mode, padding, align, [True, True], **CLOSE)


@pytest.mark.parametrize(("mode", "padding"), list(itertools.product([0, 1], [0, 1, 2])))
def test_grid_sampler_3d_and_its_gradient_agree_with_cpu(mode: int, padding: int) -> None:
    x, grid = torch.randn(2, 3, 4, 5, 6), torch.rand(2, 2, 3, 2, 3) * 5 - 2.5
    check(aten.grid_sampler_3d.default, x, grid, mode, padding, padding == 1, **CLOSE)
    grad = torch.randn(2, 3, 2, 3, 2)
    check(aten.grid_sampler_3d_backward.default, grad, x, grid, mode, padding, padding == 1, [True, True], **CLOSE)


def test_grid_sampler_gives_only_the_grid_gradient_when_the_input_needs_none() -> None:
    x, grid = torch.randn(2, 3, 5, 6), torch.rand(2, 4, 3, 2) * 2 - 1
    grad = torch.randn(2, 3, 4, 3)
    check(aten.grid_sampler_2d_backward.default, grad, x, grid, 0, 0, False, [False, True], **CLOSE)
