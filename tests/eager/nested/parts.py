"""Nested tensors for the tests, and their tensors one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from ..agree import agree

LENGTHS = (3, 5, 1, 2)


def sequences(d: str, width: int = 8, lengths: Sequence[int] = LENGTHS) -> list[Tensor]:
    """Sequences (length, width) on the device, always the same."""
    drawn = torch.Generator().manual_seed(3)
    return [torch.randn(n, width, generator=drawn).to(d) for n in lengths]


def jagged(d: str, width: int = 8, lengths: Sequence[int] = LENGTHS) -> Tensor:
    """They as one jagged tensor, a leaf that needs a gradient."""
    return torch.nested.nested_tensor(sequences(d, width, lengths), layout=torch.jagged).requires_grad_()


def strided(d: str, width: int = 8, lengths: Sequence[int] = LENGTHS) -> Tensor:
    """They as one nested tensor of the strided layout, a leaf that needs a gradient."""
    return torch.nested.nested_tensor(sequences(d, width, lengths)).requires_grad_()


def apart(x: Any) -> list[Any]:
    """The tensors in it, nested ones taken apart."""
    if isinstance(x, (list, tuple)):
        return [t for part in x for t in apart(part)]
    return [t.detach() for t in x.unbind()] if isinstance(x, Tensor) and x.is_nested else [x]


def with_gradients(make: Callable[[str], Tensor], *functions: Callable[[Tensor], Any]) -> None:
    """Each function of `make(device)` has the CPU's value and, where it has one there, the CPU's gradient."""

    def program(d: str) -> Any:
        return [list(_value_and_gradient(make(d), f)) for f in functions]

    agree(program)


def _value_and_gradient(x: Tensor, function: Callable[[Tensor], Any]) -> Iterator[Any]:
    value = function(x)
    yield apart(value)
    first = value[0] if isinstance(value, (list, tuple)) else value
    if first.requires_grad:
        flat = torch.cat([t.flatten() for t in first.unbind()]) if first.is_nested else first
        flat.square().sum().backward()
        yield apart(x.grad)


def no_fallback(function: Callable[[], Any]) -> Any:
    """What it returns, with an op that runs on the CPU an error."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCH_PJRT_FALLBACK", "error")
        return function()


def alone(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Attention of one sequence, (length, heads, width) each, by PyTorch's formula."""
    attend = torch.nn.functional.scaled_dot_product_attention
    return attend(*(t.transpose(0, 1) for t in (q, k, v)), **options).transpose(0, 1)
