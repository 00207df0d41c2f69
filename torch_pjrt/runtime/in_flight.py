"""Programs that were dispatched and may still be running: what synchronizing and events wait for."""

from __future__ import annotations

import weakref
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import jax

_dispatched = 0
# (number, one of the results): a program's results are all made when it ends.
_running: deque[tuple[int, weakref.ref[jax.Array]]] = deque()
# With more entries than this, those that have ended are dropped.
_MANY = 256


def dispatched(results: list[jax.Array]) -> None:
    """Note that a program was dispatched, by its results."""
    global _dispatched
    _dispatched += 1
    if results:
        _running.append((_dispatched, weakref.ref(results[-1])))
    if len(_running) > _MANY:
        for _ in range(len(_running)):
            entry = _running.popleft()
            if not _ended(entry[1]):
                _running.append(entry)


def mark() -> int:
    """The number of programs dispatched so far: a moment that `finished` and `wait` can be asked about."""
    return _dispatched


def finished(mark: int) -> bool:
    """Whether every program dispatched before `mark` was taken has ended, on any device."""
    return all(_ended(result) for number, result in tuple(_running) if number <= mark)


def wait(mark: int) -> None:
    """Block until every program dispatched before `mark` was taken has ended."""
    while _running and _running[0][0] <= mark:
        try:
            array = _running.popleft()[1]()
        except IndexError:  # another thread took it
            return
        if array is not None and not array.is_deleted():
            array.block_until_ready()


def _ended(result: weakref.ref[jax.Array]) -> bool:
    array = result()
    return array is None or array.is_deleted() or array.is_ready()  # type: ignore[attr-defined]
