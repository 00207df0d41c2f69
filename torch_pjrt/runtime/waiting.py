"""Waiting for the device where the wait may be in vain: a program that needs other processes may never end.

PJRT has no wait with a time limit, and none that hears Ctrl-C. While there are guards, the host therefore asks again
and again instead, and between two questions each guard may raise.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from . import interrupts

if TYPE_CHECKING:
    import jax

# Seconds between two questions: at first, each time longer by this factor, at most.
_FIRST, _GROWTH, _LONGEST = 2e-5, 1.3, 2e-3

_guards: list[Callable[[], None]] = []


def add_guard(guard: Callable[[], None]) -> None:
    """Have `guard` called while the host waits for the device; it raises where that is in vain."""
    _guards.append(guard)


def remove_guard(guard: Callable[[], None]) -> None:
    """Undo `add_guard`."""
    if guard in _guards:
        _guards.remove(guard)


def until_ready(array: jax.Array) -> None:
    """Return once the array's program has ended. Without guards, return at once.

    Raises what a guard raises, and KeyboardInterrupt, held back or not. If the program failed, guards are asked first.
    """
    if not _guards:
        return
    pause = _FIRST
    while not array.is_ready():  # type: ignore[attr-defined]
        if interrupts.heard():
            raise KeyboardInterrupt
        for guard in tuple(_guards):
            guard()
        time.sleep(pause)
        pause = min(pause * _GROWTH, _LONGEST)
    try:
        array.block_until_ready()
    except RuntimeError:
        for guard in tuple(_guards):
            guard()
        raise
