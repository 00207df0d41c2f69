"""Numbers as people read them."""

from __future__ import annotations

from ..runtime.memory import size as gib

__all__ = ["gib", "number", "seconds"]


def number(x: float, unit: str = "") -> str:
    """A count with a prefix of ten: "8.19 G", "98.5 TFLOP", "36"."""
    for prefix, size in (("E", 1e18), ("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if x >= size:
            return f"{x / size:.2f} {prefix}{unit}"
    return f"{x:.0f} {unit}".strip()


def seconds(x: float) -> str:
    """A duration: "1.24 s", "31.0 ms", "12.0 µs"."""
    if x >= 1:
        return f"{x:.2f} s"
    if x >= 1e-3:
        return f"{x * 1e3:.1f} ms"
    return f"{x * 1e6:.1f} µs" if x > 0 else "0 s"
