"""The attention of jagged tensors, which PyTorch chooses in Python by asking for kernels of CUDA.

On the device it is `_flash_attention_forward` (lowering/varlen_attention.py), as on CUDA, of floats without holes where
no mask is given and the program has not switched flash attention off; what else there is PyTorch decides as on the CPU.
CUDA's kernel takes half precision and widths that are multiples of 8, to which PyTorch would pad (it cannot, jagged
tensors have no `pad`); ours takes all. On the CPU PyTorch has its formula alone, which knows no causal mask and no
query, key and value that are parts of one tensor.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch
from torch.nn.attention import SDPBackend

from ..imported import when_imported


def choose_flash_attention(name: str) -> None:
    """For jagged tensors on the device of this name, now or as soon as PyTorch's module is imported."""
    when_imported("torch.nested._internal.sdpa", functools.partial(_install, name))


def _install(name: str, module: ModuleType) -> None:
    choose, pad, enabled = module._select_sdp_backend, module._pad_last_dim, module.flash_sdp_enabled

    @functools.wraps(choose)
    def select(query: Any, key: Any, value: Any, attn_mask: Any, *rest: Any) -> Any:
        if query.device.type == name and attn_mask is None and enabled() and _is_packed(query, key, value):
            _require_equal_lengths(key, value)
            return SDPBackend.FLASH_ATTENTION
        return choose(query, key, value, attn_mask, *rest)

    @functools.wraps(pad)
    def pad_last_dim(tensor: Any, *rest: Any) -> Any:
        return tensor if tensor.device.type == name else pad(tensor, *rest)

    vars(module).update(_select_sdp_backend=select, _pad_last_dim=pad_last_dim)


def _is_packed(*tensors: Any) -> bool:
    """Whether they are (batch, heads, ragged, width) of floats, one sequence after the other without holes."""
    return all(t.dim() == 4 and t._ragged_idx == 2 and t._lengths is None and t.is_floating_point() for t in tensors)


def _require_equal_lengths(key: Any, value: Any) -> None:
    if key._offsets is not value._offsets:
        same = key._offsets.shape == value._offsets.shape
        if not same or key._values.shape[:-1] != value._values.shape[:-1]:
            raise RuntimeError("scaled_dot_product_attention: key and value are not of as many sequences and tokens")
        said = "scaled_dot_product_attention: the sequences of key and value have different lengths"
        torch._assert_async((key._offsets == value._offsets).all(), said)
