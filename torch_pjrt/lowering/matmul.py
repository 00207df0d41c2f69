"""Matrix products: mm, bmm, addmm and their kin, linear, dot and outer products."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
import torch
from jax import Array, lax
from jax.nn import gelu, relu

from .registry import lower
from .widen import asked, wide_dtype, widen

Number = int | float | complex


def precision() -> lax.Precision:
    """How exactly float32 products are computed on matrix units.

    PyTorch keeps what `torch.set_float32_matmul_precision` and `torch.backends.fp32_precision` say in one table; its
    row for the CPU's matmul has all of "highest", "high" and "medium" of the former, and inherits the latter.
    """
    said = torch._C._get_fp32_precision_getter("mkldnn", "matmul")
    return {"tf32": lax.Precision.HIGH, "bf16": lax.Precision.DEFAULT}.get(said, lax.Precision.HIGHEST)


def product(a: Array, b: Array, contract: tuple[int, int], batch: int = 0) -> Array:
    """Contract dimension contract[0] of `a` with contract[1] of `b` over `batch` leading dimensions.

    Half operands stay half (what matrix units take) and accumulate in float32, which is the result's dtype.
    """
    if a.dtype != b.dtype:
        wide = wide_dtype(a, b)
        a, b = a.astype(wide), b.astype(wide)
    half = jnp.issubdtype(a.dtype, jnp.floating) and a.dtype.itemsize < 4
    if batch and a.shape[:batch] == (1,) * batch == b.shape[:batch]:
        # XLA:CPU would find out too late: it has no product of transposed half operands, and no longer widens them.
        alone = product(
            a.reshape(a.shape[batch:]), b.reshape(b.shape[batch:]), (contract[0] - batch, contract[1] - batch)
        )
        return alone.reshape((1,) * batch + alone.shape)
    lead = tuple(range(batch))
    return lax.dot_general(
        a,
        b,
        (((contract[0],), (contract[1],)), (lead, lead)),
        precision=None if half else precision(),
        preferred_element_type=np.float32 if half else a.dtype,
    )


@lower("mm", "mm.dtype")
def mm(self: Array, mat2: Array, out_dtype: torch.dtype | None = None) -> Array:
    return product(self, mat2, (1, 0))


@lower("bmm", "bmm.dtype")
def bmm(self: Array, mat2: Array, out_dtype: torch.dtype | None = None) -> Array:
    return product(self, mat2, (2, 1), batch=1)


@lower("mv")
def mv(self: Array, vec: Array) -> Array:
    return product(self, vec, (1, 0))


@lower("dot")
def dot(self: Array, tensor: Array) -> Array:
    return product(self, tensor, (0, 0))


@lower("vdot")
def vdot(self: Array, other: Array) -> Array:
    return product(jnp.conj(self), other, (0, 0))


@lower("_int_mm")
def int_mm(self: Array, mat2: Array) -> Array:
    return lax.dot_general(self, mat2, (((1,), (0,)), ((), ())), preferred_element_type=np.int32)


@lower("matmul")
def matmul(self: Array, other: Array) -> Array:
    return jnp.matmul(self, other, precision=precision(), preferred_element_type=wide_dtype(self, other))


def _plus(self: Array, computed: Array, beta: Number, alpha: Number) -> Array:
    """beta * self + alpha * computed. A beta of 0 drops `self` altogether, its NaNs too, as PyTorch documents."""
    if alpha != 1:
        computed = computed * _constant(alpha, computed.dtype)
    if beta == 0:
        return computed
    addend = self.astype(computed.dtype)
    return computed + (addend if beta == 1 else addend * _constant(beta, computed.dtype))


def _constant(value: Number, dtype: np.dtype) -> Array:
    # PyTorch converts the scalar to the tensor's type first: alpha=2.5 on int64 would be 2.
    return jnp.asarray(np.asarray(value).astype(dtype))


@lower("addmm", static=("beta", "alpha"))
def addmm(self: Array, mat1: Array, mat2: Array, beta: Number = 1, alpha: Number = 1) -> Array:
    return _plus(self, product(mat1, mat2, (1, 0)), beta, alpha)


@lower("addmm.dtype", static=("beta", "alpha"))
def addmm_dtype(
    self: Array, mat1: Array, mat2: Array, out_dtype: torch.dtype, beta: Number = 1, alpha: Number = 1
) -> Array:
    return addmm(self, mat1, mat2, beta, alpha)


@lower("_addmm_activation", static=("beta", "alpha"))
def addmm_activation(
    self: Array, mat1: Array, mat2: Array, beta: Number = 1, alpha: Number = 1, use_gelu: bool = False
) -> Array:
    out = addmm(self, mat1, mat2, beta, alpha)
    return gelu(out, approximate=False) if use_gelu else relu(out)


@lower("addmv", static=("beta", "alpha"))
def addmv(self: Array, mat: Array, vec: Array, beta: Number = 1, alpha: Number = 1) -> Array:
    return _plus(self, product(mat, vec, (1, 0)), beta, alpha)


@lower("baddbmm", static=("beta", "alpha"))
def baddbmm(self: Array, batch1: Array, batch2: Array, beta: Number = 1, alpha: Number = 1) -> Array:
    return _plus(self, product(batch1, batch2, (2, 1), batch=1), beta, alpha)


@lower("baddbmm.dtype", static=("beta", "alpha"))
def baddbmm_dtype(
    self: Array, batch1: Array, batch2: Array, out_dtype: torch.dtype, beta: Number = 1, alpha: Number = 1
) -> Array:
    return baddbmm(self, batch1, batch2, beta, alpha)


@lower("addbmm", static=("beta", "alpha"))
def addbmm(self: Array, batch1: Array, batch2: Array, beta: Number = 1, alpha: Number = 1) -> Array:
    # The sum over the batch is one longer contraction: (n, b*m) @ (b*m, p).
    b, n, m = batch1.shape
    rows = batch1.transpose(1, 0, 2).reshape(n, b * m)
    return _plus(self, product(rows, batch2.reshape(b * m, batch2.shape[2]), (1, 0)), beta, alpha)


@lower("addr", static=("beta", "alpha"))
def addr(self: Array, vec1: Array, vec2: Array, beta: Number = 1, alpha: Number = 1) -> Array:
    wide = wide_dtype(self, vec1, vec2)
    if wide == np.bool_:
        outer_bool = vec1[:, None] & vec2[None, :] if alpha else jnp.zeros((vec1.size, vec2.size), np.bool_)
        return outer_bool | self if beta else outer_bool
    return _plus(self, outer(vec1.astype(wide), vec2.astype(wide)), beta, alpha)


@lower("outer", "ger")
def outer(self: Array, vec2: Array) -> Array:
    return widen(self)[:, None] * widen(vec2)[None, :]


@lower("linear")
def linear(input: Array, weight: Array, bias: Array | None = None) -> Array:
    """input (..., in) and weight (out, in) or (in,) to (..., out)."""
    out = product(input, weight, (input.ndim - 1, weight.ndim - 1))
    return out if bias is None else out + bias.astype(out.dtype)


@lower("linear_backward")
def linear_backward(self: Array, grad_output: Array, weight: Array, output_mask: Sequence[bool]) -> list[Array]:
    flat_grad = grad_output.reshape(-1, grad_output.shape[-1])
    grad_input = product(grad_output, weight, (grad_output.ndim - 1, 0))
    grad_weight = product(flat_grad, self.reshape(-1, self.shape[-1]), (0, 0))
    return asked([grad_input, grad_weight, widen(flat_grad).sum(0)], output_mask)


@lower("_scaled_mm")
def scaled_mm(
    self: Array,
    mat2: Array,
    scale_a: Array,
    scale_b: Array,
    bias: Array | None = None,
    scale_result: Array | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> Array:
    """8-bit float product with one scale per tensor, or per row of `self` (m, 1) and per column of `mat2` (1, n)."""
    if self.dtype != mat2.dtype:  # 8-bit floats of two kinds have no common one
        self, mat2 = widen(self), widen(mat2)
    out = product(self, mat2, (1, 0)) * _scale(scale_a) * _scale(scale_b)
    if bias is not None:
        out = out + widen(bias)
    return out if scale_result is None or out_dtype not in _FLOAT8 else out * _scale(scale_result)


_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)


def _scale(scale: Array) -> Array:
    return scale.reshape(()) if scale.size == 1 else scale


@lower("_weight_int8pack_mm")
def weight_int8pack_mm(self: Array, mat2: Array, scales: Array) -> Array:
    """self (m, k) times int8 rows mat2 (n, k), each row with its scale (n,)."""
    return product(self, mat2.astype(self.dtype), (1, 1)) * widen(scales)
