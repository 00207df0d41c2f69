"""Reductions agree with CPU PyTorch over any dimensions, for every dtype, empty and 0-d tensors included."""

from __future__ import annotations

import math

import pytest
import torch

from .check import check

aten = torch.ops.aten
NAN, INF = math.nan, math.inf
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool]
DIMS = [None, [], [0], [-1], [0, 2], [1, -1]]


def cube(dtype: torch.dtype) -> torch.Tensor:
    torch.manual_seed(0)
    return (torch.randn(2, 3, 4) * 3 if dtype.is_signed else torch.randint(0, 9, (2, 3, 4))).to(dtype)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.complex64])
def test_sums_and_products_agree_with_cpu(dtype: torch.dtype) -> None:
    x = cube(dtype)
    check(aten.sum.default, x)
    check(aten.prod.default, x)
    check(aten.prod.dim_int, x, -2, True)
    for dim in DIMS:
        check(aten.sum.dim_IntList, x, dim, True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.bfloat16])
def test_a_dtype_argument_casts_before_adding(dtype: torch.dtype) -> None:
    x = torch.tensor([[0.9, 1.9], [-0.9, 300.7]])
    check(aten.sum.default, x, dtype=dtype)
    check(aten.sum.dim_IntList, x, [1], dtype=dtype)
    check(aten.prod.dim_int, x, 0, dtype=dtype)
    if dtype.is_floating_point:
        check(aten.mean.default, torch.tensor([1, 2, 4]), dtype=dtype)


def test_half_sums_add_up_in_float32() -> None:
    check(aten.sum.default, torch.full((4096,), 0.1, dtype=torch.bfloat16))
    check(aten.mean.default, torch.full((70000,), 3.0, dtype=torch.float16))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("dim", DIMS)
def test_means_and_variances_agree_with_cpu(dim: list[int] | None, dtype: torch.dtype) -> None:
    x = cube(dtype)
    check(aten.mean.dim, x, dim)
    for correction in (None, 0, 0.5):
        check(aten.var.correction, x, dim, correction=correction)
        check(aten.std.correction, x, dim, correction=correction, keepdim=True)
        check(aten.var_mean.correction, x, dim, correction=correction)
    check(aten.std_mean.correction, x, dim, correction=1)


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
def test_variance_without_degrees_of_freedom_is_nan() -> None:
    check(aten.var.correction, torch.ones(3, 1), [1])
    check(aten.var.correction, torch.ones(0, 2), [0])
    check(aten.var.correction, torch.ones(0, 2), [0], correction=-2)
    check(aten.mean.dim, torch.ones(0, 2), [0])


def test_variance_far_from_zero_does_not_cancel() -> None:
    check(aten.var.correction, 10000 + torch.randn(2, 500), [1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["amax", "amin"])
def test_extrema_agree_with_cpu(name: str, dtype: torch.dtype) -> None:
    for dim in ([], [0], [-1, 0]):
        check(getattr(aten, name).default, cube(dtype), dim, True)
    check(getattr(aten, name[1:]).default, cube(dtype))
    check(aten.aminmax.default, cube(dtype), dim=1, keepdim=True)
    check(aten.aminmax.default, cube(dtype))


@pytest.mark.parametrize("name", ["max", "min"])
def test_the_extremum_of_a_dimension_has_its_first_index_and_nan_wins(name: str) -> None:
    x = torch.tensor([[1.0, 3.0, 3.0, 0.0, 0.0], [NAN, 5.0, NAN, 1.0, -INF]])
    for dim in (0, -1):
        check(getattr(aten, name).dim, x, dim)
        check(getattr(aten, name).dim, x, dim, True)
    check(getattr(aten, "arg" + name).default, x, 1)
    check(getattr(aten, "arg" + name).default, x, None)
    check(getattr(aten, "arg" + name).default, x, None, True)
    check(getattr(aten, "arg" + name).default, x.nan_to_num().long(), 0, True)
    check(getattr(aten, name).dim, torch.tensor([True, False, True]), 0)
    check(getattr(aten, name).dim, x.bfloat16(), 1)


def test_out_overloads_of_max_write_values_and_indices() -> None:
    out = torch.empty(2), torch.empty(2, dtype=torch.int64)
    check(aten.max.dim_max, torch.randn(2, 3), 1, max=out[0], max_values=out[1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["any", "all"])
def test_any_and_all_agree_with_cpu(name: str, dtype: torch.dtype) -> None:
    x = torch.tensor([[0, 1, 2], [0, 0, 1], [1, 1, 1]]).to(dtype)
    check(getattr(aten, name).default, x)
    check(getattr(aten, name).dim, x, -1, True)
    for dims in (None, [], [0], [0, 1]):
        check(getattr(aten, name).dims, x, dims)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("order", [0, 1, 2, 3, 0.5, -1.5, INF, -INF])
def test_norms_agree_with_cpu(order: float, dtype: torch.dtype) -> None:
    x = cube(dtype)
    check(aten.linalg_vector_norm.default, x, order, [0, 2], True)
    check(aten.linalg_vector_norm.default, x, order)
    check(aten.norm.Scalar, x, order)
    check(aten.norm.ScalarOpt_dim, x, order, [1])
    check(aten.dist.default, x, x.flip(0), order)


def test_norms_take_a_dtype() -> None:
    x = torch.randn(3, 4)
    check(aten.linalg_vector_norm.default, x, 2, [1], dtype=torch.float64)
    check(aten.norm.ScalarOpt_dtype, x, None, dtype=torch.float64)
    check(aten.norm.ScalarOpt_dim_dtype, x, 1, [0], True, dtype=torch.float64)


@pytest.mark.parametrize("keepdim", [False, True])
def test_logsumexp_survives_infinities(keepdim: bool) -> None:
    x = torch.tensor([[1.0, 2.0, 1000.0], [-INF, -INF, -INF], [INF, 0.0, 1.0], [NAN, 1.0, 2.0]])
    check(aten.logsumexp.default, x, [1], keepdim)
    check(aten.logsumexp.default, x[:2].bfloat16(), [0, 1], keepdim)
    check(aten.logsumexp.default, torch.ones(2, 0), [1], keepdim)
    check(aten.logsumexp.default, torch.tensor([1, 2]), [0], keepdim)


def test_nansum_and_count_nonzero_agree_with_cpu() -> None:
    x = torch.tensor([[1.0, NAN, 0.0], [2.0, -3.0, NAN]])
    check(aten.nansum.default, x, [1], True)
    check(aten.nansum.default, x)
    check(aten.count_nonzero.default, x)
    check(aten.count_nonzero.default, x, -1)
    check(aten.count_nonzero.dim_IntList, x.bool(), [0, 1])


def test_reductions_of_a_scalar_and_of_nothing_agree_with_cpu() -> None:
    scalar = torch.tensor(2.5)
    for call in (aten.sum.dim_IntList, aten.mean.dim, aten.amax.default):
        check(call, scalar, [0])
        check(call, scalar, [-1], True)
    check(aten.max.dim, scalar, 0)
    check(aten.argmax.default, scalar, None, True)
    check(aten.all.dim, scalar, 0)
    for call in (aten.sum.default, aten.prod.default, aten.any.default, aten.all.default):
        check(call, torch.ones(0, 3))
    check(aten.amax.default, torch.ones(2, 0, 3), [0])
