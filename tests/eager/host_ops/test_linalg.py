"""Least squares on the device agree with CPU PyTorch's, driver by driver."""

from __future__ import annotations

import pytest
import torch

from ...conftest import DEVICE

module = getattr(torch, DEVICE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
@pytest.mark.parametrize("driver", [None, "gels", "gelsy", "gelsd", "gelss"])
@pytest.mark.parametrize("shape", [(6, 3), (3, 6), (2, 5, 4)])
def test_every_driver_gives_the_cpus_results(shape: tuple[int, ...], driver: str | None, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(shape, dtype=dtype), torch.randn(*shape[:-1], 2, dtype=dtype)
    expected = torch.linalg.lstsq(a, b, driver=driver)
    got = torch.linalg.lstsq(a.to(DEVICE), b.to(DEVICE), driver=driver)
    loose = {"rtol": 1e-7, "atol": 1e-9} if dtype == torch.float64 else {"rtol": 2e-3, "atol": 2e-4}
    for name in ("solution", "residuals", "rank", "singular_values"):
        torch.testing.assert_close(getattr(got, name).cpu(), getattr(expected, name), check_stride=False, **loose)
    assert module.metrics()["fallbacks"] == {}


def test_the_parts_that_have_gradients_are_the_cpus() -> None:
    a, b = torch.randn(2, 3, requires_grad=True), torch.randn(2, 3)
    for driver in ("gels", "gelsd"):
        ours, theirs = (torch.linalg.lstsq(a.to(d), b.to(d), driver=driver) for d in (DEVICE, "cpu"))
        assert [t.requires_grad for t in ours] == [t.requires_grad for t in theirs]


def test_a_matrix_of_lower_rank_has_the_solution_of_least_norm() -> None:
    a = torch.tensor([[1.0, 2, 3], [2, 4, 6], [1, 0, 1], [0, 1, 1]], dtype=torch.float64)
    b = torch.tensor([1.0, 2, 3, 4], dtype=torch.float64)
    expected = torch.linalg.lstsq(a, b.unsqueeze(1))
    got = torch.linalg.lstsq(a.to(DEVICE), b.to(DEVICE).unsqueeze(1))
    assert got.rank.item() == expected.rank.item() == 2
    torch.testing.assert_close(got.solution.cpu(), expected.solution)


def test_gradients_flow() -> None:
    torch.manual_seed(0)
    a, b = torch.randn(5, 3, dtype=torch.float64), torch.randn(5, 2, dtype=torch.float64)

    def gradients(device: str) -> tuple[torch.Tensor, ...]:
        x, y = a.to(device).requires_grad_(), b.to(device).requires_grad_()
        return torch.autograd.grad(torch.linalg.lstsq(x, y).solution.square().sum(), (x, y))

    for got, want in zip(gradients(DEVICE), gradients("cpu"), strict=True):
        torch.testing.assert_close(got.cpu(), want)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("layout", ["contiguous", "transposed", "sliced"])
def test_determinants_and_their_gradients_agree_whatever_the_strides(layout: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    base = torch.randn(2, 4, 8, dtype=dtype)

    def matrix(device: str) -> tuple[torch.Tensor, torch.Tensor]:
        x = base.to(device).requires_grad_()
        square = x[..., :4] if layout == "sliced" else x[..., :4].contiguous()
        return x, square.mT if layout == "transposed" else square

    def run(device: str) -> list[torch.Tensor]:
        x, square = matrix(device)
        sign, logabsdet = torch.linalg.slogdet(square)
        det = torch.linalg.det(square)
        (first,) = torch.autograd.grad(det.abs().sum(), x, retain_graph=True)
        (second,) = torch.autograd.grad(logabsdet.sum(), x)
        _, factors, pivots = torch.ops.aten._linalg_det(square.detach())
        return [t.detach().cpu() for t in (sign, logabsdet, det, first, second, factors, pivots)]

    for got, want in zip(run(DEVICE), run("cpu"), strict=True):
        torch.testing.assert_close(got, want, check_stride=False)
