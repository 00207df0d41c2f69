"""A worker's line to the benchmark that started it: one JSON object a line, and the figures it reports there."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path


class Channel:
    """Replies go to what was standard output; whatever a library prints goes to standard error instead."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def send(self, **reply: object) -> None:
        print(json.dumps(reply), file=self._out, flush=True)

    def commands(self) -> Iterator[list[str]]:
        """The words of each line that the benchmark sends, until it closes the pipe."""
        for line in sys.stdin:
            yield line.split()


class Memory:
    """Peak resident memory above what the process had after its imports and the start of its device."""

    def __init__(self) -> None:
        self.baseline = _status_mb("VmRSS")
        self.reset()

    def reset(self) -> None:
        """Forget the peak so far."""
        Path("/proc/self/clear_refs").write_text("5")

    def peak(self) -> float:
        """MB since the last `reset`, less the baseline."""
        return _status_mb("VmHWM") - self.baseline


def _status_mb(key: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) / 1024
    raise KeyError(f"/proc/self/status has no {key}")
