"""How much memory a device has, how much of it is free, and the error where there is too little."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import NoReturn

import torch

from .. import _C

# How many of the arrays in use the error of a device without memory names.
_NAMED = 8


@dataclass(frozen=True, slots=True)
class LiveArray:
    """One array in use: what a tensor's storage is made of.

    Attributes:
        line: the line of the user's program that made it ("train.py:12 in main"), if it is known.
        identity: a number that tells the arrays in use apart.
    """

    nbytes: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    line: str | None
    identity: int

    def __str__(self) -> str:
        kind = f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}"
        return f"{size(self.nbytes):>10}  {kind}" + (f"  {self.line}" if self.line else "")


def live_arrays(index: int) -> list[LiveArray]:
    """The arrays in use on a device, the largest first."""
    return sorted(map(_live_array, _C.live_arrays(index)), key=lambda a: a.nbytes, reverse=True)


def _live_array(described: tuple[int, int, tuple[int, ...], str | None, int]) -> LiveArray:
    from ..eager.infer import dtype_of

    nbytes, dtype, shape, line, identity = described
    return LiveArray(nbytes, dtype_of(dtype), shape, line, identity)


def memory_info(index: int) -> tuple[int, int]:
    """(free, total) bytes, a mesh's of all its devices together; where the memory is the host's (cpu), the host's."""
    from .meshes import devices_of

    stats = [d.memory_stats() for d in devices_of(index)]
    if all(s and "bytes_limit" in s for s in stats):
        total = sum(int(s["bytes_limit"]) for s in stats)
        return total - sum(int(s.get("bytes_in_use", 0)) for s in stats), total
    page = os.sysconf("SC_PAGE_SIZE")
    return os.sysconf("SC_AVPHYS_PAGES") * page, os.sysconf("SC_PHYS_PAGES") * page


_fractions: dict[int, float] = {}


def fraction(index: int) -> float:
    """The part of the device's memory that arrays may take; 1.0 if there is no limit."""
    return _fractions.get(index, 1.0)


def limit_to(index: int, part: float) -> None:
    """Let arrays take at most this part of the device's memory."""
    _C.set_memory_limit(index, int(part * memory_info(index)[1]) if part < 1 else -1)
    _fractions[index] = part


def out_of_memory(index: int, nbytes: int, largest: tuple[int, int, tuple[int, ...], str | None, int]) -> NoReturn:
    """Raise torch.OutOfMemoryError: `nbytes` more, `largest` the largest array among them, would pass the limit."""
    total = memory_info(index)[1]
    limit = f"the limit is {size(int(fraction(index) * total))} (set_per_process_memory_fraction({fraction(index)}))"
    raise error(index, f"{size(nbytes)} more are needed, the largest array of them\n  {_live_array(largest)}", limit)


def exhausted(index: int, failure: Exception, what: str) -> torch.OutOfMemoryError | None:
    """The error for a failure of the runtime, if it says that memory ran out; `what` was being done then."""
    if "RESOURCE_EXHAUSTED" not in str(failure):
        return None
    free, total = memory_info(index)
    return error(index, f"{what}: {failure}", f"{size(free)} of {size(total)} are free")


def error(index: int, request: str, limit: str) -> torch.OutOfMemoryError:
    """The error that names what was asked for, what is in use and the largest arrays with the lines that made them."""
    _C.note_out_of_memory(index)
    name = torch._C._get_privateuse1_backend_name()
    arrays = live_arrays(index)
    in_use = sum(a.nbytes for a in arrays)
    lines = [f"{name}:{index} is out of memory. {request}", f"In use: {size(in_use)} by {len(arrays)} arrays; {limit}."]
    if arrays:
        lines += ["The largest arrays in use:", *(f"  {a}" for a in arrays[:_NAMED])]
    lines.append(
        "Free tensors that are no longer needed, or compute with a smaller batch; what was recorded and has not run "
        "waits, and is run again at the next use."
    )
    return torch.OutOfMemoryError("\n".join(lines))


def size(nbytes: float) -> str:
    """Bytes for people: "1.50 GiB".

    Example:
        >>> size(1536)
        '1.50 KiB'
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(nbytes) < 1024:
            return f"{nbytes:.0f} B" if unit == "B" else f"{nbytes:.2f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.2f} TiB"
