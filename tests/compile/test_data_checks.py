"""Compiled programs check their data as eager traces do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

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


@pytest.mark.parametrize("dynamic", [False, True])
def test_an_assertion_in_a_graph_is_made_of_the_real_elements(dynamic: bool) -> None:
    def positive(x: torch.Tensor) -> torch.Tensor:
        torch._assert_async((x > 0).all(), "not positive")
        return x + 1

    compiled = torch.compile(positive, backend="pjrt", dynamic=dynamic)
    for n in (3, 5, 9):
        assert compiled(torch.ones(n, device=DEVICE)).tolist() == [2.0] * n
        with pytest.raises(RuntimeError, match=r"not positive.*test_data_checks.py"):
            compiled(-torch.ones(n, device=DEVICE)).cpu()


def test_an_assertion_is_made_in_training_and_in_the_branch_that_runs() -> None:
    def loss(x: torch.Tensor, flag: torch.Tensor) -> torch.Tensor:
        def checked(x: torch.Tensor) -> torch.Tensor:
            torch._assert_async((x.detach() > 0).all(), "in the branch")
            return x * x

        torch._assert_async((x.detach() < 9).all(), "too large")
        return torch.cond(flag, checked, lambda x: x * 3, (x,)).sum()

    compiled = torch.compile(loss, backend="pjrt")
    on, off = torch.tensor(True, device=DEVICE), torch.tensor(False, device=DEVICE)
    for value, flag, said in ((2.0, on, None), (-2.0, off, None), (9.0, off, "too large"), (-2.0, on, "in the branch")):
        x = torch.full((3,), value, device=DEVICE, requires_grad=True)
        if said is None:
            compiled(x, flag).backward()
            assert x.grad is not None
            assert x.grad.tolist() == [2 * value if flag is on else 3.0] * 3
        else:
            with pytest.raises(RuntimeError, match=said):
                compiled(x, flag).item()


@pytest.mark.parametrize("dynamic", [False, True])
def test_one_hot_refuses_classes_that_there_are_not(dynamic: bool) -> None:
    hot = torch.compile(lambda i: torch.nn.functional.one_hot(i, 5), backend="pjrt", dynamic=dynamic)
    assert hot(torch.tensor([0, 4]).to(DEVICE)).argmax(1).tolist() == [0, 4]
    for wrong in ([0, 1, 7], [-1, 2]):
        with pytest.raises(RuntimeError, match="Class values must be"):
            hot(torch.tensor(wrong).to(DEVICE)).cpu()


@pytest.mark.parametrize(
    ("fn", "said"),
    [
        (lambda x: x.clone().bernoulli_(1.5), r"expects p to be in \[0, 1\], but got p=1.5"),
        (lambda x: torch.bernoulli(x, 1.5), r"expects p to be in \[0, 1\], but got p=1.5"),
        (lambda x: x.index_reduce(0, x[:2].long(), torch.ones_like(x), "prod"), r"Number of indices \(2\)"),
        (lambda x: torch._foreach_addcdiv([x > 0], [x > 0], [x > 0]), "Integer division with addcdiv"),
    ],
    ids=["a probability", "a probability of a functional call", "fewer indices than values", "a list's dtype"],
)
def test_what_no_kernel_of_the_cpu_takes_is_refused_when_it_is_compiled(fn: Callable[[Tensor], Any], said: str) -> None:
    for device, backend in (("cpu", "aot_eager"), (DEVICE, "pjrt")):
        with pytest.raises(RuntimeError, match=said):
            torch.compile(fn, backend=backend)(torch.ones(3, device=device))


def assigned(x: Tensor) -> Tensor:
    x = x.clone()
    x[x > 5] = 2.0
    x[x[:, 0] > 1] = torch.tensor([7.0, 8.0, 9.0, 3.0], device=x.device)
    return x.index_put((x > 7,), torch.ones((), device=x.device), accumulate=True)


@pytest.mark.parametrize("dynamic", [None, True])
def test_what_cannot_be_known_when_it_is_compiled_is_not_refused(dynamic: bool | None) -> None:
    x = torch.arange(1, 13.0).reshape(3, 4)
    compiled = torch.compile(assigned, backend="pjrt", dynamic=dynamic)
    assert torch.equal(compiled(x.to(DEVICE)).cpu(), assigned(x))
