"""The collectives of one process group, as csrc/process_group.cpp calls them.

Each dispatches a program (`programs.py`) on the arrays of its operands and binds the results to its outputs, in program
order and without waiting for the device. Each returns the tensors that it wrote.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.distributed import DistBackendError, ReduceOp

from .. import _C
from ..runtime import in_flight
from ..runtime.members import Members
from . import programs, rendezvous
from .point_to_point import Message, PointToPoint
from .programs import Kind, Programs
from .start import device_of
from .tensors import array_of, bind, device_name
from .watch import Watch

if TYPE_CHECKING:
    from jax import Array
    from torch._C._distributed_c10d import Store

_OPS = {int(op.value): op.name for op in ReduceOp.RedOpType.__members__.values()}
# A number of `_OPS` and, for PREMUL_SUM, what each rank multiplies its own by before they are summed.
Reduction = tuple[int, float | Tensor | None]
_NUMBERS = itertools.count()
_REDUCTIONS = ("SUM", "AVG", "MIN", "MAX", "PRODUCT", "BAND", "BOR", "BXOR")
_BITWISE = ("BAND", "BOR", "BXOR")


class Collectives:
    """What the members of a group do together, as one member sees it.

    Args:
        store: the group's part of PyTorch's store.
        rank: this member's rank in the group.
        ranks: the global ranks of the members, by rank in the group.
        timeout: how long to wait for the others to come to the group's first collective.
    """

    def __init__(self, store: Store, rank: int, ranks: Sequence[int], timeout: timedelta) -> None:
        self._store = store
        self.rank = rank
        self.ranks = tuple(ranks)
        self._timeout = timeout
        self._index: int | None = None
        self._agreements = 0
        self.number = next(_NUMBERS)  # which of this process's groups it is
        self._programs: Programs | None = None
        self._pairs = PointToPoint(rank, self.ranks)
        self._batch: list[Message] | None = None
        self._watch = Watch(store, rank, ranks, timeout) if len(ranks) > 1 else None

    @property
    def size(self) -> int:
        return len(self.ranks)

    # --- reductions ------------------------------------------------------------------------------------------------

    def all_reduce(self, tensors: list[Tensor], reduction: Reduction) -> list[Tensor]:
        inputs, name = _scaled(tensors, reduction)
        return self._run(self._kind(programs.all_reduce, tensors, name), inputs, tensors)

    def _all_reduce(self, tensors: list[Tensor], name: str) -> list[Tensor]:
        return self._run(self._kind(programs.all_reduce, tensors, name), tensors, tensors)

    def reduce(self, tensors: list[Tensor], reduction: Reduction, root: int) -> list[Tensor]:
        inputs, name = _scaled(tensors, reduction)
        kind = self._kind(programs.all_reduce, tensors, name)
        return self._run(kind, inputs, tensors if root == self.rank else [])

    def reduce_scatter_single(self, outputs: list[Tensor], inputs: list[Tensor], reduction: Reduction) -> list[Tensor]:
        for output, given in zip(outputs, inputs, strict=True):
            self._check_parts("reduce_scatter", "input", given, "output", output)
        inputs, name = _scaled(inputs, reduction)
        return self._run(self._kind(programs.reduce_scatter, inputs, name), inputs, outputs)

    def reduce_scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], reduction: Reduction) -> list[Tensor]:
        return self.reduce_scatter_single(outputs, [self._joined("reduce_scatter", i) for i in inputs], reduction)

    # --- moving ----------------------------------------------------------------------------------------------------

    def broadcast(self, tensors: list[Tensor], root: int) -> list[Tensor]:
        self._run(Kind(programs.broadcast, (("root", root),)), tensors, [] if root == self.rank else tensors)
        return tensors

    def all_gather_single(self, outputs: list[Tensor], inputs: list[Tensor]) -> list[Tensor]:
        for output, given in zip(outputs, inputs, strict=True):
            self._check_parts("all_gather", "output", output, "input", given)
        return self._run(Kind(programs.all_gather), inputs, outputs)

    def all_gather(self, outputs: list[list[Tensor]], inputs: list[Tensor]) -> list[Tensor]:
        gathered = [i.new_empty((self.size, *i.shape)) for i in inputs]
        self.all_gather_single(gathered, inputs)
        written = []
        for into, everyones in zip(outputs, gathered, strict=True):
            self._check_number("all_gather", into)
            for output, part in zip(into, everyones, strict=True):
                output.detach().copy_(part.view(output.shape))
                written.append(output)
        return written

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], root: int) -> list[Tensor]:
        if root == self.rank:
            return self.all_gather(outputs, inputs)
        self.all_gather_single([i.new_empty((self.size, *i.shape)) for i in inputs], inputs)
        return []

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], root: int) -> list[Tensor]:
        if root == self.rank:
            sent = [self._joined("scatter", i) for i in inputs]
        else:
            sent = [o.new_zeros((self.size, *o.shape)) for o in outputs]
        received = [o.new_empty((self.size, *o.shape)) for o in outputs]
        self._run(Kind(programs.all_to_all), sent, received)
        for output, parts in zip(outputs, received, strict=True):
            output.detach().copy_(parts[root])
        return outputs

    def all_to_all_single(
        self, output: Tensor, given: Tensor, output_sizes: list[int], input_sizes: list[int]
    ) -> list[Tensor]:
        if not output_sizes and not input_sizes:
            for name, t in (("output", output), ("input", given)):
                if t.shape[0] % self.size if t.ndim else True:
                    raise ValueError(
                        f"all_to_all_single: dimension 0 of the {name}, shape {tuple(t.shape)}, is not divisible by "
                        f"the group's {self.size} ranks: give output_split_sizes and input_split_sizes"
                    )
            if output.numel() != given.numel():
                raise ValueError(
                    f"all_to_all_single: the output, shape {tuple(output.shape)}, must have as many elements as the "
                    f"input, shape {tuple(given.shape)}"
                )
            return self._run(Kind(programs.all_to_all), [given], [output])
        sent = list(given.split(input_sizes or [given.shape[0] // self.size] * self.size))
        received = list(output.split(output_sizes or [output.shape[0] // self.size] * self.size))
        return self.all_to_all(received, sent) and [output]

    def all_to_all(self, outputs: list[Tensor], inputs: list[Tensor]) -> list[Tensor]:
        """Parts of any sizes are sent as parts of the largest size that any member sends, which costs a wait for it."""
        self._check_number("all_to_all", inputs)
        self._check_number("all_to_all", outputs)
        longest = torch.tensor([max(t.numel() for t in (*inputs, *outputs))], device=inputs[0].device)
        self._all_reduce([longest], "MAX")
        room = int(longest.item())
        sent = torch.stack([torch.nn.functional.pad(t.reshape(-1), (0, room - t.numel())) for t in inputs])
        received = torch.empty_like(sent)
        self._run(Kind(programs.all_to_all), [sent], [received])
        for output, part in zip(outputs, received, strict=True):
            output.detach().copy_(part[: output.numel()].view(output.shape))
        return outputs

    # --- one to one ------------------------------------------------------------------------------------------------

    def send(self, tensors: list[Tensor], to: int, tag: int) -> list[Tensor]:
        return self._exchange([Message(t, self.rank, to) for t in tensors])

    def recv(self, tensors: list[Tensor], source: int, tag: int) -> list[Tensor]:
        return self._exchange([Message(t, source, self.rank) for t in tensors])

    def start_coalescing(self) -> None:
        self._batch = []

    def end_coalescing(self) -> list[Tensor]:
        batch, self._batch = self._batch or [], None
        return self._exchange(batch)

    def _exchange(self, messages: list[Message]) -> list[Tensor]:
        if self._batch is not None:
            self._batch += messages
            return []
        if not messages:
            return []
        made = self._ready(messages[0].tensor.device.index, "send or recv")
        return self._pairs.exchange(messages, made, self.watched)

    # --- the rest --------------------------------------------------------------------------------------------------

    def barrier(self, index: int) -> list[Tensor]:
        """Blocks the host until all members have come, on the device with this index (-1: the one taking part)."""
        if index < 0:
            index = self._index if self._index is not None else _own_index()
        here = torch.zeros(1, dtype=torch.int32, device=f"{device_name()}:{index}")
        self._all_reduce([here], "SUM")
        here.item()
        return []

    def set_timeout(self, timeout: timedelta) -> None:
        """From now on collectives may take this long."""
        self._timeout = timeout
        if self._watch is not None:
            self._watch.timeout = timeout.total_seconds()

    def shutdown(self) -> None:
        if self._watch is not None:
            self._watch.stop()
        self._programs = None
        self._pairs = PointToPoint(self.rank, self.ranks)

    # --- how -------------------------------------------------------------------------------------------------------

    def _run(self, kind: Kind, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> list[Tensor]:
        """Dispatch a program on all inputs and bind its first results to the outputs, if there are any."""
        if not inputs:
            return list(outputs)
        if self.size == 1:  # which has all that there is
            for output, own in zip(outputs, inputs, strict=False):
                if output is not own:
                    output.detach().copy_(own.detach().reshape(output.shape))
            return list(outputs)
        made = self._ready(inputs[0].device.index, str(kind))
        for output, given in zip(outputs, inputs, strict=False):
            if output.dtype != given.dtype:
                raise TypeError(f"{kind}: the output is {output.dtype}, the input {given.dtype}")
        program = made.of(kind, inputs, outputs)
        arrays = [array_of(t) for t in inputs]
        results = self.watched(program.what, lambda: program.run(*arrays))
        for output, result in zip(outputs, results, strict=False):
            bind(output, result)
        return list(outputs)

    def watched(self, what: str, run: Callable[[], tuple[list[Array], Array]], other: int | None = None) -> list[Array]:
        """The results of a program of all members, which `run()` dispatches, on the record.

        Args:
            what: describes the program; all members' descriptions must be equal.
            run: returns the results and what is there once the program has ended.
            other: the rank of the one other member of the program, where it is not one of all.

        Raises DistBackendError if the members don't do the same, or if this or an earlier program failed.
        """
        if self._watch is None:
            results, end = run()
            in_flight.dispatched([end])
            return results
        self._watch.begin(what, other)
        try:
            results, end = run()
        except (RuntimeError, ValueError) as error:
            if isinstance(error, DistBackendError):
                raise
            raise self._watch.explain(error) from error
        except BaseException:  # Ctrl-C: nobody will say when this one ends
            self._watch.abandon()
            raise
        self._watch.dispatched(end)
        in_flight.dispatched([end])
        return results

    def members(self, index: int) -> Members:
        """Who takes part, this process with its device `index`."""
        return self._ready(index, "of a compiled graph").members

    def told(self, said: str, what: str) -> list[str]:
        """What each rank says of the next thing that all of them have to agree on, in the order of the ranks.

        Raises DistBackendError, which names `what`, if a rank does not come to it within the group's timeout.
        """
        self._agreements += 1
        everyone = self._exchanged(f"agree/{self._agreements}", said, what)
        if self._agreements > 1:  # all have come here, so all have read what was said the last time
            rendezvous.forget(self._store, f"agree/{self._agreements - 1}/{self.rank}")
        return everyone

    def _exchanged(self, topic: str, said: str, what: str) -> list[str]:
        """What each rank says on the topic, in the order of the ranks. Raises as `told`."""
        rendezvous.say(self._store, f"{topic}/{self.rank}", said, self.ranks, what)
        seconds = self._timeout.total_seconds()
        check = self._watch.check if self._watch is not None else None
        return [
            rendezvous.hear(self._store, f"{topic}/{rank}", rank, self.ranks, what, seconds, check)
            for rank in range(self.size)
        ]

    def _ready(self, index: int | None, first: str) -> Programs:
        """The group's programs, the members having told each other which of their devices take part.

        Args:
            first: what they are needed for, should it be the first time.
        """
        if self._programs is not None:
            if index != self._index:
                raise RuntimeError(
                    f"rank {self.rank} takes part in this process group with device {device_name()}:{self._index}, "
                    f"but a tensor is on {device_name()}:{index}. Choose the process's device before its first "
                    "collective: torch.accelerator.set_device_index(int(os.environ['LOCAL_RANK']))"
                )
            return self._programs
        index = index or 0
        what = f"the first collective of this process group of {self.size}, {first}"
        places = map(int, self._exchanged("device", str(index), what))
        devices = [device_of(r, i) for r, i in zip(self.ranks, places, strict=True)]
        if self._watch is not None:
            self._watch.start()
        self._index = index
        self._programs = Programs(Members(devices, self.rank))
        return self._programs

    def _kind(self, collective: programs.Collective, tensors: Iterable[Tensor], name: str) -> Kind:
        if name not in _REDUCTIONS:
            raise ValueError(f"ReduceOp.{name}: expected one of {', '.join(_REDUCTIONS)}")
        for t in tensors:
            if name in _BITWISE and (t.is_floating_point() or t.is_complex()):
                raise ValueError(f"ReduceOp.{name} of {t.dtype}: bitwise reductions are of integers and bools")
            if name in ("MIN", "MAX") and t.is_complex():
                raise ValueError(f"ReduceOp.{name} of {t.dtype}: complex numbers have no order")
        return Kind(collective, (("op", name),))

    def _check_parts(self, what: str, whole_name: str, whole: Tensor, part_name: str, part: Tensor) -> None:
        if whole.dtype != part.dtype:
            raise TypeError(f"{what}: the {whole_name} is {whole.dtype}, the {part_name} {part.dtype}")
        if whole.numel() != self.size * part.numel():
            raise ValueError(
                f"{what}: the {whole_name}, shape {tuple(whole.shape)}, must have {self.size} times the elements of "
                f"the {part_name}, shape {tuple(part.shape)}: the group has {self.size} ranks"
            )

    def _check_number(self, what: str, tensors: Sequence[Tensor]) -> None:
        if len(tensors) != self.size:
            raise ValueError(f"{what}: expected a tensor for each of the group's {self.size} ranks, got {len(tensors)}")

    def _joined(self, what: str, tensors: list[Tensor]) -> Tensor:
        self._check_number(what, tensors)
        shapes = {tuple(t.shape) for t in tensors}
        if len(shapes) > 1:
            raise ValueError(f"{what}: the tensors for the ranks must be of one shape, got {sorted(shapes)}")
        return torch.stack(tensors)


def _scaled(tensors: list[Tensor], reduction: Reduction) -> tuple[list[Tensor], str]:
    """What is to be reduced, and the name of the op that does it."""
    number, factor = reduction
    if factor is None:
        return tensors, _OPS[number]
    return [t.detach() * factor for t in tensors], "SUM"


def _own_index() -> int:
    """The device of a process that has not yet shown it: LOCAL_RANK's, where there is one, else the current one."""
    local = os.environ.get("LOCAL_RANK", "")
    if local.isdigit() and int(local) < _C.device_count():
        return int(local)
    return _C.current_device()
