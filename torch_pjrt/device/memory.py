"""Memory in use: bytes of the arrays that live tensors are made of. `torch.accelerator` has the same figures."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch

from .. import _C
from .devices import index_of


def memory_stats(device: Any = None) -> OrderedDict[str, Any]:
    """All figures of a device under the names that CUDA uses ("allocated_bytes.all.current", ...)."""
    stats: OrderedDict[str, Any] = torch.accelerator.memory_stats(index_of(device))
    return stats


def memory_allocated(device: Any = None) -> int:
    """Bytes of the arrays in use. A tensor that was never written to has none."""
    return int(memory_stats(device).get("allocated_bytes.all.current", 0))


def max_memory_allocated(device: Any = None) -> int:
    """The most bytes that were in use at once since the start or `reset_peak_memory_stats`."""
    return int(memory_stats(device).get("allocated_bytes.all.peak", 0))


def memory_reserved(device: Any = None) -> int:
    """The same as `memory_allocated`: this backend keeps no memory of its own, PJRT does."""
    return memory_allocated(device)


def max_memory_reserved(device: Any = None) -> int:
    """The same as `max_memory_allocated`."""
    return max_memory_allocated(device)


def reset_peak_memory_stats(device: Any = None) -> None:
    """Begin a new peak at what is in use now."""
    torch.accelerator.reset_peak_memory_stats(index_of(device))


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """(free, total) bytes of the device; of the host where the device lives in host memory."""
    from ..runtime.memory import memory_info

    return memory_info(index_of(device))


def empty_cache() -> None:
    """Drop what is held for reuse: nothing here; arrays of dead tensors are given back to PJRT at once."""
    _C.flush_all()
