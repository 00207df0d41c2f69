"""Figures about what the device did, readable by the user as `torch.<name>.metrics()`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Metrics:
    """Counts since the start of the process or the last reset."""

    executables_compiled: int = 0
    compile_seconds: float = 0.0
    executables_loaded: int = 0
    load_seconds: float = 0.0
    bytes_to_device: int = 0
    bytes_to_host: int = 0
    fallbacks: Counter[str] = field(default_factory=Counter)
    host_syncs: Counter[str] = field(default_factory=Counter)

    def snapshot(self) -> dict[str, Any]:
        """A plain dict with the counts of the C++ core among them."""
        from .. import _C

        return {
            **_C.counters(),
            "executables_compiled": self.executables_compiled,
            "compile_seconds": self.compile_seconds,
            "executables_loaded": self.executables_loaded,
            "load_seconds": self.load_seconds,
            "fallbacks": dict(self.fallbacks),
            "host_syncs": dict(self.host_syncs),
            "bytes_to_device": self.bytes_to_device,
            "bytes_to_host": self.bytes_to_host,
        }

    def reset(self) -> None:
        """Back to zero."""
        from .. import _C

        fresh = Metrics()
        self.__dict__.update(fresh.__dict__)
        _C.reset_counters()


METRICS = Metrics()
