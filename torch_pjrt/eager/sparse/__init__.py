"""Sparse tensors of the device: PyTorch's own sparse tensors, over dense tensors of the device.

Their bookkeeping is PyTorch's (`names`, `borrowed`); what reads numbers is composed of dense ops (the other rooms);
what neither has goes through the CPU (`..fallback`).
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch._ops import OpOverload

from ... import _C
from ...runtime.unwatched import unwatched
from ..infer import op_named
from . import (
    add,
    coalesce,
    compressed_layouts,
    compressed_math,
    compressed_matmul,
    matmul,
    mm_reduce,
    multiply,
    reduce,
    select,
    softmax,
)
from .borrowed import SOURCE
from .names import BORROWED
from .probe import refuse_what_cpu_refuses
from .table import COMPRESSED, COO, KERNELS, Kernel

_ROOMS = (
    add, coalesce, compressed_layouts, compressed_math, compressed_matmul, matmul, mm_reduce, multiply, reduce, select,
    softmax,
)  # fmt: skip
_LIBRARIES: list[torch.library.Library] = []


def take_in_sparse_tensors() -> None:
    """Register the kernels of both dispatch keys of sparse tensors."""
    library = torch.library.Library("aten", "IMPL")
    rest = torch.library.Library("_", "IMPL")
    _LIBRARIES.extend([library, rest])
    for (name, key), kernel in KERNELS.items():
        library.impl(name, unwatched(_whole(name, kernel)), key)
    for key in (COO, COMPRESSED):
        for name in BORROWED[key]:
            if (f"aten::{name}", key) not in KERNELS and torch._C._dispatch_has_kernel_for_dispatch_key(
                f"aten::{name}", SOURCE[key]
            ):
                base, _, overload = name.partition(".")
                _C.borrow_kernel(f"aten::{base}", overload, SOURCE[key], key)
        rest.fallback(unwatched(functools.partial(_elsewhere, SOURCE[key])), key)


def _whole(name: str, kernel: Kernel) -> Kernel:
    """The kernel with CPU PyTorch's refusals before it."""

    @functools.wraps(kernel)
    def checked(*args: Any, **kwargs: Any) -> Any:
        op = op_named(name)
        refuse_what_cpu_refuses(op, args, kwargs)
        result = kernel(*args, **kwargs)
        return _on_cpu(op, *args, **kwargs) if result is NotImplemented else result

    return checked


def _elsewhere(source: str, op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """An op without a kernel of ours: on the CPU, if PyTorch has one for sparse tensors there."""
    if not torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), source):
        name = torch._C._get_privateuse1_backend_name()
        raise NotImplementedError(
            f"Could not run '{op.name()}' with arguments from the '{source.removesuffix('CPU')}{name}' backend: "
            "PyTorch has no kernel of it for sparse tensors, on the CPU neither"
        )
    return _on_cpu(op, *args, **kwargs)


def _on_cpu(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    from ..fallback import run_on_cpu

    given = dict(zip((a.name for a in op._schema.arguments), args, strict=False)) | kwargs
    return run_on_cpu(op, [given.get(a.name, a.default_value) for a in op._schema.arguments])
