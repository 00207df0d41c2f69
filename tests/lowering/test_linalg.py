"""Factorizations and solves against CPU PyTorch; where signs are free, against what they must multiply to."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from .check import check, lowered

aten = torch.ops.aten
TOLERANCE: dict[torch.dtype, float] = {torch.float32: 2e-4, torch.float64: 1e-9, torch.complex64: 2e-4}
DTYPES = list(TOLERANCE)


def _well(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """A random well-conditioned matrix."""
    torch.manual_seed(0)
    return torch.randn(*shape, dtype=dtype) + 3 * torch.eye(*shape[-2:], dtype=dtype)


def _positive(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    a = _well(*shape, dtype=dtype)
    return a @ a.mH + torch.eye(shape[-1], dtype=dtype)


def _close(dtype: torch.dtype) -> dict[str, float]:
    return {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("upper", [False, True])
def test_cholesky_agrees_and_reads_one_triangle(upper: bool, dtype: torch.dtype) -> None:
    a = _positive(2, 3, 3, dtype=dtype)
    half = a.triu() if upper else a.tril()
    check(aten.linalg_cholesky_ex.default, half, upper=upper, **_close(dtype))
    factor = torch.linalg.cholesky(a, upper=upper)
    check(aten.cholesky.default, a, upper, **_close(dtype))
    check(aten.cholesky_solve.default, torch.randn(3, 2, dtype=dtype), factor[0], upper, **_close(dtype))
    check(aten.cholesky_inverse.default, factor, upper, **_close(dtype))


def test_cholesky_reports_a_matrix_that_is_not_positive_definite() -> None:
    ours, _ = lowered(aten.linalg_cholesky_ex.default, torch.stack([torch.eye(2), -torch.eye(2)]))
    assert ours[1].dtype == torch.int32
    assert (ours[1] != 0).tolist() == [False, True]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3, 3), (2, 4, 3), (2, 3, 5)])
def test_lu_and_its_unpacking_agree(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    a = _well(*shape, dtype=dtype)
    check(aten.linalg_lu_factor_ex.default, a, **_close(dtype))
    check(aten.linalg_lu.default, a, **_close(dtype))
    factors, pivots = torch.linalg.lu_factor(a)
    check(aten.lu_unpack.default, factors, pivots, **_close(dtype))
    check(aten.lu_unpack.default, factors, pivots, True, False, **_close(dtype))
    check(aten.lu_unpack.default, factors, pivots, False, True, **_close(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("adjoint", [True, False])
def test_lu_solve_agrees(left: bool, adjoint: bool, dtype: torch.dtype) -> None:
    factors, pivots = torch.linalg.lu_factor(_well(2, 3, 3, dtype=dtype).flip(-2))
    b = torch.randn(3, 3, dtype=dtype)
    check(aten.linalg_lu_solve.default, factors, pivots, b, left=left, adjoint=adjoint, **_close(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_solve_inverse_and_determinants_agree(dtype: torch.dtype) -> None:
    a = _well(2, 3, 3, dtype=dtype).flip(-2).contiguous()
    close = _close(dtype)
    check(aten._linalg_solve_ex.default, a, torch.randn(2, 3, 4, dtype=dtype), **close)
    check(aten._linalg_solve_ex.default, a, torch.randn(2, 3, dtype=dtype), **close)
    check(aten._linalg_solve_ex.default, a[0], torch.randn(4, 3, dtype=dtype), left=False, **close)
    check(aten.linalg_inv_ex.default, a, **close)
    check(aten._linalg_det.default, a, **close)
    check(aten._linalg_slogdet.default, a, **close)


def test_a_singular_matrix_has_no_determinant_and_an_info() -> None:
    singular = torch.tensor([[1.0, 2.0], [2.0, 4.0]])
    check(aten._linalg_det.default, singular)
    ours, _ = lowered(aten.linalg_inv_ex.default, singular)
    assert ours[1].item() == 2


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("flag", [False, True])
def test_triangular_solves_agree(upper: bool, flag: bool, dtype: torch.dtype) -> None:
    a, close = _well(2, 3, 3, dtype=dtype), _close(dtype)
    b, right = torch.randn(3, 2, dtype=dtype), torch.randn(2, 4, 3, dtype=dtype)
    check(aten.linalg_solve_triangular.default, a, b, upper=upper, unitriangular=flag, **close)
    check(aten.linalg_solve_triangular.default, a, right, upper=upper, left=False, unitriangular=flag, **close)
    check(aten.triangular_solve.default, torch.randn(3, 2, dtype=dtype), a, upper, not flag, flag, **close)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 4)])
@pytest.mark.parametrize("mode", ["reduced", "complete", "r"])
def test_qr_agrees(mode: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    check(aten.linalg_qr.default, _well(*shape, dtype=dtype), mode, **_close(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_householder_ops_agree(dtype: torch.dtype) -> None:
    a, close = _well(4, 3, dtype=dtype), _close(dtype)
    check(aten.geqrf.default, a, **close)
    packed, tau = torch.geqrf(a)
    check(aten.linalg_householder_product.default, packed, tau, **close)
    for left, transpose in ((True, False), (True, True), (False, False)):
        other = torch.randn((4, 2) if left else (2, 4), dtype=dtype)
        check(aten.ormqr.default, packed, tau, other, left, transpose, **close)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 5)])
def test_svd_multiplies_back_and_has_pytorchs_values(shape: tuple[int, ...], full: bool, dtype: torch.dtype) -> None:
    a = _well(*shape, dtype=dtype)
    (u, s, vh), want = lowered(aten._linalg_svd.default, a, full)
    k = min(shape[-2:])
    torch.testing.assert_close((u[..., :k] * s[..., None, :]) @ vh[..., :k, :], a, **_close(dtype))
    torch.testing.assert_close(s, want[1], **_close(dtype))
    assert (u.shape, vh.shape) == (want[0].shape, want[2].shape)
    check(aten._linalg_svd.default, a, full, False, **_close(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("uplo", ["L", "U"])
def test_eigh_diagonalizes_the_triangle_it_is_given(uplo: str, dtype: torch.dtype) -> None:
    a = _positive(2, 3, 3, dtype=dtype)
    half = a.tril() if uplo == "L" else a.triu()
    (values, vectors), want = lowered(aten._linalg_eigh.default, half, uplo)
    torch.testing.assert_close(values, want[0], **_close(dtype))
    torch.testing.assert_close(a @ vectors, vectors * values[..., None, :], **_close(dtype))
    check(aten._linalg_eigh.default, half, uplo, False, **_close(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_eig_gives_eigenpairs(dtype: torch.dtype) -> None:
    a = _well(2, 3, 3, dtype=dtype)
    values, vectors = lowered(aten.linalg_eig.default, a)[0]
    torch.testing.assert_close(a.to(vectors.dtype) @ vectors, vectors * values[..., None, :], **_close(dtype))
    (ours,), (want,) = lowered(aten._linalg_eigvals.default, a)
    nearest = (ours[..., :, None] - want[..., None, :]).abs().amin(-1)
    torch.testing.assert_close(nearest, torch.zeros_like(nearest), **_close(dtype))


@pytest.mark.parametrize("shape", [(3, 3), (2, 4, 4), (2, 1, 1), (0, 3, 3)])
def test_matrix_exp_agrees(shape: tuple[int, ...]) -> None:
    check(aten.linalg_matrix_exp.default, _well(*shape, dtype=torch.float32), rtol=1e-4, atol=1e-4)


def test_matrix_exp_of_a_large_matrix_is_as_near_to_float64_as_the_cpus() -> None:
    x = torch.randn(4, 5, 5, generator=torch.Generator().manual_seed(0)) * 5
    exact = torch.linalg.matrix_exp(x.double())
    (got,), (want,) = lowered(aten.linalg_matrix_exp.default, x)
    assert (got - exact).abs().max() <= 2 * (want - exact).abs().max() + 1e-5 * exact.abs().max()


@pytest.mark.parametrize("options", [{}, {"rtol": torch.tensor(0.3)}, {"atol": torch.tensor(1.0)}])
def test_pinv_drops_small_singular_values(options: dict[str, Any]) -> None:
    for a, hermitian in ((_well(2, 4, 3), False), (_positive(3, 3), True)):
        (ours,), (want,) = lowered(aten.linalg_pinv.atol_rtol_tensor, a, hermitian=hermitian, **options)
        torch.testing.assert_close(ours, want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.complex64, torch.bfloat16])
def test_cross_broadcasts(dtype: torch.dtype) -> None:
    a, b = (torch.randn(2, 3, 4) * 5).to(dtype), (torch.randn(1, 3, 4) * 5).to(dtype)
    loose = {"rtol": 0.05, "atol": 0.2} if dtype == torch.bfloat16 else {}
    check(aten.linalg_cross.default, a, b, dim=-2, **loose)
