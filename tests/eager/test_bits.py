"""Views with a lazy conj or neg bit, read and written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ..conftest import DEVICE

module = getattr(torch, DEVICE)


def _neg(base: Tensor) -> Tensor:
    view: Tensor = torch._neg_view(base)
    return view


WRITES: dict[str, Callable[[Tensor], Any]] = {
    "copy_": lambda v: v.copy_(torch.arange(3.0, device=v.device)),
    "copy_ from the host": lambda v: v.copy_(torch.arange(3.0)),
    "an op in place": lambda v: v.mul_(2).add_(1),
    "fill_": lambda v: v.fill_(5),
    "a slice": lambda v: v[1:].copy_(v[:-1].clone()),
    "out=": lambda v: torch.sin(v.clone(), out=v),
}


@pytest.mark.parametrize("mode", ["fused", "strict"])
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("kind", ["neg", "conj", "both"])
def test_what_is_written_through_a_bit_is_read_through_it_and_below_it(kind: str, write: str, mode: str) -> None:
    def run(device: str) -> tuple[Tensor, Tensor]:
        dtype = torch.float32 if kind == "neg" else torch.complex64
        base = torch.tensor([1.0, -2.0, 3.0]).to(dtype)
        base = (base + 1j * base.real.flip(0) if dtype.is_complex else base).to(device)
        view = base if kind == "neg" else base.conj()
        view = view if kind == "conj" else _neg(view)
        WRITES[write](view)
        return base.cpu().resolve_neg(), view.cpu().resolve_conj().resolve_neg()

    with module.eager_mode(mode):
        for got, want in zip(run(DEVICE), run("cpu"), strict=True):
            torch.testing.assert_close(got, want)


def test_a_random_draw_into_a_negated_view() -> None:
    base = torch.zeros(100, device=DEVICE)
    _neg(base).exponential_()
    assert bool((base <= 0).all())
    assert float(base.mean()) < -0.5
