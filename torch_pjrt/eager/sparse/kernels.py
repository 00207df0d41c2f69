"""The rooms' kernels, imported when the first sparse tensor of the device is met."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from ..fallback import run_on_cpu
from ..infer import op_named, tensors_in, two_devices
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
from .probe import refuse_what_cpu_refuses
from .table import KERNELS, Kernel

ROOMS = (
    add, coalesce, compressed_layouts, compressed_math, compressed_matmul, matmul, mm_reduce, multiply, reduce, select,
    softmax,
)  # fmt: skip


@functools.cache
def kernel(name: str, key: str) -> Kernel:
    """Our kernel of an overload, with CPU PyTorch's refusals before it."""
    op, own = op_named(name), KERNELS[name, key]

    @functools.wraps(own)
    def checked(*args: Any, **kwargs: Any) -> Any:
        _refuse_two_devices(op, args, kwargs)
        refuse_what_cpu_refuses(op, args, kwargs)
        result = own(*args, **kwargs)
        return _on_cpu(op, *args, **kwargs) if result is NotImplemented else result

    return checked


def elsewhere(source: str, op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """An op without a kernel of ours: on the CPU, if PyTorch has one for sparse tensors there."""
    if not torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), source):
        name = torch._C._get_privateuse1_backend_name()
        raise NotImplementedError(
            f"Could not run '{op.name()}' with arguments from the '{source.removesuffix('CPU')}{name}' backend: "
            "PyTorch has no kernel of it for sparse tensors, on the CPU neither"
        )
    _refuse_two_devices(op, args, kwargs)
    return _on_cpu(op, *args, **kwargs)


def _refuse_two_devices(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise as for dense tensors; a number may lie on the host."""
    given = [*args, *kwargs.values()]
    if len({t.device for t in tensors_in(given) if t.dim() or t.device.type != "cpu"}) > 1:
        raise RuntimeError(two_devices(op, given))


def _on_cpu(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    given = dict(zip((a.name for a in op._schema.arguments), args, strict=False)) | kwargs
    return run_on_cpu(op, [given.get(a.name, a.default_value) for a in op._schema.arguments])
