"""Concatenation, repetition, reversal, rolls and padding against CPU PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from .check import check

aten = torch.ops.aten
X = torch.arange(24.0).reshape(2, 3, 4)


def test_cat_promotes_and_skips_legacy_empty_tensors() -> None:
    check(aten.cat.default, [X, X[:, :1]], -2)
    check(aten.cat.default, [torch.zeros(0), X, X.long()], 0)
    check(aten.cat.default, [torch.ones(2, dtype=torch.bool), torch.ones(3, dtype=torch.int8)])
    check(aten.cat.default, [torch.ones(2).bfloat16(), torch.ones(3).half()])
    check(aten.cat.default, [torch.zeros(0), torch.zeros(0)])


def test_stack_makes_a_new_dimension() -> None:
    check(aten.stack.default, [X, X + 1], -1)
    check(aten.stack.default, [torch.tensor(1), torch.tensor(2.5)])


def test_block_diag_takes_scalars_vectors_and_matrices() -> None:
    check(aten.block_diag.default, [torch.tensor(2), torch.ones(3), X[0], torch.zeros(0)])


@pytest.mark.parametrize(
    ("op", "args"),
    [
        (aten.repeat.default, (X, [2, 1, 3, 1])),
        (aten.repeat.default, (torch.tensor(1.0), [2])),
        (aten.repeat.default, (X, [0, 1, 1])),
        (aten.flip.default, (X, [0, -1])),
        (aten.flip.default, (torch.tensor(1), [])),
        (aten.roll.default, (X, [1, -2], [0, -1])),
        (aten.roll.default, (X, [5])),
        (aten.roll.default, (torch.zeros(0, 2), [1], [0])),
        (aten.constant_pad_nd.default, (X, [1, 2, 0, 1], 1.5)),
        (aten.constant_pad_nd.default, (X.long(), [-1, 2])),
        (aten.constant_pad_nd.default, (X > 4, [1, 1, 1, 1, 1, 1], 1)),
        (aten.tril.default, (X,)),
        (aten.tril.default, (X.bfloat16(), -1)),
        (aten.triu.default, (X > 3, 1)),
        (aten.triu.default, (torch.zeros(0, 3), 1)),
        (aten.repeat_interleave.self_int, (X, 2, -2)),
        (aten.repeat_interleave.self_int, (X, 3)),
    ],
    ids=lambda v: v.name() if hasattr(v, "name") else "",
)
def test_elements_land_where_pytorch_puts_them(op: Any, args: tuple[Any, ...]) -> None:
    check(op, *args)


@pytest.mark.parametrize("k", [-1, 0, 1, 2, 3, 6])
def test_rot90_turns_k_times(k: int) -> None:
    check(aten.rot90.default, X, k, [-1, 0])


def test_repeat_interleave_by_a_tensor_needs_only_the_length() -> None:
    check(aten.repeat_interleave.Tensor, torch.tensor([2, 0, 3, 1]), output_size=6)
