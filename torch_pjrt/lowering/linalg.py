"""Factorizations, solves, determinants and spectra, through JAX's (LAPACK on CPU, XLA's own on accelerators).

Pivots are LAPACK's, from 1, int32. An `info` is 0 where all went well, else the 1-based place of the trouble.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
from jax import Array, lax
from jax.lax import linalg as lapack

from .dtypes import opmath, promote, to_numpy
from .registry import lower
from .shape import diagonal


@lower("linalg_cholesky_ex")
def cholesky_ex(self: Array, *, upper: bool = False, check_errors: bool = False) -> tuple[Array, Array]:
    """JAX gives NaN for a matrix that is not positive-definite: `info` is then the first NaN of the diagonal."""
    factor = cholesky(self, upper)
    failed = jnp.isnan(_diagonal(factor))
    return factor, _first(failed)


@lower("cholesky")
def cholesky(self: Array, upper: bool = False) -> Array:
    if upper:
        return _adjoint(lapack.cholesky(_adjoint(self), symmetrize_input=False))
    return lapack.cholesky(self, symmetrize_input=False)


@lower("cholesky_solve")
def cholesky_solve(self: Array, input2: Array, upper: bool = False) -> Array:
    factor = _adjoint(input2) if upper else input2
    half = _triangular(factor, self, lower=True)
    return _triangular(factor, half, lower=True, adjoint=True)


@lower("cholesky_inverse")
def cholesky_inverse(self: Array, upper: bool = False) -> Array:
    return cholesky_solve(jnp.broadcast_to(jnp.eye(self.shape[-1], dtype=self.dtype), self.shape), self, upper)


@lower("linalg_lu_factor_ex")
def lu_factor_ex(A: Array, *, pivot: bool = True, check_errors: bool = False) -> tuple[Array, Array, Array]:
    if not pivot:
        raise NotImplementedError("linalg_lu_factor_ex(pivot=False): XLA's LU always pivots")
    lu, pivots, _ = lapack.lu(A)
    return lu, pivots + 1, _first(_diagonal(lu) == 0)


@lower("linalg_lu")
def lu(A: Array, *, pivot: bool = True) -> tuple[Array, Array, Array]:
    packed, pivots, _ = lu_factor_ex(A, pivot=pivot)
    return lu_unpack(packed, pivots)


@lower("lu_unpack")
def lu_unpack(
    LU_data: Array, LU_pivots: Array, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[Array, Array, Array]:
    rows, columns = LU_data.shape[-2:]
    k = min(rows, columns)
    p = lower_part = upper_part = jnp.zeros((0,), LU_data.dtype)
    if unpack_pivots:
        order = lapack.lu_pivots_to_permutation(LU_pivots - 1, rows)
        p = lax.broadcasted_iota(order.dtype, (*order.shape[:-1], rows, rows), order.ndim - 1) == order[..., None, :]
        p = p.astype(LU_data.dtype)
    if unpack_data:
        lower_part = jnp.tril(LU_data[..., :, :k], -1) + jnp.eye(rows, k, dtype=LU_data.dtype)
        upper_part = jnp.triu(LU_data[..., :k, :])
    return p, lower_part, upper_part


@lower("linalg_lu_solve")
def lu_solve(LU: Array, pivots: Array, B: Array, *, left: bool = True, adjoint: bool = False) -> Array:
    if not left:  # X A = B is A^H X^H = B^H
        return _adjoint(lu_solve(LU, pivots, _adjoint(B), adjoint=not adjoint))
    order = lapack.lu_pivots_to_permutation(pivots - 1, LU.shape[-1])
    batch = jnp.broadcast_shapes(LU.shape[:-2], B.shape[:-2])
    order = jnp.broadcast_to(order, (*batch, order.shape[-1]))[..., None]
    B = jnp.broadcast_to(B, (*batch, *B.shape[-2:]))
    if adjoint:
        half = _triangular(LU, B, lower=False, adjoint=True)
        half = _triangular(LU, half, lower=True, adjoint=True, unit=True)
        return jnp.take_along_axis(half, jnp.argsort(order, axis=-2), -2, mode="promise_in_bounds")
    half = jnp.take_along_axis(B, order, -2, mode="promise_in_bounds")
    return _triangular(LU, _triangular(LU, half, lower=True, unit=True), lower=False)


@lower("_linalg_solve_ex")
def solve_ex(A: Array, B: Array, *, left: bool = True, check_errors: bool = False) -> tuple[Array, Array, Array, Array]:
    vector = B.ndim == 1 or (A.ndim - 1 == B.ndim and B.shape == A.shape[:-1])
    rhs = B[..., None] if vector else B
    factors, pivots, info = lu_factor_ex(A)
    result = lu_solve(factors, pivots, rhs, left=left)
    return result[..., 0] if vector else result, factors, pivots, info


@lower("linalg_inv_ex")
def inv_ex(A: Array, *, check_errors: bool = False) -> tuple[Array, Array]:
    factors, pivots, info = lu_factor_ex(A)
    return lu_solve(factors, pivots, jnp.broadcast_to(jnp.eye(A.shape[-1], dtype=A.dtype), A.shape)), info


@lower("_linalg_det")
def det(A: Array) -> tuple[Array, Array, Array]:
    factors, pivots = _kept_factorization(A)
    values = _diagonal(factors)
    return jnp.prod(values, axis=-1) * _sign_of(pivots, A), factors, pivots


@lower("_linalg_slogdet")
def slogdet(A: Array) -> tuple[Array, Array, Array, Array]:
    factors, pivots = _kept_factorization(A)
    values = _diagonal(factors)
    sign = jnp.prod(jnp.sign(values), axis=-1) * _sign_of(pivots, A)
    return sign, jnp.sum(jnp.log(jnp.abs(values)), axis=-1), factors, pivots


@lower("linalg_solve_triangular")
def solve_triangular(self: Array, B: Array, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Array:
    return _triangular(self, B, lower=not upper, left=left, unit=unitriangular)


@lower("triangular_solve")
def triangular_solve(
    self: Array, A: Array, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Array, Array]:
    batch = jnp.broadcast_shapes(self.shape[:-2], A.shape[:-2])
    coefficient = jnp.broadcast_to(A, (*batch, *A.shape[-2:]))
    factor = jnp.swapaxes(A, -2, -1) if transpose else A
    return _triangular(factor, self, lower=upper == transpose, unit=unitriangular), coefficient


@lower("linalg_qr")
def qr(A: Array, mode: str = "reduced") -> tuple[Array, Array]:
    if mode == "r":
        return jnp.zeros((0,), A.dtype), qr(A)[1]
    q, r = lapack.qr(A, full_matrices=mode == "complete")
    return q, r


@lower("geqrf")
def geqrf(self: Array) -> tuple[Array, Array]:
    """LAPACK's packed Householder vectors, which JAX has behind numpy's raw mode (as their transpose)."""
    packed, tau = jnp.linalg.qr(self, mode="raw")
    return jnp.swapaxes(packed, -2, -1), tau


@lower("linalg_householder_product", "orgqr")
def householder_product(input: Array, tau: Array) -> Array:
    return lapack.householder_product(input, tau)


@lower("ormqr")
def ormqr(self: Array, input2: Array, input3: Array, left: bool = True, transpose: bool = False) -> Array:
    return lapack.ormqr(self, input2, input3, left=left, transpose=transpose)


@lower("_linalg_svd")
def svd(
    A: Array, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> tuple[Array, Array, Array]:
    if not compute_uv:
        return jnp.zeros((0,), A.dtype), lapack.svd(A, compute_uv=False), jnp.zeros((0,), A.dtype)
    u, s, vh = lapack.svd(A, full_matrices=full_matrices)
    return u, s, vh


@lower("_linalg_eigh")
def eigh(A: Array, UPLO: str = "L", compute_v: bool = True) -> tuple[Array, Array]:
    vectors, values = lapack.eigh(A, lower=UPLO.upper() == "L", symmetrize_input=False)
    return values, vectors if compute_v else jnp.zeros((0,), A.dtype)


@lower("linalg_eig")
def eig(self: Array) -> tuple[Array, Array]:
    values, vectors = lapack.eig(self, compute_left_eigenvectors=False)
    return values, vectors


@lower("_linalg_eigvals", "linalg_eigvals")
def eigvals(self: Array) -> Array:
    return lapack.eig(self, compute_left_eigenvectors=False, compute_right_eigenvectors=False)[0]


@lower("linalg_pinv.atol_rtol_tensor")
def pinv(self: Array, *, atol: Array | None = None, rtol: Array | None = None, hermitian: bool = False) -> Array:
    """The inverse of the singular values above max(atol, rtol * largest)."""
    if self.size == 0:
        return jnp.zeros((*self.shape[:-2], self.shape[-1], self.shape[-2]), self.dtype)
    if rtol is None:
        eps = float(jnp.finfo(self.dtype).eps) * max(self.shape[-2:])
        rtol = jnp.asarray(eps) if atol is None else jnp.where(atol > 0, 0.0, eps)
    floor = jnp.zeros(()) if atol is None else atol
    if hermitian:
        v, s = lapack.eigh(self, symmetrize_input=False)
        u = v
    else:
        u, s, vh = lapack.svd(self, full_matrices=False)
        v = _adjoint(vh)
    size = jnp.abs(s)
    cutoff = jnp.maximum(floor[..., None], rtol[..., None] * jnp.max(size, axis=-1, keepdims=True)).astype(s.dtype)
    inverse = jnp.where(size > cutoff, 1 / s, 0).astype(self.dtype)
    return (v * inverse[..., None, :]) @ _adjoint(u)


@lower("linalg_cross")
def cross(self: Array, other: Array, *, dim: int = -1) -> Array:
    dtype = to_numpy(opmath(promote([self, other])))
    a, b = jnp.broadcast_arrays(self.astype(dtype), other.astype(dtype))
    (a0, a1, a2), (b0, b1, b2) = ([lax.index_in_dim(x, i, dim, keepdims=False) for i in range(3)] for x in (a, b))
    return jnp.stack([a1 * b2 - a2 * b1, a2 * b0 - a0 * b2, a0 * b1 - a1 * b0], axis=dim)


def _diagonal(x: Array) -> Array:
    return diagonal(x, 0, -2, -1)


def _adjoint(x: Array) -> Array:
    x = jnp.swapaxes(x, -2, -1)
    return x.conj() if jnp.iscomplexobj(x) else x


def _triangular(
    factor: Array, b: Array, *, lower: bool, left: bool = True, adjoint: bool = False, unit: bool = False
) -> Array:
    """Solve with the triangle of `factor` alone, its batch dimensions broadcast against those of `b`."""
    batch = jnp.broadcast_shapes(factor.shape[:-2], b.shape[:-2])
    factor = jnp.broadcast_to(factor, (*batch, *factor.shape[-2:]))
    b = jnp.broadcast_to(b, (*batch, *b.shape[-2:]))
    if math.prod(b.shape) == 0:
        return b
    return lapack.triangular_solve(
        factor, b, left_side=left, lower=lower, transpose_a=adjoint, conjugate_a=adjoint, unit_diagonal=unit
    )


def _first(bad: Array) -> Array:
    """The 1-based place of the first True in the last dimension, 0 if there is none."""
    if bad.shape[-1] == 0:
        return jnp.zeros(bad.shape[:-1], jnp.int32)
    return jnp.where(bad.any(axis=-1), jnp.argmax(bad, axis=-1) + 1, 0).astype(jnp.int32)


def _kept_factorization(A: Array) -> tuple[Array, Array]:
    """(LU, pivots) as `_linalg_det` and `_linalg_slogdet` hand them to their backwards.

    PyTorch factors the transpose of a real, contiguous A, and its autograd formula decides by the same test which of
    the two it holds. What the recorder hands in must therefore be contiguous as a tensor too.
    """
    factors, pivots, _ = lu_factor_ex(A if jnp.iscomplexobj(A) else jnp.swapaxes(A, -2, -1))
    return factors, pivots


def _sign_of(pivots: Array, like: Array) -> Array:
    """The determinant of the permutation: -1 for each row that a pivot moved."""
    moved = jnp.sum(pivots != lax.broadcasted_iota(pivots.dtype, pivots.shape, pivots.ndim - 1) + 1, axis=-1)
    return (1 - 2 * (moved % 2)).astype(like.dtype)
