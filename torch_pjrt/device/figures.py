"""What the device did: counts that tell whether a program runs as it should."""

from __future__ import annotations

from typing import Any


def metrics() -> dict[str, Any]:
    """Counts since the process began or `reset_metrics()`, as a plain dict.

    ops_recorded: ATen calls recorded; traces_run: programs run; executables_compiled, compile_seconds: programs
    compiled, and the time that took; cache_hits: traces whose program existed; fallbacks: {op: calls} that ran on the
    CPU; host_syncs: {cause: times} the host waited for a value; bytes_to_device, bytes_to_host: transferred.

    Example:
        >>> torch.pjrt.metrics()["fallbacks"]
        {}
    """
    from ..runtime.metrics import METRICS

    return METRICS.snapshot()


def reset_metrics() -> None:
    """Set all of `metrics()` to zero."""
    from ..runtime.metrics import METRICS

    METRICS.reset()
