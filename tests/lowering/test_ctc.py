"""CTC loss and its gradient agree with CPU PyTorch's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from ..conftest import DEVICE
from .check import check, lowered

aten = torch.ops.aten
module = getattr(torch, DEVICE)


def _given(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    x = torch.randn(12, 4, 6, dtype=dtype).log_softmax(-1)
    targets = torch.tensor([[1, 2, 2, 3], [5, 5, 5, 0], [4, 0, 0, 0], [0, 0, 0, 0]])
    return x, targets, torch.tensor([12, 9, 5, 3]), torch.tensor([4, 3, 1, 0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_loss_and_its_forward_variables_agree(dtype: torch.dtype) -> None:
    x, targets, inputs, lengths = _given(dtype)
    (loss, alpha), (want_loss, want_alpha) = lowered(aten._ctc_loss.Tensor, x, targets, inputs, lengths)
    torch.testing.assert_close(loss, want_loss)
    for n in range(4):
        valid = slice(0, int(inputs[n])), slice(0, int(2 * lengths[n] + 1))
        torch.testing.assert_close(alpha[n][valid], want_alpha[n][valid], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("in_a_row", [False, True])
def test_lengths_may_be_constants(in_a_row: bool) -> None:
    x, targets, inputs, lengths = _given()
    if in_a_row:
        targets = torch.cat([row[:n] for row, n in zip(targets, lengths.tolist(), strict=True)])
    given = x, targets, inputs.tolist(), lengths.tolist()
    (loss, _), (want, alpha) = lowered(aten._ctc_loss.default, *given)
    torch.testing.assert_close(loss, want)
    check(aten._ctc_loss_backward.default, torch.rand(4), *given, want, alpha, 0, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("zero_infinity", [False, True])
@pytest.mark.parametrize("in_a_row", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_the_loss_and_gradient_of_the_module_agree(reduction: str, in_a_row: bool, zero_infinity: bool) -> None:
    logits, targets, inputs, lengths = _given()
    # A target longer than its input, of which the loss is infinite.
    inputs = torch.tensor([12, 3, 5, 3])
    if in_a_row:
        targets = torch.cat([row[:n] for row, n in zip(targets, lengths.tolist(), strict=True)])

    def run(device: str) -> tuple[Tensor, Tensor]:
        x = logits.to(device).requires_grad_()
        loss = F.ctc_loss(
            x.log_softmax(-1), targets.to(device), inputs, lengths, reduction=reduction, zero_infinity=zero_infinity
        )
        loss.sum().backward()
        assert x.grad is not None
        return loss.detach().cpu(), x.grad.cpu()

    for got, want in zip(run(DEVICE), run("cpu"), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5, equal_nan=True)
    assert module.metrics()["fallbacks"] == {}


def test_new_lengths_compile_nothing() -> None:
    x, targets, *_ = _given()
    x, targets = x.to(DEVICE), targets.to(DEVICE)
    compiled = []
    for inputs, lengths in (
        ((12, 9, 8, 7), (4, 3, 2, 1)),
        ((11, 12, 9, 8), (1, 2, 3, 4)),
        ((9, 9, 9, 9), (3, 3, 3, 3)),
    ):
        F.ctc_loss(x, targets, inputs, lengths).item()
        compiled.append(module.metrics()["executables_compiled"])
    assert compiled[1] == compiled[2]


@pytest.mark.parametrize(
    ("inputs", "lengths"), [((13, 9, 5, 3), (4, 3, 1, 0)), ((12, 9, 5), (4, 3, 1, 0)), ((12, 9, 5, 3), (5, 3, 1, 0))]
)
def test_lengths_that_do_not_fit_are_refused(inputs: tuple[int, ...], lengths: tuple[int, ...]) -> None:
    x, targets, *_ = _given()
    for device in ("cpu", DEVICE):
        with pytest.raises(RuntimeError):
            F.ctc_loss(x.to(device), targets.to(device), inputs, lengths)
