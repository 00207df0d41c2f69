"""Noticing that the members of a group don't do the same: one has ended, hangs, or calls another collective.

A collective whose members differ waits for ever, or gives wrong numbers. So each member keeps a log of its collectives,
and a thread of its own tells the others of it through PyTorch's store, once a second where there is something new. It
compares the log with that of the next member, and so round the ring. What it finds is raised in the program's own
thread, at the next collective or where the host waits for the device. In eager mode `strict` each collective waits for
all members and compares before it begins.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from torch.distributed import DistBackendError

from ..device.modes import get_eager_mode
from ..runtime import waiting
from . import coordination, rendezvous

if TYPE_CHECKING:
    from jax import Array
    from torch._C._distributed_c10d import Store

# Seconds between two looks, and how many of the last collectives the others are told of.
_EVERY, _TOLD = 1.0, 64


@dataclass
class _Running:
    number: int | None  # None: it is one of two members, which the others have no part in
    what: str
    began: float
    others: tuple[int, ...]  # ranks in the group
    end: Array | None = None  # there once it has ended; None: it is being dispatched


class Watch:
    """One member's log of a group's collectives, and its eye on the other members'.

    Args:
        store: the group's part of PyTorch's store.
        rank: this member's rank in the group.
        ranks: the members' global ranks.
        timeout: how long a collective may take.
    """

    def __init__(self, store: Store, rank: int, ranks: Sequence[int], timeout: timedelta) -> None:
        self._store = store.clone() if hasattr(store, "clone") else store  # a blocked store blocks all its threads
        self._rank, self._ranks = rank, tuple(ranks)
        self.timeout = timeout.total_seconds()
        self._count = 0
        self._log: deque[tuple[int, str]] = deque(maxlen=_TOLD)
        self._running: deque[_Running] = deque()
        self._lock = threading.Lock()
        self._failure: str | None = None
        self._ended = threading.Event()
        self._tell()

    def start(self) -> None:
        """Begin to look at the others, who have all begun to tell."""
        threading.Thread(target=self._look, name="torch_pjrt process group watch", daemon=True).start()
        waiting.add_guard(self.check)

    def stop(self) -> None:
        """Look no more."""
        self._ended.set()
        waiting.remove_guard(self.check)

    def begin(self, what: str, other: int | None = None) -> None:
        """Note the next collective. All members' descriptions of it must be equal.

        Args:
            other: the rank of the only other member that takes part, if not all do.

        Raises DistBackendError if they are not, or if an earlier one failed; in `strict` mode at once, else when found.
        """
        self.check()
        with self._lock:
            if other is not None:
                self._running.append(_Running(None, what, time.monotonic(), (other,)))
                return
            self._count += 1
            self._log.append((self._count, what))
            said = f"collective {self._count} of this process group, {what},"
            others = tuple(r for r in range(len(self._ranks)) if r != self._rank)
            self._running.append(_Running(self._count, said, time.monotonic(), others))
        if get_eager_mode() == "strict":
            self._compare_now(what)

    def dispatched(self, end: Array) -> None:
        """Note by what the end of the collective that was begun can be told: an array that is there then."""
        with self._lock:
            self._running[-1].end = end

    def abandon(self) -> None:
        """Wait no more for the collective that was begun last."""
        with self._lock:
            if self._running:
                self._running.pop()

    def check(self) -> None:
        """Raise DistBackendError if a collective has failed, or has taken longer than it may."""
        with self._lock:
            while self._running and _ended(self._running[0]):
                error = _error(self._running[0])
                if error is not None:
                    break
                self._running.popleft()
            else:
                error = None
            oldest = self._running[0] if self._running else None
        if self._failure is None and error is not None:
            raise self.explain(error) from error
        if self._failure is None and oldest is not None and time.monotonic() - oldest.began > self.timeout:
            self._failure = f"{oldest.what} did not end within {self.timeout:.0f} s. {self._behind(oldest)}"
        if self._failure is not None:
            raise DistBackendError(self._failure)

    def explain(self, error: Exception) -> DistBackendError:
        """The error of a collective that the runtime says has failed."""
        coordination.ended(self._ranks, wait=True)  # the news of why, most likely, before the store is asked
        with self._lock:
            failed = self._running[0] if self._running else _Running(self._count, "a collective", 0, ())
        self._failure = self._difference() or f"{failed.what} failed: {error}. {self._behind(failed)}"
        return DistBackendError(self._failure)

    # --- the others ------------------------------------------------------------------------------------------------

    def _tell(self) -> None:
        with self._lock:
            said = json.dumps([self._count, list(self._log)])
        self._store.set(f"watch/{self._rank}", said)

    def _told(self, rank: int) -> tuple[int, dict[int, str]]:
        count, log = json.loads(self._store.get(f"watch/{rank}"))
        return count, dict(log)

    def _look(self) -> None:
        told = 0
        following = (self._rank + 1) % len(self._ranks)
        while not (self._ended.wait(_EVERY) or rendezvous.has_ended(self._store)):
            try:
                if self._count != told:
                    told = self._count
                    self._tell()
                found = self._compared(following)
            except RuntimeError:  # the store has gone: what depends on it fails by itself
                return
            if self._failure is None:
                self._failure = found

    def _difference(self) -> str | None:
        """Where the ranks do not call the same, as far as they have said."""
        if rendezvous.has_ended(self._store):
            return None
        try:
            return next(filter(None, map(self._compared, range(len(self._ranks)))), None)
        except RuntimeError:  # the store has gone
            return None

    def _compared(self, rank: int) -> str | None:
        """The first collective that this rank and another call differently. Raises RuntimeError without a store."""
        with self._lock:
            mine = dict(self._log)
        _, theirs = self._told(rank)
        for number in sorted(mine.keys() & theirs.keys()):
            if mine[number] != theirs[number]:
                return self._differ(number, mine[number], rank, theirs[number])
        return None

    def _differ(self, number: int, mine: str, rank: int, theirs: str) -> str:
        return (
            f"the ranks of this process group do not call the same collectives: as number {number}, "
            f"{self._named(self._rank)} calls {mine}, {self._named(rank)} calls {theirs}"
        )

    def _behind(self, running: _Running) -> str:
        """Which of those that take part have ended, or have not come to it, as far as is known."""
        ended = [self._ranks.index(r) for r in coordination.ended([self._ranks[r] for r in running.others], wait=True)]
        said = [f"{self._named(r).capitalize()} has ended" for r in ended]
        if running.number is None:
            return ". ".join(said) or "The other one has ended, hangs, or does something else"
        if rendezvous.has_ended(self._store):
            return ". ".join([*said, rendezvous.no_store(self._store)])
        try:
            self._tell()
            counts = {r: self._told(r) for r in running.others}
        except RuntimeError:
            return ". ".join([*said, rendezvous.no_store(self._store)])
        said += [
            f"{self._named(r).capitalize()} last said it had come to number {count}"
            + (f", {log[count]}" if count in log else "")
            for r, (count, log) in counts.items()
            if count < running.number
        ]
        return ". ".join(said) or "All ranks had come to it when they last said so: one has ended, or hangs, since"

    def _compare_now(self, what: str) -> None:
        number = self._count
        which = f"collective {number} of this process group, {what}"
        rendezvous.say(self._store, f"call/{number}/{self._rank}", what, self._ranks, which)
        for rank in range(len(self._ranks)):
            key = f"call/{number}/{rank}"
            theirs = rendezvous.hear(self._store, key, rank, self._ranks, which, self.timeout)
            if theirs != what:
                raise DistBackendError(self._differ(number, what, rank, theirs))
        if number > 1:  # all have come here, so all have compared the one before
            rendezvous.forget(self._store, f"call/{number - 1}/{self._rank}")

    def _named(self, rank: int) -> str:
        return rendezvous.named(rank, self._ranks)


def _ended(running: _Running) -> bool:
    end: Any = running.end
    return end is not None and bool(end.is_ready())


def _error(ended: _Running) -> RuntimeError | None:
    """Why it failed, if it did."""
    assert ended.end is not None
    try:
        ended.end.block_until_ready()
    except RuntimeError as error:
        return error
    return None
