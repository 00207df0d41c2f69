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


def memory_stats_as_nested_dict(device: Any = None) -> dict[str, Any]:
    """The figures of `memory_stats`, each part of a name a dict of its own."""
    stats: dict[str, Any] = torch._C._accelerator_getDeviceStats(index_of(device))
    return stats


def memory_allocated(device: Any = None) -> int:
    """Bytes of the arrays in use. A tensor that was never written to has none."""
    return int(memory_stats(device)["allocated_bytes.all.current"])


def max_memory_allocated(device: Any = None) -> int:
    """The most bytes that were in use at once since the start or `reset_peak_memory_stats`.

    What a program takes while it runs is in it: intermediate results of a trace, as XLA planned their memory.
    """
    return int(memory_stats(device)["allocated_bytes.all.peak"])


def memory_reserved(device: Any = None) -> int:
    """The same as `memory_allocated`: this backend keeps no memory of its own, PJRT does."""
    return memory_allocated(device)


def max_memory_reserved(device: Any = None) -> int:
    """The same as `max_memory_allocated`."""
    return max_memory_allocated(device)


def reset_peak_memory_stats(device: Any = None) -> None:
    """Begin a new peak at what is in use now."""
    torch.accelerator.reset_peak_memory_stats(index_of(device))


def reset_accumulated_memory_stats(device: Any = None) -> None:
    """Set the figures that only grow ("allocated", "freed", "num_ooms") to zero."""
    torch.accelerator.reset_accumulated_memory_stats(index_of(device))


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """The figures as a table for people, and the largest arrays with the lines that made them.

    Args:
        abbreviated: leave the arrays out.

    Example:
        >>> print(torch.pjrt.memory_summary())
        pjrt:0 (cpu): 12.00 MiB in use by 3 arrays, at most 20.00 MiB at once
        ...
    """
    from ..runtime.memory import live_arrays, size
    from .properties import get_device_name

    index = index_of(device)
    stats = memory_stats(index)
    free, total = mem_get_info(index)
    name = torch._C._get_privateuse1_backend_name()
    used, peak = (size(stats[f"allocated_bytes.all.{k}"]) for k in ("current", "peak"))
    arrays = stats["allocation.all.current"]
    lines = [f"{name}:{index} ({get_device_name(index)}): {used} in use by {arrays} arrays, at most {peak} at once"]
    for label, key, show in (
        ("bytes made", "allocated_bytes.all.allocated", size),
        ("bytes freed", "allocated_bytes.all.freed", size),
        ("arrays made", "allocation.all.allocated", str),
        ("arrays freed", "allocation.all.freed", str),
        ("out of memory", "num_ooms", str),
    ):
        lines.append(f"  {label:<14}{show(stats[key]):>12}")
    lines.append(f"  {'free, total':<14}{size(free):>12} of {size(total)}")
    if not abbreviated:
        lines += [f"  {a}" for a in live_arrays(index)[:_SHOWN]]
    return "\n".join(lines)


# How many arrays a summary names.
_SHOWN = 20


def memory_snapshot(device: Any = None) -> list[dict[str, Any]]:
    """The arrays in use, the largest first, in the form of `torch.cuda.memory_snapshot`: one segment of one block each.

    Each has "device", "address" (it tells arrays apart; it is not one of memory), "total_size" (bytes), "dtype",
    "shape" and "blocks", whose "frames" name the line that made the array.
    """
    from ..runtime.memory import live_arrays

    index = index_of(device)
    return [
        {
            "device": index,
            "address": a.identity,
            "total_size": a.nbytes,
            "allocated_size": a.nbytes,
            "active_size": a.nbytes,
            "segment_type": "large",
            "dtype": a.dtype,
            "shape": a.shape,
            "blocks": [
                {"address": a.identity, "size": a.nbytes, "requested_size": a.nbytes, "state": "active_allocated",
                 "frames": _frames(a.line)},
            ],
        }
        for a in live_arrays(index)
    ]  # fmt: skip


def _frames(line: str | None) -> list[dict[str, Any]]:
    """The frame that a source line ("file:12 in function") names."""
    place, _, function = (line or "").partition(" in ")
    file, _, number = place.rpartition(":")
    return [{"filename": file, "line": int(number), "name": function}] if number.isdecimal() else []


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """(free, total) bytes of the device; of the host where the device lives in host memory."""
    info: tuple[int, int] = torch.accelerator.get_memory_info(index_of(device))
    return info


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    """Let the tensors of this process take at most this part of a device's memory.

    What would pass the limit raises torch.OutOfMemoryError before it runs. The limit counts the arrays of tensors, as
    `memory_allocated` does. 1.0 takes the limit away.

    Raises:
        ValueError: fraction is not in 0 … 1.

    Example:
        >>> torch.pjrt.set_per_process_memory_fraction(0.5)
    """
    from ..runtime.memory import limit_to

    if not isinstance(fraction, float | int) or not 0 <= fraction <= 1:
        raise ValueError(f"fraction {fraction!r}: expected a number from 0 to 1, a part of the device's memory")
    limit_to(index_of(device), float(fraction))


def get_per_process_memory_fraction(device: Any = None) -> float:
    """The part of a device's memory that the tensors of this process may take."""
    from ..runtime.memory import fraction

    return fraction(index_of(device))


def empty_cache() -> None:
    """Give back what waits to be given back. Nothing is held for reuse here: PJRT does that."""
    _C.flush_all()
    torch.accelerator.empty_cache()
