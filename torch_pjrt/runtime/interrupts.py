"""Ctrl-C while a program is being dispatched: kept until its results are bound.

A program may have taken the memory of its inputs (parameters, an optimizer's state) by the time Python hears the
signal. Were KeyboardInterrupt raised between the call and the binding, neither the old values nor the new would be had.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # signal.signal makes enums of its results: 36 µs a flush, this 3 µs
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGINT = int(signal.SIGINT)
_heard = threading.Event()


def hold() -> bool:
    """From now on note Ctrl-C instead of raising. Returns whether there was anything to hold: see `release`.

    Signals are the main thread's business, and a handler of the program's own is left alone.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    if _signal.getsignal(_SIGINT) is not _signal.default_int_handler:
        return False
    _signal.signal(_SIGINT, _note)
    return True


def release(held: bool) -> None:
    """Undo `hold`, given what it returned. Raises KeyboardInterrupt if Ctrl-C was heard in between."""
    if not held:
        return
    _signal.signal(_SIGINT, _signal.default_int_handler)
    if _heard.is_set():
        _heard.clear()
        raise KeyboardInterrupt


@contextmanager
def listening() -> Iterator[None]:
    """Inside, Ctrl-C raises although it is held: nothing is dispatched yet."""
    holding = threading.current_thread() is threading.main_thread() and _signal.getsignal(_SIGINT) is _note
    if holding:
        _signal.signal(_SIGINT, _signal.default_int_handler)
    try:
        if holding and heard():
            raise KeyboardInterrupt
        yield
    finally:
        if holding:
            _signal.signal(_SIGINT, _note)


def heard() -> bool:
    """Whether Ctrl-C was noted. The caller raises KeyboardInterrupt then: it waits for what may never come."""
    if not _heard.is_set() or threading.current_thread() is not threading.main_thread():
        return False
    _heard.clear()
    return True


def _note(number: int, frame: FrameType | None) -> None:
    _heard.set()
