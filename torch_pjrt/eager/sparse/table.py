"""The table of our own kernels for sparse tensors: (overload, dispatch key) -> function over device tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Kernel = Callable[..., Any]
COO, COMPRESSED = "SparsePrivateUse1", "SparseCsrPrivateUse1"
# The keys of the CPU's sparse tensors.
SOURCE = {COO: "SparseCPU", COMPRESSED: "SparseCsrCPU"}
KERNELS: dict[tuple[str, str], Kernel] = {}


def sparse_op(*names: str, key: str = COO) -> Callable[[Kernel], Kernel]:
    """Register the kernel of ATen overloads for a dispatch key, called with what PyTorch passes.

    It may return `NotImplemented`: then the call runs on the CPU.
    """

    def register(fn: Kernel) -> Kernel:
        KERNELS.update({(f"aten::{name}", key): fn for name in names})
        return fn

    return register
