import pytest
import torch

from .check import check

aten = torch.ops.aten
NORMS = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, float("inf")]


@pytest.mark.parametrize("p", NORMS)
def test_cdist_and_its_gradient_agree_with_cpu(p: float) -> None:
    a, b = torch.randn(2, 4, 3), torch.randn(2, 5, 3)
    b[:, 0] = a[:, 1]
    check(aten._cdist_forward.default, a, b, p, None, rtol=1e-4, atol=1e-5)
    distance = aten._cdist_forward(a, b, p, None)
    check(aten._cdist_backward.default, torch.randn(2, 4, 5), a, b, p, distance, rtol=1e-4, atol=1e-4)


def test_the_gradient_of_no_pairs_has_the_shape_of_its_tensor() -> None:
    for empty in (torch.randn(4, 5), torch.randn(1, 4, 5)):
        pairs = torch.zeros(0, 4, 3)
        check(aten._cdist_backward.default, pairs, empty, torch.randn(0, 3, 5), 2.0, pairs)


@pytest.mark.parametrize("mode", [None, 0, 1, 2])
def test_euclidean_distances_agree_with_cpu_by_product_and_by_difference(mode: int | None) -> None:
    check(aten._cdist_forward.default, torch.randn(30, 8), torch.randn(7, 8), 2.0, mode, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("p", NORMS)
def test_pdist_and_its_gradient_agree_with_cpu(p: float) -> None:
    x = torch.randn(6, 4)
    x[3] = x[1]
    check(aten._pdist_forward.default, x, p, rtol=1e-4, atol=1e-5)
    distance = aten._pdist_forward(x, p)
    check(aten._pdist_backward.default, torch.randn(15), x, p, distance, rtol=1e-4, atol=1e-4)


def test_pdist_names_every_pair_of_many_rows_once() -> None:
    check(aten._pdist_forward.default, torch.arange(300.0).square()[:, None], 1.0)
