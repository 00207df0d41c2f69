"""Autograd on the device: double backward, numerical checks, anomaly mode, versions, checkpointing."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck
from torch.nn import functional
from torch.utils.checkpoint import checkpoint, checkpoint_sequential, create_selective_checkpoint_contexts

from ..conftest import DEVICE
from .agree import agree, both_raise


def test_double_backward_through_a_network() -> None:
    def program(device: str) -> Any:
        conv, norm = nn.Conv2d(3, 4, 3).to(device), nn.BatchNorm2d(4).to(device)
        x = torch.randn(2, 3, 6, 6).to(device).requires_grad_()
        y = functional.gelu(norm(conv(x))).mean()
        (gradient,) = torch.autograd.grad(y, x, create_graph=True)
        (gradient.norm() - 1).pow(2).backward()
        return gradient, x.grad, conv.weight.grad, norm.weight.grad

    agree(program, rtol=1e-4, atol=1e-5)


CHECKED: dict[str, Callable[[Tensor], Tensor]] = {
    "a product of matrices": lambda x: (x.exp() @ x.T).sum(1),
    "softmax": lambda x: functional.softmax(x, 0),
    "an index": lambda x: x[[0, 2]].sin(),
    "a norm": lambda x: functional.layer_norm(x, (2,)),
    "in place": lambda x: x.clone().mul_(2).exp_(),
}


@pytest.mark.parametrize("fn", CHECKED.values(), ids=CHECKED)
def test_gradients_agree_with_numerical_ones(fn: Callable[[Tensor], Tensor]) -> None:
    x = torch.linspace(-1, 1, 6, dtype=torch.float64).reshape(3, 2).to(DEVICE).requires_grad_()
    assert gradcheck(fn, x, check_forward_ad=True)
    assert gradgradcheck(fn, x)


def test_gradients_of_complex_tensors_agree_with_numerical_ones() -> None:
    x = torch.tensor([1 + 2j, -1 + 0.5j], dtype=torch.complex128, device=DEVICE, requires_grad=True)
    assert gradcheck(lambda x: (x * x.conj()).real.sum() + x.abs().sum(), x)


def test_anomaly_mode_names_the_function_that_returned_nan() -> None:
    def program(device: str) -> Any:
        x = torch.tensor([-1.0], device=device, requires_grad=True)
        with torch.autograd.detect_anomaly():
            x.sqrt().sum().backward()

    with pytest.warns(UserWarning):
        assert "SqrtBackward0" in both_raise(program)


def test_a_saved_tensor_that_was_written_to_is_noticed() -> None:
    def program(device: str) -> Any:
        y = torch.ones(3, device=device, requires_grad=True).exp()
        y.add_(1)
        y.sum().backward()

    assert "modified by an inplace operation" in both_raise(program)


def test_versions_count_writes_through_every_view() -> None:
    def program(device: str) -> Any:
        x = torch.ones(3, device=device)
        x.add_(1)
        x[0] = 2
        x.view(3).mul_(2)
        x.copy_(torch.ones(3, device=device))
        return x._version, x[1:]._version, x.detach()._version, x.data._version

    agree(program)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_draws_the_same_dropout_and_gives_the_same_gradients(reentrant: bool) -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(3, 16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, 2)).to(DEVICE)
    checkpointed = copy.deepcopy(plain)
    x = torch.randn(5, 3).to(DEVICE).requires_grad_()
    torch.manual_seed(1)
    expected = plain(x)
    expected.sum().backward()
    torch.manual_seed(1)
    y = checkpoint(checkpointed, x, use_reentrant=reentrant)
    y.sum().backward()
    assert torch.equal(y, expected)
    for p, q in zip(checkpointed.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)


def test_checkpointing_parts_and_choosing_what_is_saved() -> None:
    def program(device: str) -> Any:
        model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).to(device)
        x = torch.ones(5, 3, device=device, requires_grad=True)
        checkpoint_sequential(model, 2, x, use_reentrant=False).sum().backward()
        saving = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.addmm.default])
        checkpoint(model, x, use_reentrant=False, context_fn=saving).sum().backward()
        return x.grad, [p.grad for p in model.parameters()]

    agree(program)


def test_custom_functions_save_tensors_and_take_the_mark_of_what_they_wrote() -> None:
    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
            ctx.factor = factor
            ctx.save_for_backward(x)
            ctx.mark_dirty(x)
            return x.mul_(factor)

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
            assert ctx.saved_tensors[0].device == gradient.device
            return gradient * ctx.factor, None

    def program(device: str) -> Any:
        x = torch.ones(2, device=device, requires_grad=True)
        y = Scale.apply(x.clone(), 3.0)
        y.sum().backward()
        return y, x.grad

    agree(program)
