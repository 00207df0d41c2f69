"""Sparse tensors of the device: PyTorch's own sparse tensors, over dense tensors of the device.

Their bookkeeping is PyTorch's (`names`, `borrowed`); what reads numbers is composed of dense ops (`kernels` and its
rooms); what neither has goes through the CPU (`..fallback`).
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch._ops import OpOverload

from ... import _C
from ...runtime.unwatched import unwatched
from .names import BORROWED, OURS
from .table import COMPRESSED, COO, SOURCE, Kernel

_LIBRARIES: list[torch.library.Library] = []


def take_in_sparse_tensors() -> None:
    """Register the kernels of both dispatch keys of sparse tensors."""
    library = torch.library.Library("aten", "IMPL")
    rest = torch.library.Library("_", "IMPL")
    _LIBRARIES.extend([library, rest])
    for key in (COO, COMPRESSED):
        for name in OURS[key]:
            library.impl(f"aten::{name}", unwatched(_late(f"aten::{name}", key)), key)
        for name in BORROWED[key]:
            there = torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", SOURCE[key])
            if there and name not in OURS[key]:
                base, _, overload = name.partition(".")
                _C.borrow_kernel(f"aten::{base}", overload, SOURCE[key], key)
        rest.fallback(unwatched(functools.partial(_elsewhere, SOURCE[key])), key)


def _late(name: str, key: str) -> Kernel:
    """Our kernel, found when it is called: `import torch` does not import JAX."""

    def call(*args: Any, **kwargs: Any) -> Any:
        from .kernels import kernel

        return kernel(name, key)(*args, **kwargs)

    return call


def _elsewhere(source: str, op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    from .kernels import elsewhere

    return elsewhere(source, op, *args, **kwargs)
