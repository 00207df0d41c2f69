"""Sharing memory between processes: no device client can open another's, so what asks for it is refused at once.

PyTorch takes `share_memory_()` of any custom backend for done, and a tensor put on a queue then fails in the writer's
feeder thread with an error about file descriptors.

What a queue's feeder thread raises is printed there, and whoever waits for the item waits forever: the parent of a
DataLoader's worker, say. So from that thread the error itself is sent, and raised by the receiver's `get`.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing.reductions import reduce_storage


def refuse_sharing(name: str) -> None:
    """Make `share_memory_()` and `torch.multiprocessing` queues, pipes and arguments refuse storages of the device.

    Both then raise RuntimeError, a queue where the item is taken from it; CPU storages are shared as before.
    """
    ForkingPickler.register(torch.UntypedStorage, functools.partial(_reduce, name))
    torch.UntypedStorage.share_memory_ = _refusing(name, torch.UntypedStorage.share_memory_)  # type: ignore[method-assign]


def _reduce(name: str, storage: torch.UntypedStorage) -> Any:
    if threading.current_thread().name == "QueueFeederThread":  # multiprocessing.queues.Queue calls it so
        try:
            _check(name, storage)
        except RuntimeError as error:
            return _raise, (f"{error} (another process put it on a queue, or returned it from a DataLoader's worker)",)
    _check(name, storage)
    return reduce_storage(storage)


def _raise(text: str) -> None:
    raise RuntimeError(text)


def _refusing(name: str, share: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(share)
    def share_memory_(self: torch.UntypedStorage, *args: Any, **kwargs: Any) -> Any:
        _check(name, self)
        return share(self, *args, **kwargs)

    return share_memory_


def _check(name: str, storage: torch.UntypedStorage) -> None:
    if storage.device.type == name:
        raise RuntimeError(
            f"a tensor on {storage.device} cannot be shared with another process: the memory belongs to this process's "
            "PJRT client. Send or share a CPU copy, tensor.cpu(), and move it to the device in the other process; "
            "to train one model from several processes, use torch.distributed"
        )
