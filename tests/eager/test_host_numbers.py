"""A tensor of one number on the host takes part in an op on the device, as with CUDA; a longer one is refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ..conftest import DEVICE
from .agree import Program, agree

TWO = torch.tensor(2.0)


def ones(d: str) -> Tensor:
    return torch.ones(3, device=d)


def index(d: str) -> Tensor:
    return torch.tensor([1], device=d)


TAKEN: dict[str, Program] = {
    "add": lambda d: ones(d).add_(TWO, alpha=2),
    "on the left": lambda d: TWO / ones(d),
    "clamp": lambda d: ones(d).clamp(min=TWO),
    "copysign": lambda d: torch.copysign(ones(d), -TWO),
    "index_fill": lambda d: ones(d).index_fill(0, index(d), TWO),
    "index_fill_": lambda d: ones(d).index_fill_(0, index(d), TWO),
    "index_put": lambda d: ones(d).index_put((index(d),), TWO),
    "masked_fill": lambda d: ones(d).masked_fill(ones(d) > 0, TWO),
    "masked_fill_": lambda d: ones(d).masked_fill_(ones(d) > 0, TWO),
    "where": lambda d: torch.where(ones(d) > 0, TWO, ones(d)),
    "a list of tensors": lambda d: torch._foreach_mul([ones(d), ones(d)], TWO),
    "full": lambda d: torch.full((2,), TWO, device=d),
}


@pytest.mark.parametrize("program", TAKEN.values(), ids=TAKEN)
def test_a_number_on_the_host_is_taken(program: Program) -> None:
    agree(program)


REFUSED: dict[str, Program] = {
    "stack": lambda d: torch.stack([ones(d)[0], TWO]),
    "cat": lambda d: torch.cat([ones(d), TWO.view(1)]),
    "addr": lambda d: torch.addr(TWO, ones(d), ones(d)),
    "normal": lambda d: torch.normal(TWO, ones(d)),
    "a vector": lambda d: ones(d) + torch.ones(3),
    "a weight": lambda d: torch.nn.functional.linear(ones(d), torch.ones(2, 3)),
}


@pytest.mark.parametrize("program", REFUSED.values(), ids=REFUSED)
def test_two_devices_are_named_and_the_op(program: Program) -> None:
    with pytest.raises(RuntimeError, match=f"(?s)same device.*({DEVICE}:0.*cpu|cpu.*{DEVICE}:0).*aten::"):
        program(DEVICE)
