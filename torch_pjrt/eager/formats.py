"""Memory formats of results where PyTorch's meta kernels forget them."""

from __future__ import annotations

from typing import Any

import torch
from torch._prims_common import suggest_memory_format

_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def in_format(name: str, given: dict[str, Any], result: Any) -> Any:
    """The meta result of an op in the memory format that CPU PyTorch gives it.

    A convolution's is channels_last if its input's or its weight's is; the meta kernel of `aten::convolution` says
    contiguous always.

    Args:
        name: the op's full name, "aten::convolution".
        given: its arguments by name, on meta.
        result: what its meta kernel returned.
    """
    if name != "aten::convolution":
        return result
    last = _LAST.get(result.dim())
    if last is None or all(suggest_memory_format(given[of]) != last for of in ("input", "weight")):
        return result
    return torch.empty_like(result, memory_format=last)
