"""PyTorch's own kernels for sparse CPU tensors that serve the device as they are.

They only call other ops on the indices and values, which are dense device tensors, so they run there. What a table of
ours does not have is borrowed, but for the kernels that read memory themselves.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._C import DispatchKeySet

from .table import SOURCE


@functools.cache
def borrowed(name: str, key: str) -> Callable[..., Any]:
    """PyTorch's kernel of an overload for sparse CPU tensors, e.g. `borrowed("aten::mul.out", COO)`."""
    kernel = torch.library.get_kernel(name, SOURCE[key])
    return functools.partial(kernel.call_boxed, DispatchKeySet(getattr(torch._C.DispatchKey, key)))
