"""Copies of and into a tensor's memory: nodes know values, not where they lie, so these are made of views of it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..infer import dtype_of
from .table import host_op


@host_op("aten::as_strided_copy")
def as_strided_copy(
    self: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Tensor:
    return self.as_strided(size, stride, storage_offset).clone(memory_format=torch.contiguous_format)


@host_op("aten::view_copy.dtype")
def view_copy_dtype(self: Tensor, dtype: int) -> Tensor:
    return self.view(dtype_of(dtype)).clone(memory_format=torch.contiguous_format)


@host_op("aten::as_strided_scatter")
def as_strided_scatter(
    self: Tensor, src: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Tensor:
    """A copy of all of self's memory, in which `src` is written to the window that as_strided describes."""
    if torch._debug_has_internal_overlap(self) == 1:
        self = self.clone(memory_format=torch.contiguous_format)
    count = self.untyped_storage().nbytes() // self.element_size()
    memory = self.as_strided((count,), (1,), 0).clone()
    window = memory.as_strided(size, stride, self.storage_offset() if storage_offset is None else storage_offset)
    if window.shape != src.shape:
        raise RuntimeError(
            f"expected src to have a size equal to the slice of self. src size = {list(src.shape)}, "
            f"slice size = {list(window.shape)}"
        )
    window.copy_(src)
    return memory.as_strided(self.shape, self.stride(), self.storage_offset())
