"""Indexing by a mask beside an index tensor, and combinations, agree with CPU PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from .test_unique import same

X = torch.arange(120.0).reshape(4, 5, 6)
MASK, INDEX = torch.tensor([True, False, True, True]), torch.tensor([0, 2, 1])
FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "read": lambda x: x[MASK.to(x.device), INDEX.to(x.device)],
    "read apart": lambda x: x[MASK.to(x.device), :, INDEX.to(x.device)],
    "written": lambda x: x.clone().index_put_((MASK.to(x.device), INDEX.to(x.device)), -torch.ones(3, 6).to(x.device)),
    "added to": lambda x: x.clone().index_put_(
        (MASK.to(x.device), INDEX.to(x.device)), torch.ones(6).to(x.device), accumulate=True
    ),
    "combinations": lambda x: torch.combinations(x[0, 0], 3),
    "combinations with replacement": lambda x: torch.combinations(x[0, 0], 2, with_replacement=True),
}


@pytest.mark.parametrize("name", FORMS)
def test_it_agrees(name: str) -> None:
    same(FORMS[name], X)
