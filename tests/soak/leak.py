"""Run something many times, read the memory as it goes, and say what grew."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import jax
import torch

DEVICE = torch._C._get_privateuse1_backend_name()
MIB = 2**20
# Device memory, live arrays and compiled programs are exact, and may not grow at all. The host's memory is what the
# kernel says of the process, in which malloc's arenas come and go. 8 MiB are 84 bytes a tensor over 100,000 tensors,
# less than the core keeps of one, and 0.8 KiB a step over 10,000 steps, less than what a leaked jax.Array takes.
HOST_GROWTH = 8 * MIB


@dataclass(frozen=True)
class Figures:
    """The memory after so many turns: bytes in the process and on the device, arrays alive, programs compiled."""

    turn: int
    host: int
    device: int
    arrays: int
    programs: int

    def __str__(self) -> str:
        return (
            f"turn {self.turn:>6}: host {self.host / MIB:7.1f} MiB, device {self.device:>9} bytes "
            f"in {self.arrays} arrays, {self.programs} programs"
        )


def resident() -> int:
    """Bytes of this process that are in memory."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) * 1024


def read(turn: int) -> Figures:
    module = getattr(torch, DEVICE)
    gc.collect()
    module.synchronize()
    programs = module.metrics()["executables_compiled"]
    return Figures(turn, resident(), module.memory_allocated(), len(jax.live_arrays()), programs)


def soak(turn: Callable[[], None], turns: Iterable[int], *, warm: int, readings: int = 30) -> list[Figures]:
    """Call `turn` once for each of `turns` (a range, or a progress bar over one) and read the memory `readings` times.

    The first `warm` turns compile and fill caches: nothing is read before they are over.
    """
    count = len(turns)  # type: ignore[arg-type]
    every = max(1, (count - warm) // readings)
    figures = []
    for i in turns:
        turn()
        if i + 1 >= warm and (i + 1 - warm) % every == 0:
            figures.append(read(i + 1))
    return figures


def growth(figures: list[Figures]) -> list[str]:
    """What grew, in sentences; empty if the memory is flat."""
    found = []
    for name in ("device", "arrays", "programs"):
        course = [getattr(figure, name) for figure in figures]
        if max(course) > course[0]:
            found.append(f"{name}: {course[0]} at turn {figures[0].turn}, then up to {max(course)}")
    if host_growth(figures) > HOST_GROWTH:
        found.append(f"host: grew by {host_growth(figures) / MIB:.1f} MiB; {HOST_GROWTH / MIB:.0f} are allowed")
    return found


def host_growth(figures: list[Figures]) -> float:
    """By how many bytes the process grew from the first third of the readings to the last, by their medians."""
    third = len(figures) // 3
    before, after = (statistics.median(f.host for f in part) for part in (figures[:third], figures[-third:]))
    return after - before
