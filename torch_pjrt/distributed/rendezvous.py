"""What the members of a group say to each other through PyTorch's store, where a member may never say it."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed import DistBackendError

from . import coordination

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

# How long the store is waited for before something else is looked at.
_LOOK = timedelta(seconds=1)


def named(rank: int, ranks: Sequence[int]) -> str:
    """A member of a group, whose global ranks these are, as errors name it."""
    return f"rank {rank}" if ranks[rank] == rank else f"rank {rank} (global rank {ranks[rank]})"


def say(store: Store, key: str, said: str, ranks: Sequence[int], what: str) -> None:
    """Put `said` into the store, on the way to `what`. Raises DistBackendError if the store has gone."""
    if has_ended(store):  # which is better not asked: it would print the trace of its error
        raise _without_store(store, ranks, what)
    try:
        store.set(key, said)
    except RuntimeError as error:
        raise _without_store(store, ranks, what) from error


def forget(store: Store, key: str) -> None:
    """Remove what was said, which everyone has heard. Where the store has gone, so has that."""
    with suppress(RuntimeError):
        store.delete_key(key)


def hear(
    store: Store,
    key: str,
    rank: int,
    ranks: Sequence[int],
    what: str,
    seconds: float,
    meanwhile: Callable[[], None] | None = None,
) -> str:
    """What a member puts into the store on its way to `what`; waits for it, deaf neither to Ctrl-C nor to its end.

    Args:
        rank: the member's rank in the group, whose global ranks are `ranks`.
        what: names what the members have to come to, for errors.
        seconds: how long it may take.
        meanwhile: called once a second; it raises where the wait is in vain.

    Raises DistBackendError that names the member if it has ended, or does not come in time.
    """
    until = time.monotonic() + seconds
    while True:
        if has_ended(store):
            raise _without_store(store, ranks, what)
        is_gone = bool(coordination.ended([ranks[rank]]))  # asked first: what it said before is in the store
        asked = time.monotonic()
        try:
            if is_gone and not store.check([key]):
                raise DistBackendError(f"{named(rank, ranks)} ended before coming to {what}")
            store.wait([key], min(_LOOK, _left(until)))
            return store.get(key).decode()
        except DistBackendError:
            raise
        except RuntimeError as error:
            if time.monotonic() >= until:
                raise DistBackendError(
                    f"{named(rank, ranks)} did not come to {what} within {seconds:.0f} s: it has ended, hangs, or does "
                    f"something else ({error})"
                ) from error
            if time.monotonic() - asked < _LOOK.total_seconds() / 2:
                raise _without_store(store, ranks, what) from error
        if meanwhile is not None:
            meanwhile()


def _left(until: float) -> timedelta:
    return timedelta(seconds=max(until - time.monotonic(), 0.001))


def _without_store(store: Store, ranks: Sequence[int], what: str) -> DistBackendError:
    gone = ", then ".join(named(ranks.index(r), ranks) for r in coordination.ended(ranks, wait=True))
    why = f"{gone} ended before coming to {what}: " if gone else f"{what} cannot begin: "
    return DistBackendError(why + no_store(store))


def has_ended(store: Store) -> bool:
    """Whether the store was in rank 0's process, which has ended. (Under torchrun it is in torchrun's.)"""
    if not coordination.ended([0]):
        return False
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    if not isinstance(store, TCPStore):
        return False
    try:
        socket.create_connection((store.host, store.port), timeout=_LOOK.total_seconds()).close()
    except OSError:
        return True
    return False


def no_store(store: Store) -> str:
    """What to say of the store where it does not answer."""
    if has_ended(store):
        return "PyTorch's store, which was in the process of global rank 0, is gone with it"
    return "PyTorch's store does not answer any more: the process that it was in (rank 0's, or torchrun's) has ended"
