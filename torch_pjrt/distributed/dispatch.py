"""The thread that dispatches collectives.

XLA:CPU runs a small program in the thread that dispatches it, so that an all-reduce of three numbers does not return
until all members have come. The program's own thread has to be able to give up, and to hear Ctrl-C.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

from ..runtime import waiting

_queue: queue.SimpleQueue[_Task] = queue.SimpleQueue()
_thread: threading.Thread | None = None


class _Task:
    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call
        self.ended = threading.Event()
        self.result: Any = None
        self.error: BaseException | None = None


def dispatch(call: Callable[[], Any]) -> Any:
    """What `call()` returns, or raises, in the thread of collectives; what a guard raises while waiting for it."""
    global _thread
    if _thread is None:
        _thread = threading.Thread(target=_serve, name="torch_pjrt collectives", daemon=True)
        _thread.start()
    task = _Task(call)
    _queue.put(task)
    waiting.until_set(task.ended)
    if task.error is not None:
        raise task.error
    return task.result


def dispatched(program: Callable[..., Any]) -> Callable[..., Any]:
    """The program, called by `dispatch`."""
    return lambda *arrays: dispatch(lambda: program(*arrays))


def _serve() -> None:
    while True:
        task = _queue.get()
        try:
            task.result = task.call()
        except BaseException as error:
            task.error = error
        task.ended.set()
        del task
