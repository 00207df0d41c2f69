"""Ops of other libraries (`torch.library`) on the device: those with a kernel for the CPU alone run there.

The core records ATen's ops, and registers nothing for other namespaces. An op with a kernel for any device
(`custom_op` without `device_types`) never comes here: its own code runs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload

_LIBRARY: torch.library.Library | None = None


def take_in_foreign_ops() -> None:
    """Register for each op without a kernel for the device what runs it on the CPU."""
    global _LIBRARY
    _LIBRARY = torch.library.Library("_", "IMPL")
    _LIBRARY.fallback(_run, "PrivateUse1")


def _run(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    if op.namespace == "aten" or not torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CPU"):
        name = torch._C._get_privateuse1_backend_name()
        raise NotImplementedError(
            f"Could not run '{op.name()}' with arguments from the '{name}' backend: it has no kernel"
        )
    from .fallback import run_on_cpu

    given = dict(zip((a.name for a in op._schema.arguments), args, strict=False)) | kwargs
    return run_on_cpu(op, [given.get(a.name, a.default_value) for a in op._schema.arguments])
