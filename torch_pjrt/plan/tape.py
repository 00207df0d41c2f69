"""What one step of a program does, as data: the operations that reached PyTorch's dispatcher, and their storages.

A storage is a variable and the tape is in program order, as in eager traces: an operation reads tensors, which are
views of storages, and gives storages new content. So views, in-place operations and optimizers need nothing special,
and what the step's arguments and results are can be told from which storages existed before it and which live after it.

A tape holds no tensors: it can be pickled for the process that compiles it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any

from ..lowering import Spec
from ..lowering.view import Layout


class PlanError(RuntimeError):
    """The step cannot be planned; the message says where and what to do."""


@dataclass(frozen=True, slots=True)
class Ref:
    """A tensor in an operation's arguments.

    Attributes:
        storage: number of the storage that it is a view of.
        view: where it lies there.
        conjugated, negated: whether the numbers in the storage are to be conjugated or negated.
    """

    storage: int
    view: Layout
    conjugated: bool = False
    negated: bool = False

    @property
    def spec(self) -> Spec:
        return Spec(self.view.sizes, self.view.dtype)


@dataclass(frozen=True, slots=True)
class Storage:
    """Memory that the step uses.

    Attributes:
        base: how the array that stands for it lies in memory: dense, from its first element on.
        role: "parameter", "buffer", "gradient", "optimizer", "argument", "other" (existed before the step), or "made".
        name: the user's name for it ("layers.0.mlp.up.weight"), else "".
        device: type of the device that it is on.
        placements: (mesh axis, dimension) where DTensor placements shard it.
    """

    base: Layout
    role: str
    name: str
    device: str
    placements: tuple[tuple[str, int], ...] = ()

    @property
    def elements(self) -> int:
        return prod(self.base.sizes)

    @property
    def nbytes(self) -> int:
        return self.elements * self.base.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of an ATen overload.

    Attributes:
        name: its full name, "aten::add.Tensor".
        args, kwargs: its arguments, with `Ref` for tensors.
        writes: the tensors that it gives new content, in schema order.
        makes: one for each result that is no argument: the number of its storage, None where it returns no tensor or a
            view.
        specs: what PyTorch promises of each of `writes` and `makes`.
        line: "file:line in function" of the user's program; for a gradient, of the operation it is the gradient of.
        backward: whether it is part of a backward pass.
        recompute: number of the checkpointed region that it computes again; None if it is none.
        random: whether it draws random numbers.
        on_host: whether it has no lowering and runs on the CPU.
    """

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    writes: tuple[Ref, ...]
    makes: tuple[int | None, ...]
    specs: tuple[Spec | None, ...]
    line: str
    backward: bool = False
    recompute: int | None = None
    random: bool = False
    on_host: bool = False

    def reads(self) -> Iterator[Ref]:
        """The tensors among its arguments."""
        yield from refs((self.args, tuple(self.kwargs.values())))


@dataclass(frozen=True, slots=True)
class Finding:
    """Something in the step that costs on an accelerator.

    Attributes:
        kind: "host sync", "fallback", "dynamic shape", "upload" or "memory".
        what: the operation, or what was seen.
        line: the user's line.
        count: how often in one step.
    """

    kind: str
    what: str
    line: str
    count: int = 1


@dataclass(slots=True)
class Tape:
    """A step.

    Attributes:
        operations: in program order.
        storages: all of them; the operations' numbers are indices here.
        returned: numbers of the storages made in the step that live after it.
        freed: numbers of those that existed before it and do not live after it.
        parameters: how many numbers the parameters that the step touches have, on all ranks, and their bytes.
        idle: (name, bytes) of parameters and buffers that the step never touches but that are on the device.
        findings: what costs on an accelerator.
        model_flops: floating-point operations of the products that the mathematics needs, without what is recomputed.
        flops: the same with what is recomputed.
        examples: how many examples (size of the batch) one step takes; None if it has no batch.
        tokens: how many tokens one step takes, if its first argument holds token ids.
    """

    operations: list[Operation] = field(default_factory=list)
    storages: list[Storage] = field(default_factory=list)
    returned: tuple[int, ...] = ()
    freed: frozenset[int] = frozenset()
    parameters: tuple[int, int] = (0, 0)
    idle: tuple[tuple[str, int], ...] = ()
    findings: list[Finding] = field(default_factory=list)
    model_flops: int = 0
    flops: int = 0
    examples: int | None = None
    tokens: int | None = None

    @property
    def inputs(self) -> list[int]:
        """Numbers of the storages that existed before the step, in the order of their first use."""
        return [i for i, s in enumerate(self.storages) if s.role != "made"]

    @property
    def written(self) -> list[int]:
        """Numbers of the inputs that the step gives new content, in the inputs' order."""
        found = {w.storage for o in self.operations for w in o.writes}
        return [i for i in self.inputs if i in found]

    @property
    def draws(self) -> int:
        """How many operations draw random numbers."""
        return sum(o.random for o in self.operations)

    def content(self) -> str:
        """A hash of all that the answer depends on."""
        return hashlib.sha256(repr(self).encode()).hexdigest()


def refs(value: Any) -> Iterator[Ref]:
    """The tensors in an argument, lists opened."""
    if isinstance(value, Ref):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from refs(item)
