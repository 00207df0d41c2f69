"""Registering the backend with PyTorch: the name, the device module, the methods, the optimizer hook."""

from __future__ import annotations

import functools
import os
import re
import sys
from typing import Any

import torch

from .. import _C
from .modes import MODE_VARIABLE, mode_number


def backend_name() -> str:
    """`TORCH_PJRT_DEVICE_NAME`, else "tpu" or "neuron" where such a chip runs the device, else "pjrt"."""
    asked = os.environ.get("TORCH_PJRT_DEVICE_NAME", "").strip()
    if asked:
        if not re.fullmatch(r"[a-z][a-z0-9_]*", asked):
            raise ValueError(f"TORCH_PJRT_DEVICE_NAME={asked!r}: expected lower-case letters, digits and _")
        return asked
    from ..runtime.platform import platform

    return platform() if platform() in ("tpu", "neuron") else "pjrt"


@functools.cache
def register_backend() -> None:
    """Register everything, once."""
    name = backend_name()
    torch.utils.rename_privateuse1_backend(name)
    torch._register_device_module(name, sys.modules[f"{__package__}"])
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    mode = os.environ.get(MODE_VARIABLE)
    if mode:
        _C.set_eager_mode(mode_number(mode))
    from torch.optim.optimizer import register_optimizer_step_post_hook

    register_optimizer_step_post_hook(_cut_after_step)


def _cut_after_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """The end of an optimizer step is where step N and step N + 1 of any training loop look the same."""
    _C.flush_all()
