"""Sparse tensors that the tests of this folder share."""

from __future__ import annotations

import torch
from torch import Tensor


def coalesced(device: str, dtype: torch.dtype = torch.float32) -> Tensor:
    """2 × 3, three entries."""
    values = torch.tensor([1, 2, 3], dtype=dtype)
    return torch.sparse_coo_tensor([[0, 1, 1], [2, 0, 2]], values, (2, 3), device=device).coalesce()


def other(device: str, dtype: torch.dtype = torch.float32) -> Tensor:
    """Of the same shape, with two places in common."""
    values = torch.tensor([9, 8, 7], dtype=dtype)
    return torch.sparse_coo_tensor([[0, 1, 1], [2, 1, 2]], values, (2, 3), device=device).coalesce()


def uncoalesced(device: str, dtype: torch.dtype = torch.float32) -> Tensor:
    """The same places as `coalesced`, one of them twice, out of order."""
    values = torch.tensor([1, 2, 3, 4], dtype=dtype)
    return torch.sparse_coo_tensor([[1, 0, 1, 1], [2, 2, 0, 2]], values, (2, 3), device=device)


def hybrid(device: str) -> Tensor:
    """4 × (2): rows are sparse, what is in them is dense."""
    return torch.sparse_coo_tensor([[0, 2, 2]], torch.arange(6.0).reshape(3, 2), (4, 2), device=device)


def empty(device: str) -> Tensor:
    """2 × 3 without entries."""
    return torch.sparse_coo_tensor(torch.zeros(2, 0, dtype=torch.int64), torch.zeros(0), (2, 3), device=device)


def counting(device: str, *shape: int) -> Tensor:
    """1, 2, 3, ... in a shape."""
    return torch.arange(1.0, 1 + torch.Size(shape).numel(), device=device).reshape(shape)


def striped(device: str) -> Tensor:
    """A dense 4 × 6 matrix, two thirds of it zero."""
    numbers = torch.arange(24, device=device).reshape(4, 6)
    return torch.where(numbers % 3 == 0, numbers, 0).to(torch.float32)


COO = {"coalesced": coalesced, "uncoalesced": uncoalesced, "hybrid": hybrid, "empty": empty}
COMPRESSED = {
    "csr": lambda device: coalesced(device).to_sparse_csr(),
    "csc": lambda device: coalesced(device).to_sparse_csc(),
    "bsr": lambda device: striped(device).to_sparse_bsr((2, 2)),
    "bsc": lambda device: striped(device).to_sparse_bsc((2, 3)),
    "empty csr": lambda device: torch.zeros(2, 3, device=device).to_sparse_csr(),
}
