"""What `plan` answers: plain typed records, made from what the compiler said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .tape import Finding


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor that takes much memory.

    Attributes:
        nbytes: on one device.
        shape: "bf16[4096,1024]", the part of one device.
        what: the parameter's name, or the operation that makes it.
        line: the user's line that makes it, "" for what exists before the step.
        count: how many like it.
    """

    nbytes: int
    shape: str
    what: str
    line: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of HBM on one device.

    Attributes:
        capacity: what there is.
        arguments: what exists before the step: parameters, optimizer states, inputs.
        outputs: what the step returns, without what takes the memory of an argument.
        temporaries: the most that is needed in between.
        donated: of the arguments, those whose memory results take.
        idle: parameters and buffers on the device that the step never touches.
        total: what is needed: all but `donated`, which is part of the arguments.
        known: whether the compiler said so; of a step that it refused it says only the total.
    """

    capacity: int
    arguments: int
    outputs: int
    temporaries: int
    donated: int
    idle: int
    total: int
    known: bool = True

    @property
    def fits(self) -> bool:
        return self.total <= self.capacity


@dataclass(frozen=True, slots=True)
class Collective:
    """Collectives of one kind along the same axes.

    Attributes:
        kind: "all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute".
        axes: mesh axes that it runs along, "fsdp" or "dp×fsdp".
        count: in one step.
        nbytes: that one device sends in one step.
        seconds: how long they take by the interconnect's bandwidth.
    """

    kind: str
    axes: str
    count: int
    nbytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Time:
    """Seconds of one step, all of them estimates.

    Attributes:
        compiler: the compiler's estimated cycles of each instruction, in the order of its schedule, with the transfers
            between chips that nothing hides; None where the compiler says nothing.
        compute: of that, the cycles alone.
        exposed: of that, waiting for transfers between chips.
        roofline: the longest of operations / peak, bytes / HBM bandwidth and transfers / interconnect.
        bound: which of the three that is: "compute", "memory" or "network".
    """

    compiler: float | None
    compute: float
    exposed: float
    roofline: float
    bound: str

    @property
    def best(self) -> float:
        """The compiler's figure, or the roofline's where there is none."""
        return self.roofline if self.compiler is None else self.compiler


@dataclass(frozen=True, slots=True)
class Row:
    """The answer for one topology.

    Attributes:
        topology, mesh: as asked for.
        chips, devices: how many.
        batch: examples in one step, over all devices; None if the step has no batch.
        remat: whether activations are recomputed; None if the step does not say.
        failure: why there is no answer; "" if there is one.
        fits: whether it fits; None if that is not known.
        memory, time, collectives, tensors: see there; None or empty if not known.
        flops: operations of one step's products on all devices, those computed again included.
        model_flops: those that the mathematics needs.
        nbytes: read from and written to HBM by one device in one step.
        mfu: model_flops / (time × peak of all chips); None if there is no time.
        tokens: tokens (or examples) in one step.
        compile_seconds, compile_peak: what compiling took, and bytes.
        cached: whether the answer was in the cache.
        notes: what else there is to say.
    """

    topology: str
    mesh: str
    chips: int
    devices: int
    batch: int | None
    remat: bool | None = None
    failure: str = ""
    fits: bool | None = None
    memory: Memory | None = None
    time: Time | None = None
    flops: float = 0.0
    model_flops: float = 0.0
    nbytes: float = 0.0
    mfu: float | None = None
    tokens: int | None = None
    collectives: tuple[Collective, ...] = ()
    tensors: tuple[Tensor, ...] = ()
    compile_seconds: float = 0.0
    compile_peak: int = 0
    cached: bool = False
    notes: tuple[str, ...] = ()

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens (examples, where there are no tokens) a second on all devices."""
        amount = self.tokens or self.batch
        return None if amount is None or self.time is None or self.time.best <= 0 else amount / self.time.best


@dataclass(frozen=True, slots=True)
class Cost:
    """What a job costs on one topology.

    Attributes:
        name: the topology, or what was measured.
        chips: how many.
        hours: how long the job takes.
        cost: hours × chips × price, in the price file's currency.
        measured: whether the step time was measured, and not estimated.
        steps: how many steps it is.
    """

    name: str
    chips: int
    hours: float
    cost: float
    measured: bool
    steps: float


@dataclass(frozen=True, slots=True)
class Plan:
    """The whole answer.

    Attributes:
        title: what was planned.
        rows: one for each topology (and each try of `fit`).
        findings: what in the step costs on an accelerator, with the user's lines.
        parameters: how many numbers the model has.
        parameter_bytes: their size.
        costs: of the job, cheapest first.
        currency: of the costs.
        trace_seconds: what tracing took.
    """

    title: str
    rows: tuple[Row, ...]
    findings: tuple[Finding, ...] = ()
    parameters: int = 0
    parameter_bytes: int = 0
    costs: tuple[Cost, ...] = ()
    currency: str = ""
    trace_seconds: float = 0.0
    operations: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        from .table import render

        return render(self)

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON has it."""
        said = asdict(self)
        for row, one in zip(said["rows"], self.rows, strict=True):
            row["tokens_per_second"] = one.tokens_per_second
        return said

    def to_html(self) -> str:
        """One page with plots that needs nothing else."""
        from .page import render

        return render(self)


def fitting(rows: Sequence[Row]) -> list[Row]:
    """The rows that fit."""
    return [r for r in rows if r.fits]
