"""The edges of numbers: what CPU PyTorch computes there, and what docs/numerics.md says is different."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ..conftest import DEVICE

INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8]
FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
EDGES = [0.0, -0.0, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 3.0, -7.0, 300.0, 65504.0, -1e30, math.inf, -math.inf, math.nan]
Binary = Callable[[Tensor, Tensor], Tensor]


def pairs(values: Tensor) -> tuple[Tensor, Tensor]:
    return values.repeat_interleave(len(values)), values.repeat(len(values))


def integers(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    info = torch.iinfo(dtype)
    near = (0, 1, -1, 2, 3, 7, -7, 31, 33, 63, 64, 65, -63, info.min, info.max, info.min + 1, info.max - 1)
    return pairs(torch.tensor(sorted({min(max(n, info.min), info.max) for n in near}), dtype=dtype))


def bits(x: Tensor) -> Tensor:
    """The numbers as they are told apart here: by sign and value, all NaN the same."""
    if not x.is_floating_point():
        return x
    return torch.stack([x.nan_to_num(nan=0.25, posinf=7e4, neginf=-7e4), torch.signbit(x) & ~x.isnan(), x.isnan()])


def check(op: Callable[..., Tensor | list[Tensor]], *args: Tensor) -> None:
    wanted, got = op(*args), op(*(x.to(DEVICE) for x in args))
    for number, (w, g) in enumerate(zip(wanted, got, strict=True)):
        same = bits(w) == bits(g.cpu())
        places = (~same).reshape(-1, *w.shape).any(0).nonzero()[:3, 0].tolist()
        seen = [([x[i].item() for x in args], w[i].item(), g[i].item()) for i in places]
        assert w.dtype == g.dtype and not seen, f"op {number}: (operands, on the CPU, on the device) {seen}"


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers_overflow_and_shift_as_on_the_cpu(dtype: torch.dtype) -> None:
    ops: list[Binary] = [
        torch.add, torch.sub, torch.mul, torch.bitwise_and, torch.bitwise_xor, torch.bitwise_left_shift,
        torch.bitwise_right_shift, torch.maximum, torch.true_divide, lambda a, b: a.square().neg(),
        lambda a, b: torch.pow(a, b.clamp(0, 20)), lambda a, b: a.cumsum(0), lambda a, b: a.abs() + b.sign(),
    ]  # fmt: skip
    check(lambda a, b: [op(a, b) for op in ops], *integers(dtype))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_a_common_divisor_of_the_lowest_number_is_found(dtype: torch.dtype) -> None:
    a, b = integers(dtype)  # jnp.gcd never ended here
    got = torch.gcd(a.to(DEVICE), b.to(DEVICE)).cpu()
    found = [math.gcd(x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    wanted = torch.tensor([n if n < 2**63 else -(2**63) for n in found]).to(dtype)
    assert torch.equal(got, wanted)
    higher = (a > torch.iinfo(dtype).min) & (b > torch.iinfo(dtype).min)  # lcm of the lowest ends the CPU's process
    check(lambda a, b: [torch.lcm(a, b)], a[higher], b[higher])


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers_divide_as_on_the_cpu(dtype: torch.dtype) -> None:
    a, b = integers(dtype)
    divisible = (b != 0) & ~((a == torch.iinfo(dtype).min) & (b == -1))
    ops: list[Binary] = [
        torch.floor_divide, torch.remainder, torch.fmod, lambda a, b: torch.div(a, b, rounding_mode="trunc")
    ]  # fmt: skip
    check(lambda a, b: [op(a, b) for op in ops], a[divisible], b[divisible])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_floats_at_their_edges_are_the_cpus(dtype: torch.dtype) -> None:
    ops: list[Binary] = [
        torch.add, torch.sub, torch.mul, torch.div, torch.floor_divide, torch.remainder, torch.fmod, torch.copysign,
        lambda a, b: torch.div(a, b, rounding_mode="trunc"), torch.heaviside, torch.eq, torch.lt,
        lambda a, b: a.round(), lambda a, b: a.trunc(), lambda a, b: a.ceil(), lambda a, b: a.sign(),
        lambda a, b: a.frac(), lambda a, b: a.reciprocal(),
        lambda a, b: a.nan_to_num(), lambda a, b: torch.round(a, decimals=1), lambda a, b: a.to(torch.bool),
    ]  # fmt: skip
    check(lambda a, b: [op(a, b) for op in ops], *pairs(torch.tensor(EDGES).to(dtype)))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_reductions_of_nan_infinity_and_nothing_are_the_cpus(dtype: torch.dtype) -> None:
    for values in ([1.0, math.nan, 2.0], [math.inf, -math.inf], [-0.0, -0.0], [math.nan] * 2, [-math.inf] * 2, []):
        ops: list[Callable[[Tensor], Tensor]] = [torch.sum, torch.prod, torch.mean, torch.nansum, torch.any, torch.std]
        if values:
            ops += [
                torch.amax,
                torch.amin,
                torch.argmax,
                torch.median,
                lambda x: x.logsumexp(0),
                lambda x: x.softmax(0)[:1].sum(),
            ]
            ops += [lambda x: x.cummax(0)[0].sum(), lambda x: x.sort()[0][0], torch.count_nonzero]
        check(lambda x, ops=ops: [op(x).reshape(1) for op in ops], torch.tensor(values, dtype=dtype))


def test_what_is_different_is_as_the_page_says() -> None:
    tiny = torch.tensor([1e-40, -1e-40], device=DEVICE)
    assert (tiny + tiny).tolist() == [0.0, 0.0] and (1 / tiny).tolist() == [math.inf, -math.inf]
    assert tiny.clone().tolist() == torch.tensor([1e-40, -1e-40]).tolist()
    zeros = torch.tensor([0.0, -0.0], device=DEVICE)
    assert torch.maximum(zeros, -zeros).signbit().tolist() == [False, False]
    assert torch.minimum(zeros, -zeros).signbit().tolist() == [True, True]
    assert not (-zeros).relu().signbit().any()
    large = torch.tensor([3e9, -3e9, math.inf, math.nan], device=DEVICE)
    assert large.to(torch.int32).tolist() == [2**31 - 1, -(2**31), 2**31 - 1, 0]
    assert large.to(torch.uint8).tolist() == [255, 0, 255, 0]


HALVES = [torch.bfloat16, torch.float16]
WITH_NUMBERS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "add": lambda x, c: x + c, "sub": lambda x, c: x - c, "rsub": lambda x, c: c - x, "mul": lambda x, c: x * c,
    "floor": lambda x, c: torch.div(x, c, rounding_mode="floor"), "floor_divide": lambda x, c: x // c,
    "truncate": lambda x, c: torch.div(x, c, rounding_mode="trunc"), "remainder": torch.remainder,
    "of remainder": lambda x, c: torch.remainder(c, x.where(x != 0, 1)), "fmod": torch.fmod,
    "power": lambda x, c: x.abs() ** c, "eq": torch.eq, "ne": torch.ne, "lt": torch.lt, "le": torch.le, "gt": torch.gt,
    "ge": torch.ge, "clamp": lambda x, c: x.clamp(-c, c), "hardshrink": torch.nn.functional.hardshrink,
    "0-d": lambda x, c: torch.hypot(x, torch.tensor(c, device=x.device)), "lerp": lambda x, c: torch.lerp(x, x * 2, c),
    "over": lambda x, c: c / (x.abs() + 1), "times 0-d": lambda x, c: torch.mul(torch.tensor(c, device=x.device), x),
    "0-d over": lambda x, c: torch.div(torch.tensor(c, device=x.device), x.abs() + 1, rounding_mode="floor"),
    "logaddexp": lambda x, c: torch.logaddexp(x, torch.tensor(c, device=x.device)),
    "value": lambda x, c: torch.addcmul(x, x, x, value=c), "leaky_relu": torch.nn.functional.leaky_relu,
}  # fmt: skip


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", WITH_NUMBERS)
def test_numbers_meet_half_types_as_on_the_cpu(name: str, dtype: torch.dtype, compiled: bool) -> None:
    # Most operators round the number to the tensor's dtype first: bfloat16's 0.1 equals 0.1. Products do not.
    op = WITH_NUMBERS[name]
    there = torch.compile(op, backend="pjrt") if compiled else op
    for c in (0.1, 0.3, 1.7):
        x = torch.cat([torch.arange(-100, 100).double() * c, torch.linspace(-3, 3, 99).double()]).to(dtype)
        assert torch.equal(there(x.to(DEVICE), c).cpu(), op(x, c)), c


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_quotients_that_become_whole_numbers_are_rounded_once(dtype: torch.dtype) -> None:
    for by in (3.0, 7.0, 41.0, 49.0, 98.0, 0.1, 0.7):
        x = (torch.arange(-200, 200).double() * by).to(dtype)
        check(lambda a, by=by: [torch.div(a, by, rounding_mode=mode) for mode in ("floor", "trunc")] + [a // by], x)
    for n in (2, 50, 100, 197):
        for kind in (torch.int64, torch.int32, torch.uint8):
            ours = torch.linspace(n, 1, n, dtype=kind, device=DEVICE).cpu()
            assert torch.equal(ours, torch.linspace(n, 1, n, dtype=kind)), (n, kind)


def test_powers_of_integers_take_all_bits_of_the_exponent() -> None:
    check(lambda a, b: [a**b], torch.tensor([0, 2, 3, -3, 1, 5]), torch.tensor([64, 65, 64, 127, 70, 0]))
    small = torch.tensor([[0, 1, 2, 255]], dtype=torch.uint8)
    check(lambda a, b: [a**b, 3 ** b.long()], small, torch.tensor([[0], [7], [200]], dtype=torch.uint8))


def test_ldexp_has_results_where_the_power_of_two_has_none() -> None:
    check(lambda a, b: [torch.ldexp(a, b)], torch.tensor([0.0, 1e-30, 1e30, 1.0]), torch.tensor([130, 130, -200, 3]))
    z, n = torch.tensor([1 + 2j, -0.5j]), torch.tensor([3, -2])
    torch.testing.assert_close(torch.ldexp(z.to(DEVICE), n.to(DEVICE)).cpu(), torch.ldexp(z, n))
