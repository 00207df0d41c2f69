"""Registering the backend with PyTorch: the name, the device module, the methods, the optimizer hook."""

from __future__ import annotations

import copyreg
import functools
import os
import re
import sys
from typing import Any

import torch
from torch.utils.backend_registration import generate_methods_for_privateuse1_backend, rename_privateuse1_backend

from .. import _C
from ..compile.registration import register_lazily
from ..distributed import registration as distributed
from ..eager.foreign import take_in_foreign_ops
from ..eager.jagged_attention import choose_flash_attention
from ..eager.nested import take_in_nested_tensors
from ..eager.sparse import take_in_sparse_tensors
from ..runtime.platform import platform
from . import interchange, safetensors
from .modes import MODE_VARIABLE, mode_number
from .raw_memory import go_by_way_of_the_cpu
from .sharing import refuse_sharing


def backend_name() -> str:
    """`TORCH_PJRT_DEVICE_NAME`, else "tpu" or "neuron" where such a chip runs the device, else "pjrt"."""
    asked = os.environ.get("TORCH_PJRT_DEVICE_NAME", "").strip()
    if asked:
        if not re.fullmatch(r"[a-z][a-z0-9_]*", asked):
            raise ValueError(f"TORCH_PJRT_DEVICE_NAME={asked!r}: expected lower-case letters, digits and _")
        return asked
    return platform() if platform() in ("tpu", "neuron") else "pjrt"


@functools.cache
def register_backend() -> None:
    """Register everything, once."""
    name = backend_name()
    rename_privateuse1_backend(name)
    torch._register_device_module(name, sys.modules[f"{__package__}"])
    generate_methods_for_privateuse1_backend(for_storage=True)
    mode = os.environ.get(MODE_VARIABLE)
    if mode:
        _C.set_eager_mode(mode_number(mode))
    _C.set_attention_kernels(platform() == "tpu")
    from torch.optim.optimizer import register_optimizer_step_post_hook

    register_optimizer_step_post_hook(_cut_after_step)
    _print_on_host(name)
    register_lazily(name)
    distributed.register(name)
    take_in_foreign_ops()
    choose_flash_attention(name)
    take_in_nested_tensors()
    take_in_sparse_tensors()
    refuse_sharing(name)
    go_by_way_of_the_cpu(name)
    interchange.install(name)
    safetensors.install(name)
    copyreg.pickle(torch.storage.TypedStorage, functools.partial(_reduce_storage, name))


def _cut_after_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """The end of an optimizer step is where step N and step N + 1 of any training loop look the same."""
    _C.flush_all()


def _print_on_host(name: str) -> None:
    """Format the numbers of a device tensor on the CPU, as PyTorch itself does for "xla".

    The formatter slices, compares and reads elements one by one: 7 programs and 37 waits for one 4×4 tensor.
    """
    formatting = torch._tensor_str
    format_values = formatting._tensor_str

    @functools.wraps(format_values)
    def format_on_host(self: torch.Tensor, indent: int) -> str:
        return format_values(self.cpu() if self.device.type == name else self, indent)

    formatting._tensor_str = format_on_host


def _reduce_storage(name: str, storage: torch.storage.TypedStorage) -> Any:
    """Pickle a device storage by way of the CPU: PyTorch's legacy format would read the memory at its address."""
    content = storage._untyped_storage
    if content.device.type != name:
        return storage.__reduce__()
    on_cpu = torch.storage.TypedStorage(wrap_storage=content.cpu(), dtype=storage.dtype, _internal=True)
    return _storage_on, (on_cpu, str(content.device))


def _storage_on(content: torch.storage.TypedStorage, device: str) -> torch.storage.TypedStorage:
    moved = content._untyped_storage.to(device=torch.device(device))
    return torch.storage.TypedStorage(wrap_storage=moved, dtype=content.dtype, _internal=True)
