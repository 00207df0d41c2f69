"""Programs that were dispatched and may still be running: what synchronizing and events wait for.

A program is known by one of its results, weakly: a strong reference would keep that array from being donated. So one
whose result the user has dropped cannot be waited for, and counts as ended.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING

from .waiting import until_ready

if TYPE_CHECKING:
    import jax

_dispatched = 0
# (number, one of the results): a program's results are all made when it ends.
_running: deque[tuple[int, weakref.ref[jax.Array]]] = deque()
_lock = threading.Lock()
# With more entries than this, those that have ended are dropped.
_MANY = 256


def dispatched(results: list[jax.Array]) -> None:
    """Note that a program was dispatched, by its results."""
    global _dispatched
    with _lock:
        _dispatched += 1
        if not results:
            return
        _running.append((_dispatched, weakref.ref(results[-1])))
        if len(_running) > _MANY:
            still = [entry for entry in _running if not _ended(entry[1])]
            _running.clear()
            _running.extend(still)


def mark() -> int:
    """The number of programs dispatched so far: a moment that `finished` and `wait` can be asked about."""
    return _dispatched


def finished(mark: int) -> bool:
    """Whether every program dispatched before `mark` was taken has ended, on any device."""
    with _lock:
        entries = tuple(_running)
    return all(_ended(result) for number, result in entries if number <= mark)


def wait(mark: int) -> None:
    """Block until every program dispatched before `mark` was taken has ended."""
    while True:
        with _lock:
            entry = _running[0] if _running and _running[0][0] <= mark else None
        if entry is None:
            return
        array = entry[1]()
        if array is not None and not array.is_deleted():
            until_ready(array)
            array.block_until_ready()
        with _lock:  # only now, or another thread would not wait for it; it may have been as quick
            if _running and _running[0] is entry:
                _running.popleft()


def _ended(result: weakref.ref[jax.Array]) -> bool:
    array = result()
    return array is None or array.is_deleted() or array.is_ready()  # type: ignore[attr-defined]
