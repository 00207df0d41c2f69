"""The attention of jagged tensors, which PyTorch chooses in Python by asking for kernels of CUDA.

On the device it is `_flash_attention_forward` (lowering/varlen_attention.py), as on CUDA, wherever no mask is given and
the program has not switched flash attention off. CUDA's kernel takes half precision and widths that are multiples of 8,
to which PyTorch would pad (it cannot, jagged tensors have no `pad`); ours takes all. On the CPU PyTorch has its formula
alone, which knows no causal mask and no query, key and value that are parts of one tensor.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from torch.nn.attention import SDPBackend

from ..imported import when_imported


def choose_flash_attention(name: str) -> None:
    """For jagged tensors on the device of this name, now or as soon as PyTorch's module is imported."""
    when_imported("torch.nested._internal.sdpa", functools.partial(_install, name))


def _install(name: str, module: ModuleType) -> None:
    choose, pad, enabled = module._select_sdp_backend, module._pad_last_dim, module.flash_sdp_enabled

    @functools.wraps(choose)
    def select(query: Any, key: Any, value: Any, attn_mask: Any, *rest: Any) -> Any:
        if query.device.type == name and attn_mask is None and enabled():
            return SDPBackend.FLASH_ATTENTION
        return choose(query, key, value, attn_mask, *rest)

    @functools.wraps(pad)
    def pad_last_dim(tensor: Any, *rest: Any) -> Any:
        return tensor if tensor.device.type == name else pad(tensor, *rest)

    vars(module).update(_select_sdp_backend=select, _pad_last_dim=pad_last_dim)
