"""Sparse results as dense tensors, so that `agree` compares layout, sizes, entries and their order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ..agree import agree, both_raise

Program = Callable[[str], Any]


def sparse_agree(program: Program, rtol: float | None = None, atol: float | None = None) -> None:
    """Assert that `program(device)` returns the same on the CPU and on the device; it may return sparse tensors."""
    agree(lambda device: taken_apart(program(device)), rtol, atol)


def refused_alike(program: Program) -> None:
    """Assert that the device refuses what the CPU does, in its words where the CPU's are not its own name."""
    with pytest.raises(Exception) as expected:
        program("cpu")
    said = both_raise(program)
    if "Could not run" not in said:
        assert said == str(expected.value)


def taken_apart(x: Any) -> Any:
    """What a sparse tensor consists of; a COO tensor's entries in order, added up where they were not coalesced."""
    if isinstance(x, (list, tuple)):
        return [taken_apart(i) for i in x]
    if not isinstance(x, Tensor) or x.layout == torch.strided:
        return x
    x = x.detach()
    seen: list[Any] = [str(x.layout), str(x.dtype), list(x.shape), x.dense_dim()]
    if x.layout == torch.sparse_coo:
        whole = x.coalesce()
        return [*seen, whole.indices(), whole.values()]
    by_row = x.layout in (torch.sparse_csr, torch.sparse_bsr)
    indices = (x.crow_indices(), x.col_indices()) if by_row else (x.ccol_indices(), x.row_indices())
    return [*seen, *indices, x.values()]
