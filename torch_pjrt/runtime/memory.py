"""How much memory a device has, and how much of it is free."""

from __future__ import annotations

import os

from .client import device


def memory_info(index: int) -> tuple[int, int]:
    """(free, total) bytes. Platforms that live in host memory (cpu) report the host's."""
    stats = device(index).memory_stats()
    if stats and "bytes_limit" in stats:
        total = int(stats["bytes_limit"])
        return total - int(stats.get("bytes_in_use", 0)), total
    page = os.sysconf("SC_PAGE_SIZE")
    return os.sysconf("SC_AVPHYS_PAGES") * page, os.sysconf("SC_PHYS_PAGES") * page
