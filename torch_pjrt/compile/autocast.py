"""Higher-order ops under autocast: what PyTorch says of the CPU's autocast key, said of the device's too."""

from __future__ import annotations

from typing import Any

import torch
from torch._C import DispatchKey, DispatchKeySet
from torch._higher_order_ops.flex_attention import _autocast_cast, flex_attention  # type: ignore[attr-defined]

_KEY: DispatchKey = DispatchKey.AutocastPrivateUse1  # type: ignore[attr-defined]


def pass_autocast(name: str) -> None:
    """Let higher-order ops through, those of later modules too: casts happen in their bodies."""
    if not flex_attention.has_kernel_for_dispatch_key(_KEY):
        _cast_attention(name)
    for hop in torch._ops._higher_order_ops.values():
        if not hop.has_kernel_for_dispatch_key(_KEY):
            hop.fallthrough(_KEY)
    torch._ops._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS.append(_KEY)


def _cast_attention(name: str) -> None:
    """flex_attention has no cast in its bodies: query, key and value are cast before."""

    @flex_attention.py_impl(_KEY)
    def cast(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any) -> Any:
        dtype = torch.get_autocast_dtype(name)
        query, key, value = (_autocast_cast(t, name, dtype) for t in (query, key, value))
        with torch._C._ExcludeDispatchKeyGuard(DispatchKeySet(_KEY)):
            return flex_attention(query, key, value, *rest)
