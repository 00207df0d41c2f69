"""Arithmetic of two and three tensors gives CPU PyTorch's values, with its type promotion."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import pytest
import torch

from torch_pjrt.lowering import Spec, apply

from .check import check, lowered, to_cpu, to_jax

aten = torch.ops.aten
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.uint8]


def pair(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Operands that broadcast, of both signs where the dtype has them, and no integer zero to divide by."""
    a = torch.tensor([[7.0], [-7.0], [2.5], [-0.5], [0.0], [5.0]])
    b = torch.tensor([3.0, -3.0, 2.0, 0.25, 1.0])
    if not dtype.is_floating_point:
        b[3] = 4
    if dtype == torch.uint8:
        a, b = a.abs(), b.abs()
    return a.to(dtype), b.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "remainder", "fmod", "rsub"])
def test_arithmetic_agrees_with_cpu(name: str, dtype: torch.dtype) -> None:
    a, b = pair(dtype)
    check(getattr(aten, name).Tensor, a, b)
    check(getattr(aten, name).Scalar, a, 3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", [None, "floor", "trunc"])
def test_division_rounds_as_asked(mode: str | None, dtype: torch.dtype) -> None:
    a, b = pair(dtype)
    check(aten.div.Tensor_mode, a, b, rounding_mode=mode)
    check(aten.div.Scalar_mode, a, 2, rounding_mode=mode)
    if mode == "floor":
        check(aten.floor_divide.default, a, b)
        check(aten.floor_divide.Scalar, a, 2)


@pytest.mark.parametrize("mode", ["floor", "trunc"])
def test_float_division_by_zero_and_infinity_agrees_with_cpu(mode: str) -> None:
    a = torch.tensor([1.0, -1.0, 0.0, math.inf, -5.0, math.nan])
    b = torch.tensor([[0.0], [-0.0], [math.inf], [-math.inf], [math.nan], [3.0]])
    check(aten.div.Tensor_mode, a, b, rounding_mode=mode)
    check(aten.remainder.Tensor, a, b)
    check(aten.fmod.Tensor, a, b)


OPERANDS = {
    "f32": torch.tensor([1.5, -2.0]),
    "bf16": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "f16": torch.tensor([1.5, -2.0], dtype=torch.float16),
    "f64 0-d": torch.tensor(0.1, dtype=torch.float64),
    "i64": torch.tensor([3, -4]),
    "i8": torch.tensor([3, -4], dtype=torch.int8),
    "i64 0-d": torch.tensor(3),
    "bool": torch.tensor([True, False]),
    "c64": torch.tensor([1 + 2j, 3j]),
    "c64 0-d": torch.tensor(1 + 2j),
}


@pytest.mark.parametrize("a", OPERANDS)
@pytest.mark.parametrize("b", OPERANDS)
def test_operands_of_different_dtypes_promote_as_in_pytorch(a: str, b: str) -> None:
    check(aten.add.Tensor, OPERANDS[a], OPERANDS[b])
    check(aten.mul.Tensor, OPERANDS[a], OPERANDS[b])
    if {a, b} != {"f16", "c64 0-d"}:  # complex32, which the CPU does not divide
        check(aten.div.Tensor, OPERANDS[a], OPERANDS[b])


@pytest.mark.parametrize("number", [True, 2, 0.3, 300])
@pytest.mark.parametrize("a", OPERANDS)
def test_a_number_only_lifts_the_category_of_a_tensor(a: str, number: float) -> None:
    if a == "i8" and number == 300:
        pytest.skip("PyTorch wraps or refuses this by version")
    check(aten.mul.Scalar, OPERANDS[a], number)
    check(aten.add.Tensor, OPERANDS[a], torch.tensor(2), alpha=2)


@pytest.mark.parametrize("name", ["add_", "sub_", "mul_", "div_"])
def test_in_place_arithmetic_keeps_the_dtype_of_self(name: str) -> None:
    check(getattr(aten, name).Tensor, torch.tensor([1.0, 2.0], dtype=torch.bfloat16), torch.tensor([0.3, 0.7]))


@pytest.mark.parametrize("alpha", [2, -3])
def test_alpha_scales_the_second_operand(alpha: int) -> None:
    for dtype in (torch.float32, torch.int32):
        a, b = pair(dtype)
        check(aten.add.Tensor, a, b, alpha=alpha)
        check(aten.sub.Tensor, a, b, alpha=alpha)
        check(aten.rsub.Scalar, a, 5, alpha)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("exponent", [0, 1, 2, 3, -1, -2, 0.5, -0.5, 1.7, 10, math.inf])
def test_powers_with_a_constant_exponent_agree_with_cpu(exponent: float, dtype: torch.dtype) -> None:
    check(aten.pow.Tensor_Scalar, torch.tensor([-2.0, 0.0, 0.3, 1.0, 2.5], dtype=dtype), exponent)


@pytest.mark.parametrize("exponent", [0, 2, 5, 0.5, -0.5, -1.0])
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool, torch.complex64])
def test_powers_of_integers_and_complex_numbers_agree_with_cpu(exponent: float, dtype: torch.dtype) -> None:
    check(aten.pow.Tensor_Scalar, torch.tensor([1, 2, 3]).to(dtype), exponent)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32])
def test_powers_of_tensors_agree_with_cpu(dtype: torch.dtype) -> None:
    base, exponent = torch.tensor([-2, -1, 1, 3]).to(dtype), torch.tensor([[0], [1], [2], [-3], [5]]).to(dtype)
    check(aten.pow.Tensor_Tensor, base, exponent)
    check(aten.pow.Scalar, 2, exponent.abs())
    check(aten.pow.Scalar, 2.5, exponent)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["atan2", "hypot", "logaddexp", "logaddexp2", "heaviside", "nextafter"])
def test_functions_of_two_floats_agree_with_cpu(name: str, dtype: torch.dtype) -> None:
    a = torch.tensor([[1.0], [-2.0], [0.0], [-math.inf], [math.inf]], dtype=dtype)
    check(getattr(aten, name).default, a, torch.tensor([0.5, -0.75, 2.0, -math.inf], dtype=dtype))


# Infinitely small and large numbers in all directions, and parts that are no number.
FAR = torch.tensor(
    [complex(a, b) for a in (-math.inf, 1, -1e4, math.inf, math.nan) for b in (0, -2.9, 10, -10, math.inf, math.nan)],
    dtype=torch.complex128,
)


def test_logaddexp_of_complex_numbers_turns_from_the_larger_one() -> None:
    check(
        aten.logaddexp.default, torch.randn(99, dtype=torch.complex64) * 3, torch.randn(99, dtype=torch.complex64) * 3
    )
    check(aten.logaddexp.default, FAR[:, None], FAR)


def test_ldexp_multiplies_by_powers_of_two() -> None:
    check(aten.ldexp.Tensor, torch.tensor([1.5, -3.0]), torch.tensor([[3], [-2]]))
    check(aten.ldexp.Tensor, torch.tensor([3, 5]), torch.tensor([1, 2]))


def test_copysign_sees_the_sign_of_zero() -> None:
    check(aten.copysign.Tensor, torch.tensor([1.0, -2.0, 3.0]), torch.tensor([-0.0, 0.0, -5.0]))
    check(aten.copysign.Scalar, torch.tensor([1, -2, 3]), -1.0)


@pytest.mark.parametrize("name", ["gcd", "lcm"])
def test_divisors_and_multiples_agree_with_cpu(name: str) -> None:
    check(getattr(aten, name).default, torch.tensor([12, -18, 0, 7]), torch.tensor([[8], [-27], [0]]))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool])
@pytest.mark.parametrize("name", ["bitwise_and", "bitwise_or", "bitwise_xor"])
def test_bit_operations_agree_with_cpu(name: str, dtype: torch.dtype) -> None:
    a, b = torch.tensor([0, 1, 6, 12]).to(dtype), torch.tensor([[1], [3]]).to(dtype)
    check(getattr(aten, name).Tensor, a, b)
    check(getattr(aten, name).Scalar, a, 1)
    check(getattr(aten, name).Scalar_Tensor, 1, a)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_shifts_agree_with_cpu(dtype: torch.dtype) -> None:
    a = torch.tensor([1, 5, -8 if dtype.is_signed else 200]).to(dtype)
    for shift in (aten.bitwise_left_shift, aten.bitwise_right_shift):
        check(shift.Tensor, a, torch.tensor([0, 1, 3]).to(dtype))
        check(shift.Tensor_Scalar, a, 2)
    check(aten.__lshift__.Scalar, a, 2)
    check(aten.__irshift__.Scalar, a, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("value", [1, 0.5])
def test_addcmul_and_addcdiv_agree_with_cpu(value: float, dtype: torch.dtype) -> None:
    args = [torch.randn(3, 1), torch.randn(1, 4), torch.rand(3, 4) + 1]
    check(aten.addcmul.default, *[a.to(dtype) for a in args], value=value)
    check(aten.addcdiv.default, *[a.to(dtype) for a in args], value=value)
    check(aten.addcmul_.default, torch.zeros(3, 4, dtype=dtype), args[1].to(dtype), args[2].to(dtype), value=value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("weight", [0.0, 0.25, 0.75, 1.0])
def test_lerp_agrees_with_cpu(weight: float, dtype: torch.dtype) -> None:
    a, b = torch.randn(5, dtype=dtype), torch.randn(5, dtype=dtype)
    check(aten.lerp.Scalar, a, b, weight)
    check(aten.lerp.Tensor, a, b, torch.full((5,), weight, dtype=dtype))


def test_complex_numbers_are_made_from_parts_and_from_polar_form() -> None:
    a, b = torch.randn(3, 1), torch.randn(4)
    check(aten.complex.default, a, b)
    check(aten.polar.default, a.abs(), b)


def test_empty_operands_give_an_empty_result() -> None:
    check(aten.add.Tensor, torch.ones(0, 3), torch.ones(3))
    check(aten.floor_divide.default, torch.ones(0, dtype=torch.int64), torch.ones(1, dtype=torch.int64))


def shapes(results: Sequence[torch.Tensor]) -> list[tuple[int, ...]]:
    return [tuple(r.shape) for r in results]


def test_rsub_of_bfloat16_rounds_once() -> None:
    got, want = lowered(aten.rsub.Scalar, torch.tensor([0.1, 3.3], dtype=torch.bfloat16), 1.0)
    assert shapes(got) == shapes(want) and torch.equal(got[0], want[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize(
    "name", ["add", "sub", "mul", "div", "remainder", "fmod", "lerp", "addcmul", "gt", "clamp", "pow"]
)
def test_float_numbers_that_arrive_at_run_time_promote_as_constants_do(name: str, dtype: torch.dtype) -> None:
    """The recorder passes a float Scalar as a weakly typed 0-d array: a learning rate must not recompile anything."""
    x, other = torch.tensor([3, -4, 1]).to(dtype), torch.tensor([2, 2, 5]).to(dtype)
    if name in ("lerp", "addcmul"):
        if not dtype.is_floating_point:
            pytest.skip("floats only")
        op, tensors = {"lerp": (aten.lerp.Scalar, [x, other]), "addcmul": (aten.addcmul.default, [x, x, other])}[name]
    else:
        op, tensors = {"clamp": aten.clamp.default, "pow": aten.pow.Scalar}.get(name) or getattr(aten, name).Scalar, [x]
    number = 0.75
    keyword = {"value": number} if name == "addcmul" else {}
    order = [number, x] if name == "pow" else [*tensors, *([] if keyword else [number])]
    want = op(*order, **keyword)
    with jax.enable_x64(True):

        def run(arrays: list[jax.Array], weak: jax.Array) -> list[jax.Array]:
            args = [weak, *arrays] if name == "pow" else [*arrays, *([] if keyword else [weak])]
            return apply(op, args, {"value": weak} if keyword else {}, [Spec(tuple(want.shape), want.dtype)])

        got = to_cpu(jax.jit(run)([to_jax(t) for t in tensors], number)[0])
    torch.testing.assert_close(got, want)
