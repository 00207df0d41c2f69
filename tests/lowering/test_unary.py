"""Elementwise functions of one tensor give CPU PyTorch's values, dtypes and shapes."""

from __future__ import annotations

import math

import pytest
import torch

from .check import check

aten = torch.ops.aten
INF, NAN = math.inf, math.nan
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
INTEGERS = [torch.int64, torch.int32, torch.uint8, torch.bool]
VALUES = [-INF, -7.0, -1.5, -1.0, -0.5, -0.25, -0.0, 0.0, 0.3, 0.5, 1.0, 1.5, 2.5, 4.0, 30.0, INF, NAN]

ANY_DTYPE = (
    "sgn sign signbit angle isnan isinf logical_not reciprocal sqrt rsqrt exp exp2 expm1 log log10 log2 log1p sin cos"
    " tan asin acos atan sinh cosh tanh asinh acosh atanh sigmoid deg2rad rad2deg square isposinf isneginf nan_to_num"
)
NUMBERS = "abs neg floor ceil trunc round positive conj_physical"
COMPLEX = (
    "abs neg sgn angle conj_physical reciprocal sqrt rsqrt exp exp2 expm1 log log10 log2 log1p sin cos"
    " tan asin acos atan sinh cosh tanh asinh acosh atanh sigmoid square isnan isinf logical_not nan_to_num"
)


def op(name: str) -> torch._ops.OpOverload:
    return getattr(aten, name).default


def tensor(dtype: torch.dtype) -> torch.Tensor:
    if dtype.is_floating_point:
        return torch.tensor(VALUES).to(dtype)
    return torch.tensor([0, 1, 2, 3, 5, 8]).to(dtype)


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
@pytest.mark.parametrize("name", ANY_DTYPE.split())
def test_functions_of_any_dtype_agree_with_cpu(name: str, dtype: torch.dtype) -> None:
    check(op(name), tensor(dtype))


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.uint8])
@pytest.mark.parametrize("name", NUMBERS.split())
def test_functions_of_numbers_agree_with_cpu(name: str, dtype: torch.dtype) -> None:
    check(op(name), tensor(dtype))


@pytest.mark.parametrize("name", COMPLEX.split())
def test_functions_of_complex_numbers_agree_with_cpu(name: str) -> None:
    check(op(name), torch.tensor([0.3 + 0.4j, -1.2 + 0.7j, 2 - 3j, -0.5 - 0.25j, 1 + 0j]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3)])
@pytest.mark.parametrize("name", ["exp", "floor", "sign", "isnan", "sqrt"])
def test_scalar_and_empty_tensors_keep_their_shape(name: str, shape: tuple[int, ...]) -> None:
    check(op(name), torch.full(shape, 0.5))


@pytest.mark.parametrize("name", ["exp_", "neg_", "round_", "sigmoid_", "sign_", "logical_not_"])
def test_in_place_functions_keep_the_dtype_of_self(name: str) -> None:
    check(op(name), torch.tensor([-1.5, 0.0, 2.5], dtype=torch.bfloat16))


def test_out_overloads_cast_to_the_dtype_of_out() -> None:
    check(aten.sqrt.out, torch.tensor([1, 4, 2]), out=torch.empty(3, dtype=torch.float64))


@pytest.mark.parametrize("decimals", [0, 2, -1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_round_keeps_a_number_of_decimals(decimals: int, dtype: torch.dtype) -> None:
    check(aten.round.decimals, torch.tensor([15.0, 25.0, -1.2345, 2.675, 0.125]).to(dtype), decimals=decimals)


@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_to_num_takes_its_limits_from_the_dtype_of_self(dtype: torch.dtype) -> None:
    x = torch.tensor([NAN, INF, -INF, 1.5]).to(dtype)
    check(aten.nan_to_num.default, x)
    check(aten.nan_to_num.default, x, 1.0, 2.0, -2.0)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool])
def test_bitwise_not_flips_every_bit(dtype: torch.dtype) -> None:
    check(aten.bitwise_not.default, tensor(dtype))


@pytest.mark.parametrize("dtype", FLOATS)
def test_frac_and_frexp_take_numbers_apart(dtype: torch.dtype) -> None:
    x = torch.tensor([-2.75, -0.5, 0.0, 0.3, 4.0, 9.5]).to(dtype)
    check(aten.frac.default, x)
    check(aten.frexp.Tensor, x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("name", ["sigmoid_backward", "tanh_backward"])
def test_backward_ops_agree_with_cpu(name: str, dtype: torch.dtype) -> None:
    check(op(name), torch.randn(3, 4, dtype=dtype), torch.rand(3, 4).to(dtype))
