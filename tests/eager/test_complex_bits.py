"""Lazily conjugated and negated views: reading, writing through them, and handing them on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from .agree import agree, both_raise


def z(device: str) -> Tensor:
    return torch.tensor([1 + 2j, 3 - 4j], device=device)


READ: dict[str, Callable[[Tensor], Any]] = {
    "bits": lambda x: (x.conj().is_conj(), x.conj().imag.is_neg(), x.conj().conj().is_conj()),
    "arithmetic": lambda x: (x.conj() * 2, x.conj().imag + 1, x + x.conj()),
    "resolved": lambda x: (x.conj().resolve_conj(), x.conj().imag.resolve_neg(), x.conj().clone()),
    "lists and numbers": lambda x: (x.conj().tolist(), x.conj().imag.tolist(), x.conj()[0].item()),
    "products": lambda x: (x.conj() @ x, torch.vdot(x, x), x.reshape(2, 1).mH @ x.reshape(2, 1)),
    "parts": lambda x: (x.conj().real, x.conj().imag, x.conj().abs(), x.conj().angle(), torch.view_as_real(x)),
    "concatenated": lambda x: (torch.cat([x.conj(), x]), torch.stack([x.conj().imag, x.real])),
    "compared and cast": lambda x: (x.conj() == x, x.conj().to(torch.complex128), x.conj().imag.int()),
    "views": lambda x: (x.conj()[1:], x.reshape(1, 2).conj().T, x.conj().expand(2, 2)),
    "a sum": lambda x: (x.conj().sum(), x.conj().imag.sum(), x.conj().prod()),
    "an fft": lambda x: torch.fft.fft(x.conj()),
}


@pytest.mark.parametrize("fn", READ.values(), ids=READ)
def test_a_lazy_view_reads_as_on_the_cpu(fn: Callable[[Tensor], Any]) -> None:
    agree(lambda d: fn(z(d)))


WRITTEN: dict[str, Callable[[Tensor], Any]] = {
    "real and imag": lambda x: (x.real.add_(1), x.imag.mul_(2)),
    "a negated view": lambda x: x.conj().imag.add_(1),
    "a conjugated view": lambda x: x.conj().mul_(2 + 1j),
    "an element": lambda x: x.conj().__setitem__(0, 5 + 1j),
    "fill_": lambda x: x.conj().fill_(1j),
    "zero_": lambda x: x.conj().imag.zero_(),
    "copy_": lambda x: x.conj().copy_(x.clone()),
    "copy_ from the host": lambda x: x.conj().copy_(torch.tensor([1j, 2j])),
    "out=": lambda x: torch.add(x.clone(), 1, out=x.conj()),
    "out= of parts": lambda x: torch.add(x.real.clone(), 1, out=x.conj().imag),
    "an index": lambda x: x.conj().index_fill_(0, torch.tensor([0], device=x.device), 2j),
    "index_put_": lambda x: x.conj().__setitem__(torch.tensor([1], device=x.device), 7j),
    "masked": lambda x: x.conj().masked_fill_(x.real > 2, 1j),
    "conj_physical_": lambda x: x.conj().conj_physical_(),
    "negated in place": lambda x: x.conj().imag.neg_(),
    "a product into it": lambda x: torch.mm(
        x.clone().view(2, 1), x.clone().view(1, 2), out=x.expand(2, 2).clone().conj()
    ),
    "a product added to it": lambda x: x.view(2, 1).conj().addmm_(torch.ones_like(x).diag(), x.clone().view(2, 1)),
    "an out= that grows": lambda x: torch.mm(x.view(2, 1), x.view(1, 2), out=x.new_empty(0).conj()),
}


@pytest.mark.parametrize("write", WRITTEN.values(), ids=WRITTEN)
def test_what_is_written_to_a_lazy_view_is_as_on_the_cpu(write: Callable[[Tensor], Any]) -> None:
    def program(device: str) -> Any:
        x = z(device)
        result = write(x)
        return x, result if isinstance(result, Tensor) else None

    agree(program)


def test_gradients_pass_through_lazy_views() -> None:
    def program(device: str) -> Any:
        x = z(device).requires_grad_()
        (x.conj() * x).real.sum().backward()
        y = z(device).requires_grad_()
        y.conj().imag.square().sum().backward()
        return x.grad, y.grad

    agree(program)


def test_a_lazy_view_is_refused_where_the_cpu_refuses_it() -> None:
    assert "conj" in both_raise(lambda d: torch.view_as_real(z(d).conj()))
    assert "conjugate" in both_raise(lambda d: torch._foreach_mul_([z(d).conj(), z(d)], 2j))
