"""Compiled programs check their data as eager traces do."""

from __future__ import annotations

import pytest
import torch

from ..conftest import DEVICE

module = getattr(torch, DEVICE)


def test_an_index_out_of_range_raises_at_the_next_synchronization() -> None:
    table = torch.arange(12.0).reshape(3, 4).to(DEVICE)
    rows = torch.compile(lambda x, i: x[i] * 2, backend="pjrt")
    assert torch.equal(
        rows(table, torch.tensor([2, -3]).to(DEVICE)).cpu(), torch.arange(12.0).reshape(3, 4)[[2, 0]] * 2
    )
    wrong = rows(table, torch.tensor([2, 3]).to(DEVICE))
    with pytest.raises(IndexError, match=r"index 3 is out of bounds for dimension 0 with size 3.*test_data_checks.py"):
        wrong.cpu()
    with pytest.raises(IndexError, match="index 3"):
        (wrong + 1).cpu()
    assert table.sum().item() == 66


def test_what_a_program_computes_from_a_wrong_eager_result_fails_with_it() -> None:
    double = torch.compile(lambda x: x * 2, backend="pjrt")
    with module.eager_mode("async"):
        wrong = torch.arange(3.0).to(DEVICE)[torch.tensor([7]).to(DEVICE)]
        with pytest.raises(IndexError, match="index 7"):
            double(wrong).cpu()


def test_a_target_out_of_range_raises_in_training() -> None:
    model = torch.nn.Linear(4, 3).to(DEVICE)
    loss_of = torch.compile(lambda x, y: torch.nn.functional.cross_entropy(model(x), y), backend="pjrt")
    x = torch.ones(2, 4, device=DEVICE)
    loss_of(x, torch.tensor([0, 2]).to(DEVICE)).backward()
    loss = loss_of(x, torch.tensor([0, 3]).to(DEVICE))
    with pytest.raises(IndexError, match="target 3 is out of bounds with size 3"):
        loss.backward()
        module.synchronize()
