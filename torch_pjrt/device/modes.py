"""Eager modes: when a recorded op runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from .. import _C

MODE_VARIABLE = "TORCH_PJRT_EAGER"
_MODES = ("strict", "async", "fused")  # in the order of EagerMode in modes.h


def mode_number(mode: str) -> int:
    """The C++ core's number of an eager mode; ValueError if there is no such mode."""
    if mode not in _MODES:
        raise ValueError(f"eager mode {mode!r}: expected one of {', '.join(_MODES)}")
    return _MODES.index(mode)


def get_eager_mode() -> str:
    """The eager mode in force: "strict", "async" or "fused"."""
    return _MODES[_C.eager_mode()]


def set_eager_mode(mode: str) -> None:
    """Choose when recorded ops run, for all threads.

    Args:
        mode: "strict": each op at once, waiting for it (debugging: an error is raised at the op that made it);
            "async": each op at once, without waiting; "fused" (default): in traces that are compiled as one program.
            What has been recorded so far runs first.

    Example:
        >>> torch.pjrt.set_eager_mode("strict")
    """
    number = mode_number(mode)
    _C.flush_all()
    _C.set_eager_mode(number)


@contextlib.contextmanager
def eager_mode(mode: str) -> Iterator[None]:
    """The eager mode inside a `with` block; the one before comes back after it.

    Example:
        >>> with torch.pjrt.eager_mode("strict"):
        ...     loss = model(x).sum()
    """
    before = get_eager_mode()
    set_eager_mode(mode)
    try:
        yield
    finally:
        set_eager_mode(before)
