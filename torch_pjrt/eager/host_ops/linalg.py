"""Least squares, where which results there are depends on ranks, and determinants, where strides decide."""

from __future__ import annotations

import torch
from torch import Tensor

from .table import host_op


@host_op("aten::linalg_lstsq")
def lstsq(
    self: Tensor, b: Tensor, rcond: float | None = None, driver: str | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(solution, residuals, rank, singular values), each empty where its driver does not give it.

    "gels" takes full rank for granted and needs one QR. The others (gelsy is the CPU's default) give the solution of
    least norm; here all of them go through the SVD.
    """
    _check(self, b, driver)
    m, n = self.shape[-2:]
    vector = self.dim() == b.dim() + 1 and b.shape == self.shape[:-1]
    rhs = b.unsqueeze(-1) if vector else b
    batch = torch.broadcast_shapes(self.shape[:-2], rhs.shape[:-2])
    a, rhs = self.expand(*batch, m, n), rhs.expand(*batch, m, rhs.size(-1))
    rank, values = torch.empty(0, dtype=torch.int64, device=self.device), self.new_empty(0).real
    if driver == "gels":
        solution = _full_rank(a, rhs)
    else:
        u, s, vh = torch.linalg.svd(a, full_matrices=False)
        limit = max(m, n) * torch.finfo(self.dtype).eps if rcond is None else rcond
        kept = s > limit * s[..., :1] if s.size(-1) else torch.zeros_like(s, dtype=torch.bool)
        inverse = torch.where(kept, 1 / s, 0)
        solution = vh.mH @ (inverse.unsqueeze(-1) * (u.mH @ rhs))
        rank = kept.sum(-1)
        if driver in ("gelsd", "gelss"):
            values = s
    residuals = self.new_empty(0).real
    if m > n and driver is not None and driver != "gelsy" and (driver == "gels" or bool((rank == n).all().item())):
        residuals = (a @ solution - rhs).abs().square().sum(-2)
    return solution.squeeze(-1) if vector else solution, residuals, rank, values


@host_op("aten::_linalg_det")
def det(A: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(determinant, LU, pivots). PyTorch factors the transpose of a real, contiguous matrix, and its autograd formulas
    take it that the device has done the same: what a node, which sees values without strides, could not tell.
    """
    factors, pivots = _kept_factorization(A)
    return factors.diagonal(dim1=-2, dim2=-1).prod(-1) * _parity(pivots, A.dtype), factors, pivots


@host_op("aten::_linalg_slogdet")
def slogdet(A: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(sign, logarithm of the absolute value, LU, pivots)."""
    factors, pivots = _kept_factorization(A)
    diagonal = factors.diagonal(dim1=-2, dim2=-1)
    return diagonal.sgn().prod(-1) * _parity(pivots, A.dtype), diagonal.abs().log().sum(-1), factors, pivots


def _kept_factorization(a: Tensor) -> tuple[Tensor, Tensor]:
    if a.dim() < 2 or a.size(-1) != a.size(-2):
        name = "linalg.det: A must be batches of square matrices"
        raise RuntimeError(f"{name}, but they are {' by '.join(map(str, a.shape[-2:]))} matrices")
    factors, pivots, _ = torch.linalg.lu_factor_ex(a.mT if a.is_contiguous() and not a.is_complex() else a)
    return factors, pivots


def _parity(pivots: Tensor, dtype: torch.dtype) -> Tensor:
    """The determinant of the permutation: -1 for each row that a pivot moved."""
    stays = torch.arange(1, pivots.size(-1) + 1, dtype=pivots.dtype, device=pivots.device)
    return (1 - 2 * ((pivots != stays).sum(-1) % 2)).to(dtype)


def _full_rank(a: Tensor, b: Tensor) -> Tensor:
    if a.size(-2) >= a.size(-1):
        q, r = torch.linalg.qr(a)
        return torch.linalg.solve_triangular(r, q.mH @ b, upper=True)
    q, r = torch.linalg.qr(a.mH)
    return q @ torch.linalg.solve_triangular(r.mH, b, upper=False)


def _check(a: Tensor, b: Tensor, driver: str | None) -> None:
    if a.dim() < 2:
        raise RuntimeError("torch.linalg.lstsq: input must have at least 2 dimensions.")
    if b.dim() < 1:
        raise RuntimeError("torch.linalg.lstsq: other must have at least 1 dimension.")
    if a.dim() - b.dim() not in (-1, 0, 1) and b.dim() > a.dim():
        raise RuntimeError("torch.linalg.lstsq: input.dim() must be greater or equal to other.dim()")
    if a.dtype != b.dtype:
        raise RuntimeError("torch.linalg.lstsq: Expected input and other to have the same dtype")
    if driver not in (None, "gels", "gelsy", "gelsd", "gelss"):
        raise RuntimeError(
            f"torch.linalg.lstsq: parameter `driver` should be one of (gels, gelsy, gelsd, gelss), got {driver}"
        )
    rows = b.size(-1) if a.dim() == b.dim() + 1 and b.shape == a.shape[:-1] else b.size(-2) if b.dim() > 1 else -1
    if rows != a.size(-2):
        raise RuntimeError(
            f"torch.linalg.lstsq: input.size(-2) should match other.size(-2), got {list(a.shape)} and {list(b.shape)}"
        )
