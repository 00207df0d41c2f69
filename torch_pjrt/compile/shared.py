"""Executables by the content of their graphs: two instances of one model run the same one."""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakValueDictionary

import jax

from ..runtime.executable import Executable
from .report import Origin

# Those that some graph still holds, and the last few besides: a model made anew in a loop compiles nothing.
_KNOWN: WeakValueDictionary[str, Executable] = WeakValueDictionary()
_LATEST: deque[Executable] = deque(maxlen=64)
_TURNS: WeakValueDictionary[str, _Turn] = WeakValueDictionary()
_LOCK = threading.Lock()
_GENERATION = 0


class _Turn:
    """Held by the thread that makes an executable; others that want the same one wait for it."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # a __del__ that runs meanwhile may call a graph, too


def find_or_make(
    content: str | None,
    options: Mapping[str, Any],
    make: Callable[[], tuple[Executable, jax.stages.Lowered | None]],
) -> tuple[Executable, jax.stages.Lowered | None, Origin]:
    """The executable for a graph, what it was lowered from if it was compiled for this one, and where it comes from.

    Args:
        content: what the graph's program depends on; None: it is nobody else's.
        options: XLA's.
        make: `compile_function` on the graph. Of several threads that want the same executable, one calls it.
    """
    if content is None:
        return _made(*make())
    key = hashlib.sha256(f"{sorted(options.items())}\0{content}".encode()).hexdigest()
    with _LOCK:
        turn = _TURNS.setdefault(key, _Turn())
    with turn.lock:
        found = _KNOWN.get(key)
        if found is not None:
            return found, None, "shared"
        executable, lowered = make()
        _KNOWN[key] = executable
        _LATEST.append(executable)
        return _made(executable, lowered)


def _made(
    executable: Executable, lowered: jax.stages.Lowered | None
) -> tuple[Executable, jax.stages.Lowered | None, Origin]:
    return executable, lowered, "loaded" if lowered is None else "compiled"


def forget() -> None:
    """Begin anew, as `torch.compiler.reset()` asks for: nothing made so far is found again."""
    global _GENERATION
    _GENERATION += 1
    _KNOWN.clear()
    _LATEST.clear()


def generation() -> int:
    """How often everything was forgotten: a part of what a recorded graph is known by."""
    return _GENERATION
