"""send and recv: a program over the two processes' devices alone.

A process runs its programs with collectives in the order of their dispatch, so two processes that wait for each other
in different orders would wait for ever. Messages that are given together (`batch_isend_irecv`) are put into one order
that is the same for all processes; messages given one by one must be matched in order, as with NCCL. Tags are not
looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from ..runtime import in_flight
from ..runtime.members import Members
from . import programs
from .programs import Kind, Programs
from .tensors import array_of, bind

if TYPE_CHECKING:
    import jax


@dataclass(frozen=True)
class Message:
    """A tensor on its way between two ranks of a group; for the receiver, where it goes."""

    tensor: Tensor
    source: int
    to: int

    @property
    def pair(self) -> tuple[int, int]:
        return min(self.source, self.to), max(self.source, self.to)


class PointToPoint:
    """The programs of one rank with each other rank of its group."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._pairs: dict[tuple[int, int], Programs] = {}

    def exchange(self, messages: Sequence[Message], group: Programs) -> list[Tensor]:
        """Dispatch all messages; the tensors that were received."""
        # Python's sort is stable: messages of one pair and direction stay in the order given, on both sides.
        ordered = sorted(messages, key=lambda m: (*m.pair, m.source))
        received = []
        for message in ordered:
            if message.source == message.to:
                raise ValueError(f"rank {message.to} sends to itself: copy the tensor instead")
            low, high = message.pair
            made = self._between(low, high, list(group.members.mesh.devices.flat))
            kind = Kind(programs.send, (("to", int(message.to == high)),))
            results, end = made.of(kind, [message.tensor], [message.tensor]).run(array_of(message.tensor))
            in_flight.dispatched([end])
            if message.to == self._rank:
                bind(message.tensor, results[0])
                received.append(message.tensor)
        return received

    def _between(self, low: int, high: int, devices: list[jax.Device]) -> Programs:
        if (low, high) not in self._pairs:
            pair = Members([devices[low], devices[high]], int(self._rank == high))
            self._pairs[low, high] = Programs(pair)
        return self._pairs[low, high]
