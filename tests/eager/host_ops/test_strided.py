"""Copies of and into a tensor's memory see the memory as it lies, not the values in their order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from ..agree import agree, both_raise

VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "whole": lambda x: x,
    "transposed": lambda x: x.t(),
    "rows": lambda x: x[1:],
    "columns": lambda x: x[:, 1:3],
    "expanded": lambda x: x[:, :1].expand(3, 4),
}


@pytest.mark.parametrize("view", VIEWS)
def test_copies_and_scatters_of_views(view: str) -> None:
    def program(d: str) -> Any:
        x = VIEWS[view](torch.arange(12.0, device=d).view(3, 4))
        windows = [((3,), (1,), None), ((2, 2), (4, 1), 1), ((2,), (3,), 0), ((0,), (1,), None)]
        copies = [torch.as_strided_copy(x, *w) for w in windows]
        scattered = [torch.as_strided_scatter(x, torch.full(w[0], -1.0, device=d), *w) for w in windows]
        leaf = x.contiguous().clone().requires_grad_()
        torch.as_strided_scatter(leaf, 2 * leaf[:2, :1], (2, 1), (2, 1), 1).square().sum().backward()
        return copies, scattered, [s.stride() for s in scattered], leaf.grad

    agree(program)


@pytest.mark.parametrize("view", VIEWS)
def test_compiled_copies_of_views(view: str) -> None:
    def copies(x: torch.Tensor) -> torch.Tensor:
        return torch.as_strided_copy(x, (3,), (1,)) + torch.as_strided_copy(x.t(), (3,), (1,))

    def program(d: str) -> Any:
        x = VIEWS[view](torch.arange(12.0, device=d).view(3, 4))
        return torch.compile(copies, backend="pjrt")(x) if d != "cpu" else copies(x)

    agree(program)


def test_windows_beyond_the_memory_are_refused_at_the_call() -> None:
    both_raise(lambda d: torch.as_strided_copy(torch.zeros(3, 4, device=d), (3,), (100,)))
    both_raise(lambda d: torch.as_strided_copy(torch.zeros(0, device=d), (1,), (1,)))
    both_raise(lambda d: torch.as_strided_scatter(torch.zeros(6, device=d), torch.ones(3, device=d), (3,), (100,)))
    both_raise(lambda d: torch.as_strided_scatter(torch.zeros(6, device=d), torch.ones(2, device=d), (3,), (1,)))
