"""`_foreach_` ops: found from the single-tensor op, mapped over the lists."""

from __future__ import annotations

from typing import Any

import jax
import pytest
import torch

from torch_pjrt.lowering import find
from torch_pjrt.lowering.apply import flatten
from torch_pjrt.lowering.foreach import derived

from .check import check, to_jax

aten = torch.ops.aten
SELF = [torch.rand(2, 3) + 0.5, torch.rand(4) + 0.5, torch.tensor(1.5)]
OTHER = [torch.rand(2, 3) + 0.5, torch.rand(1) + 0.5, torch.tensor(2.5)]
HALF = [t.bfloat16() for t in SELF]

UNARY = [
    "abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "exp", "expm1", "floor", "frac", "lgamma",
    "log", "log10", "log1p", "log2", "neg", "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt",
    "tan", "tanh", "trunc",
]  # fmt: skip


@pytest.mark.parametrize("name", UNARY)
def test_unary_ops_map_over_the_list(name: str) -> None:
    check(getattr(aten, f"_foreach_{name}").default, [SELF[0], SELF[1].double()])
    check(getattr(aten, f"_foreach_{name}_").default, SELF)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "clamp_min", "clamp_max", "maximum", "minimum", "pow"])
def test_binary_ops_take_a_list_a_number_or_numbers(name: str) -> None:
    for suffix in ("", "_"):
        packet = getattr(aten, f"_foreach_{name}{suffix}")
        check(packet.List, SELF, OTHER)
        check(packet.Scalar, SELF, 2.0)
        check(packet.Scalar, HALF, 2)
        check(packet.ScalarList, SELF, [1.0, 2.0, 3.0])


def test_alpha_and_tensor_operands_reach_every_element() -> None:
    check(aten._foreach_add.List, SELF, OTHER, alpha=2.5)
    check(aten._foreach_sub_.List, SELF, OTHER, alpha=2)
    for name in ("add", "mul", "div"):
        check(getattr(aten, f"_foreach_{name}_").Tensor, SELF, torch.tensor(3.0))
    check(aten._foreach_add_.Tensor, SELF, torch.tensor(3.0), alpha=0.5)


@pytest.mark.parametrize("name", ["addcmul", "addcdiv"])
def test_addcmul_and_addcdiv_deal_out_their_scalars(name: str) -> None:
    third = [t + 1 for t in OTHER]
    for suffix in ("", "_"):
        packet = getattr(aten, f"_foreach_{name}{suffix}")
        check(packet.Scalar, SELF, OTHER, third)
        check(packet.Scalar, SELF, OTHER, third, -0.5)
        check(packet.ScalarList, SELF, OTHER, third, [0.5, 1.5, -2.0])
        check(packet.Tensor, SELF, OTHER, third, torch.tensor([0.5, 1.5, -2.0]))


def test_lerp_takes_lists_and_numbers_as_weights() -> None:
    for packet in (aten._foreach_lerp, aten._foreach_lerp_):
        check(packet.List, SELF, OTHER, [torch.full_like(t, 0.25) for t in SELF])
        check(packet.Scalar, SELF, OTHER, 0.75)
        check(packet.ScalarList, SELF, OTHER, [0.1, 0.5, 0.9])


def test_pow_of_a_number_by_a_list() -> None:
    check(aten._foreach_pow.ScalarAndTensor, 2.0, SELF)


@pytest.mark.parametrize("order", [1, 2, float("inf")])
def test_norms_and_maxima_reduce_each_element(order: float) -> None:
    check(aten._foreach_norm.Scalar, SELF, order)
    check(aten._foreach_norm.Scalar, HALF, order, torch.float32)
    check(aten._foreach_max.default, SELF)


def test_powsum_is_the_norm_before_its_root() -> None:
    check(aten._foreach_powsum.Scalar, [t - 1 for t in SELF], 3)
    check(aten._foreach_powsum.Scalar, HALF, 2, torch.float32)


def test_mm_multiplies_pair_by_pair() -> None:
    a = [torch.randn(2, 3), torch.randn(4, 5)]
    check(aten._foreach_mm.default, a, [t.T.contiguous() for t in a])


def test_copy_casts_and_broadcasts_and_zero_clears() -> None:
    check(aten._foreach_copy_.default, HALF, OTHER)
    check(aten._foreach_zero_.default, SELF)
    check(aten._foreach_clone.default, SELF)


def test_in_place_keeps_the_dtype_of_self() -> None:
    check(aten._foreach_add_.List, HALF, OTHER)
    check(aten._foreach_mul_.ScalarList, HALF, [0.3, 0.3, 0.3])


def test_numbers_that_arrive_at_run_time_promote_like_numbers() -> None:
    """The recorder passes float scalars as weakly typed arrays: no new executable, and no wider dtype."""

    def run(arrays: list[jax.Array], numbers: list[Any]) -> list[jax.Array]:
        return flatten(find(aten._foreach_mul_.ScalarList).fn(arrays, numbers))  # type: ignore[union-attr]

    with jax.enable_x64(True):
        whole = [torch.tensor([1, 2]), torch.tensor([0.5]).bfloat16(), torch.tensor([0.5])]
        results = jax.jit(run)([to_jax(t) for t in whole], [2.0, 3.0, 4.0])
    assert [r.tolist() for r in results] == [[2.0, 4.0], [1.5], [2.0]]
    assert [str(r.dtype) for r in results] == ["float32", "float32", "float32"]  # apply casts each to self's dtype


def _foreach_overloads() -> list[Any]:
    names = {s.name for s in torch._C._jit_get_all_schemas() if s.name.startswith("aten::_foreach_")}
    packets = [getattr(aten, n.removeprefix("aten::")) for n in sorted(names)]
    return [getattr(p, o) for p in packets for o in p.overloads()]


def test_every_foreach_overload_has_a_lowering() -> None:
    assert [str(op) for op in _foreach_overloads() if find(op) is None] == []


def test_ops_outside_the_family_are_not_derived() -> None:
    assert derived(aten.add.Tensor) is None
