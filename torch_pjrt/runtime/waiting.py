"""Waiting for the device where the wait may be in vain: a program that needs other processes may never end.

PJRT has no wait with a time limit, and none that hears Ctrl-C. While there are guards, the host therefore asks again
and again instead, and between two questions each guard may raise.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from . import interrupts

if TYPE_CHECKING:
    import jax

# Seconds between two questions: at first, each time longer by this factor, at most.
_FIRST, _GROWTH, _LONGEST = 2e-5, 1.3, 2e-3
# And where something wakes the host.
_WOKEN = 0.2

_guards: list[Callable[[], None]] = []


def add_guard(guard: Callable[[], None]) -> None:
    """Have `guard` called while the host waits for the device; it raises where that is in vain."""
    _guards.append(guard)


def remove_guard(guard: Callable[[], None]) -> None:
    """Undo `add_guard`."""
    if guard in _guards:
        _guards.remove(guard)


def until_ready(array: jax.Array) -> None:
    """Return once the array's program has ended; what a guard raises is raised. Without guards, return at once."""
    if not _guards:
        return
    pause = _FIRST
    while not array.is_ready():  # type: ignore[attr-defined]
        for guard in tuple(_guards):
            guard()
        time.sleep(pause)
        pause = min(pause * _GROWTH, _LONGEST)


def until_set(event: threading.Event) -> None:
    """Return once the event is set; what a guard raises is raised, as is KeyboardInterrupt, held back or not."""
    while not event.wait(_WOKEN):
        if interrupts.heard():
            raise KeyboardInterrupt
        for guard in tuple(_guards):
            guard()
