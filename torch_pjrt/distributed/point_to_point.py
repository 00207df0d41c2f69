"""send and recv: a program over the two processes' devices alone.

A process runs its programs with collectives in the order of their dispatch, so two processes that wait for each other
in different orders would wait for ever. Messages that are given together (`batch_isend_irecv`) are put into one order
that is the same for all processes; messages given one by one must be matched in order, as with NCCL. Tags are not
looked at.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor
from torch.distributed import DistBackendError

from ..runtime.members import Members
from . import coordination, programs, rendezvous
from .programs import Kind, Programs
from .tensors import array_of, bind

if TYPE_CHECKING:
    import jax
    from jax import Array


@dataclass(frozen=True)
class Message:
    """A tensor on its way between two ranks of a group; for the receiver, where it goes."""

    tensor: Tensor
    source: int
    to: int

    @property
    def pair(self) -> tuple[int, int]:
        return min(self.source, self.to), max(self.source, self.to)


# `Collectives.watched`, which is also told who the other one is.
Watched = Callable[[str, Callable[[], tuple[list["Array"], "Array"]], int], list["Array"]]


class PointToPoint:
    """The programs of one rank with each other rank of its group, whose global ranks are `ranks`."""

    def __init__(self, rank: int, ranks: Sequence[int]) -> None:
        self._rank, self._ranks = rank, ranks
        self._pairs: dict[tuple[int, int], Programs] = {}

    def exchange(self, messages: Sequence[Message], group: Programs, watched: Watched) -> list[Tensor]:
        """Dispatch all messages; the tensors that were received."""
        # Python's sort is stable: messages of one pair and direction stay in the order given, on both sides.
        ordered = sorted(messages, key=lambda m: (*m.pair, m.source))
        received = []
        for message in ordered:
            if message.source == message.to:
                raise ValueError(f"rank {message.to} sends to itself: copy the tensor instead")
            low, high = message.pair
            sends = message.source == self._rank
            other = message.to if sends else message.source
            given = f"{str(message.tensor.dtype).removeprefix('torch.')} {tuple(message.tensor.shape)}"
            what = f"{'send' if sends else 'recv'} of {given} {'to' if sends else 'from'} "
            what += rendezvous.named(other, self._ranks)
            if message.pair not in self._pairs and coordination.ended([self._ranks[other]]):
                raise DistBackendError(f"{what} cannot begin: {rendezvous.named(other, self._ranks)} has ended")
            made = self._between(low, high, list(group.members.mesh.devices.flat))
            kind = Kind(programs.send, (("to", int(message.to == high)),))
            program = made.of(kind, [message.tensor], [message.tensor])
            results = watched(what, functools.partial(program.run, array_of(message.tensor)), other)
            if not sends:
                bind(message.tensor, results[0])
                received.append(message.tensor)
        return received

    def _between(self, low: int, high: int, devices: list[jax.Device]) -> Programs:
        if (low, high) not in self._pairs:
            pair = Members([devices[low], devices[high]], int(self._rank == high))
            self._pairs[low, high] = Programs(pair)
        return self._pairs[low, high]
