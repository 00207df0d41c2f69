"""Methods of storages that PyTorch writes for memory it can address: on the device they go by way of the CPU.

A device storage's address is no page's. `byteswap` dereferences it all the same, and the legacy file format
(`torch.save(..., _use_new_zipfile_serialization=False)`) makes a tensor over it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import UntypedStorage


def go_by_way_of_the_cpu(name: str) -> None:
    """Give device storages a `byteswap`, and what `torch.save` and `torch.load` need for the legacy file format."""
    for method, changes in (("_byteswap", True), ("_set_from_file", True), ("_write_file", False)):
        setattr(UntypedStorage, method, _on_a_copy(name, getattr(UntypedStorage, method), changes))


def _on_a_copy(name: str, method: Callable[..., Any], changes: bool) -> Callable[..., Any]:
    """The method, of device storages called on a copy on the CPU; with `changes` its bytes are copied back."""

    @functools.wraps(method)
    def called(self: UntypedStorage, *args: Any, **kwargs: Any) -> Any:
        if self.device.type != name:
            return method(self, *args, **kwargs)
        on_cpu = self.cpu()
        result = method(on_cpu, *args, **kwargs)
        if changes:
            self.copy_(on_cpu)
        return self if isinstance(result, UntypedStorage) else result

    return called
