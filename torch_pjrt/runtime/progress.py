"""A line on the terminal while a program takes long to compile: what it is, and for how long already.

Nothing is shown where stderr is no terminal, and nothing after `TORCH_PJRT_PROGRESS=0`. The line is written to the
terminal itself, not through Python's buffer: a thread that the end of the process stops in there would leave it locked.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

# Seconds after which a compile is long, and from one look at the clock to the next.
_LONG = 5.0
_BETWEEN = 1.0
# Seconds that a compile waits at its end for a terminal that takes no output (Ctrl-S).
_PATIENCE = 0.2

# There is one line: of several programs that compile at once, it is that of the first that takes long.
_TAKEN = threading.Lock()


@contextmanager
def compiling(what: Callable[[], str]) -> Iterator[None]:
    """Show the line if what is done within takes more than 5 s, and erase it at the end.

    Example:
        >>> with compiling(lambda: "the forward graph of 365 nodes"):
        ...     compile_it()
        torch_pjrt: compiling the forward graph of 365 nodes, 12 s
    """
    terminal = _terminal()
    if terminal is None:
        yield
        return
    line = _Line(terminal, what)
    threading.Thread(target=line.run, name="torch_pjrt progress", daemon=True).start()
    try:
        yield
    finally:
        line.end()


class _Line:
    def __init__(self, terminal: int, what: Callable[[], str]) -> None:
        self.terminal = terminal
        self.what = what
        self.began = time.perf_counter()
        self.ended = threading.Event()
        self.writing = threading.Lock()
        self.shown = 0

    def run(self) -> None:
        """Write the line, from when it is due until the end."""
        if self.ended.wait(_LONG):
            return
        while not _TAKEN.acquire(blocking=False):
            if self.ended.wait(_BETWEEN):
                return
        try:
            with suppress(OSError):  # the terminal is gone
                while self._write():
                    self.ended.wait(_BETWEEN)
        finally:
            _TAKEN.release()

    def _write(self) -> bool:
        with self.writing:
            if self.ended.is_set():
                return False
            text = f"torch_pjrt: compiling {self.what()}, {time.perf_counter() - self.began:.0f} s"
            text = text[: _columns(self.terminal) - 1]  # one that wraps could not be erased
            os.write(self.terminal, f"\r{text.ljust(self.shown)}".encode())
            self.shown = len(text)
        return True

    def end(self) -> None:
        """Erase it, unless the terminal is stuck."""
        self.ended.set()
        if not self.writing.acquire(timeout=_PATIENCE):
            return
        try:
            if self.shown:
                with suppress(OSError):
                    os.write(self.terminal, f"\r{' ' * self.shown}\r".encode())
        finally:
            self.writing.release()


def _terminal() -> int | None:
    """The file descriptor of stderr if that is a terminal that may be written to."""
    if os.environ.get("TORCH_PJRT_PROGRESS", "").strip() == "0":
        return None
    try:
        descriptor = sys.stderr.fileno()
        return descriptor if os.isatty(descriptor) else None
    except (AttributeError, OSError, ValueError):  # none at all, one that Python made up, one that is closed
        return None


def _columns(terminal: int) -> int:
    try:
        return os.get_terminal_size(terminal).columns or 80
    except OSError:
        return 80
