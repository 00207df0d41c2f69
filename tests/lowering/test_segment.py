"""segment_reduce and its gradient agree with CPU PyTorch."""

from __future__ import annotations

import pytest
import torch

from .check import check

aten = torch.ops.aten
REDUCTIONS = ["sum", "mean", "max", "min", "prod"]


@pytest.mark.parametrize("initial", [None, 2.0])
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_runs_given_by_lengths_and_by_offsets_agree(reduce: str, initial: float | None) -> None:
    torch.manual_seed(0)
    data = torch.randn(7, 3)
    data[2] = 0
    data[4] = data[3]
    lengths, offsets = torch.tensor([2, 0, 4, 1]), torch.tensor([0, 2, 2, 6, 7])
    for given in ({"lengths": lengths}, {"offsets": offsets}):
        check(aten.segment_reduce.default, data, reduce, initial=initial, **given)
        out = aten.segment_reduce.default(data, reduce, initial=initial, **given)
        check(aten._segment_reduce_backward.default, torch.randn(4, 3), out, data, reduce, initial=initial, **given)


def test_each_row_has_runs_of_its_own() -> None:
    data, lengths = torch.randn(2, 5, 2), torch.tensor([[1, 4, 0], [2, 2, 1]])
    for reduce in REDUCTIONS:
        check(aten.segment_reduce.default, data, reduce, lengths=lengths, axis=1)
