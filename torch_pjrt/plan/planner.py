"""`plan`: trace once for each batch, compile for each topology, and say what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._pytree import tree_map

from .answer import Plan, Row
from .compiled import Outcome, compile_all, require_compilers
from .entry import Entry
from .ranks import Rank, as_rank
from .rows import failed_row, row_of
from .sharding import Layouts, Mesh, MeshError, layouts, own_layouts, parse_mesh
from .tape import PlanError, Tape
from .topology import Topology, parse_topology
from .trace import fake_mode, trace_step
from .worker import Job

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Settings:
    """How to plan.

    Attributes:
        topologies: names, as `parse_topology` takes them; "cpu" is the machine that this runs on.
        mesh: axes, as `parse_mesh` takes them; None: all devices along `fsdp`.
        batch: examples a device in one step (over all of a mesh's other axes), for entries that take a batch.
        remat: whether to recompute activations, for entries that take it.
        fit: where a step does not fit, try recomputing, then smaller batches, then more chips.
        timeout: seconds that one compile may take.
        processes: how many compiles run at once.
        roll: whether equal layers are compiled once, as a loop.
    """

    topologies: tuple[str, ...]
    mesh: str | None = None
    batch: int = 1
    remat: bool = False
    fit: bool = False
    timeout: float = 600.0
    processes: int = 1
    roll: bool = True


def plan(
    step: Callable[..., Any],
    example_inputs: Sequence[Any] = (),
    *,
    topology: str | Sequence[str],
    mesh: str | None = None,
    timeout: float = 600.0,
    processes: int = 1,
) -> Plan:
    """Whether a step fits and how fast it would be on TPUs that are not here, by the TPU's own compiler.

    The step is run on fake tensors, so neither parameters nor data are read, nothing is computed and nothing changes:
    real tensors, their gradients and optimizer states stay as they are.

    Args:
        step: one step of the program: inference, or forward, backward and optimizer. Called several times.
        example_inputs: its arguments, of the sizes that all devices together take in one step. Real tensors, or ones on
            the meta device, as the model may be.
        topology: one or more of the names that `torch_pjrt.plan.known()` lists, as "v5e:4x4".
        mesh: named axes, as "fsdp=16" or "dp,tp=4": the batch lies along `dp` and `fsdp`, what the optimizer owns
            along `fsdp`, other axes are for DTensor placements. None: all devices along `fsdp`.
        timeout: seconds that one compile may take.
        processes: how many compiles run at once.

    Raises:
        TopologyError, MeshError: a topology that does not exist, a mesh that does not fit.
        CompilerMissing: libtpu, or JAX's CUDA plugin, is not installed.
        PlanError: the step does something that cannot be planned.
        whatever the step raises.

    Example:
        >>> print(torch_pjrt.plan(step, [torch.empty(256, 784)], topology="v5e:2x2"))
    """
    names = (topology,) if isinstance(topology, str) else tuple(topology)
    inputs = list(example_inputs)
    entry = Entry(getattr(step, "__qualname__", "step"), lambda batch, remat: (step, inputs), False, False)
    return plan_entry(entry, Settings(names, mesh, timeout=timeout, processes=processes))


def plan_entry(entry: Entry, settings: Settings, report: Report = lambda text: None) -> Plan:
    """The plan of an entry.

    Args:
        report: told what is being done, in a line.

    Raises: see `plan`.
    """
    targets = [_target(name, settings.mesh) for name in settings.topologies]
    require_compilers({t.topology.chip.platform for t in targets if t.topology is not None})
    planner = _Planner(entry, settings, report)
    tries = [_Try(target, settings.batch, settings.remat) for target in targets]
    rows = planner.rows(tries)
    if settings.fit:
        rows = planner.fitted(tries, rows)
    return planner.plan(rows)


@dataclass(frozen=True, slots=True)
class _Target:
    """A topology (None: this machine's CPU) and the mesh over it."""

    topology: Topology | None
    mesh: Mesh

    @property
    def name(self) -> str:
        return "cpu" if self.topology is None else self.topology.name


def _target(name: str, mesh: str | None) -> _Target:
    if name.strip().lower() == "cpu":
        return _Target(None, parse_mesh("fsdp", 1))
    topology = parse_topology(name)
    return _Target(topology, parse_mesh(mesh, topology.devices))


@dataclass(frozen=True, slots=True)
class _Try:
    target: _Target
    batch: int
    remat: bool


@dataclass(slots=True)
class _Traced:
    """A step with one batch.

    Attributes:
        tape: of the step.
        mesh: of a program that makes a process group, the ranks' own; its tape is what one rank does. Else None.
        doubled: the tape with a batch twice as large, if it was wanted.
        note: why there is none; what else is to be said.
    """

    tape: Tape
    mesh: Mesh | None = None
    doubled: Tape | None = None
    note: str = ""


class _Planner:
    def __init__(self, entry: Entry, settings: Settings, report: Report) -> None:
        self.entry = entry
        self.settings = settings
        self.report = report
        self.trace_seconds = 0.0
        self._traced: dict[tuple[int, bool, int], _Traced] = {}
        self._makes_ranks: dict[int, bool] = {}  # whether the program makes a process group, by the devices there are

    def rows(self, tries: Sequence[_Try]) -> list[Row]:
        """A row for each try."""
        tries = list(tries)
        rows: list[Row | None] = [None] * len(tries)
        jobs: list[tuple[int, Job, Tape]] = []
        for i, one in enumerate(tries):
            tape: Tape | None = None
            try:
                traced = self._trace(one)
                tape = traced.tape
                if traced.mesh is not None:
                    tries[i] = one = replace(one, target=replace(one.target, mesh=traced.mesh))
                layout = own_layouts(tape) if traced.mesh else layouts(tape, traced.doubled, one.target.mesh)
            except Exception as error:
                if not self._traced or (len(tries) == 1 and not self.settings.fit):
                    raise
                said = str(error) if isinstance(error, (MeshError, PlanError)) else f"{type(error).__name__}: {error}"
                rows[i] = failed_row(one.target.topology, one.target.mesh, tape, self._remat(one), said)
                continue
            jobs.append((i, _job(one.target, tape, layout, self.settings.roll, traced.mesh is not None), tape))
        left = len(jobs)

        def done(number: int, outcome: Outcome) -> None:
            nonlocal left
            left -= 1
            one = tries[jobs[number][0]]
            how = "cached" if outcome.cached else f"{outcome.seconds:.0f} s"
            what = "no answer for" if outcome.failure else "compiled for"
            self.report(f"{what} {one.target.name} ({how}), {left} left")

        if jobs:
            self.report(f"compiling for {', '.join(dict.fromkeys(tries[i].target.name for i, _, _ in jobs))}")
        outcomes = compile_all([job for _, job, _ in jobs], self.settings.timeout, self.settings.processes, done)
        for (i, job, tape), outcome in zip(jobs, outcomes, strict=True):
            one = tries[i]
            row = row_of(one.target.topology, one.target.mesh, tape, job.layouts, self._remat(one), outcome)
            note = self._trace(one).note
            rows[i] = replace(row, notes=(*row.notes, note)) if note else row
        return [row for row in rows if row is not None]

    def fitted(self, tries: Sequence[_Try], rows: Sequence[Row]) -> list[Row]:
        """The rows, and for each that does not fit the tries that lead to one that does."""
        found: list[Row] = []
        for one, row in zip(tries, rows, strict=True):
            found.append(row)
            for other in self._smaller(one):
                if row.fits is not False:
                    break
                self.report(f"{one.target.name} does not fit: trying batch {other.batch}, remat {other.remat}")
                row = self.rows([other])[0]
                found.append(row)
        return found

    def _smaller(self, one: _Try) -> list[_Try]:
        """What to try when a step does not fit, the least costly change first."""
        tries: list[_Try] = []
        current = one
        if self.entry.takes_remat and not one.remat:
            current = replace(current, remat=True)
            tries.append(current)
        while self.entry.takes_batch and current.batch > 1:
            current = replace(current, batch=current.batch // 2)
            tries.append(current)
        topology = current.target.topology
        if topology is not None:
            for more in topology.larger()[:3]:
                tries.append(replace(current, target=_target(more.name, _open(self.settings.mesh))))
        return tries

    def plan(self, rows: Sequence[Row]) -> Plan:
        """The answer, with what the first tape says of the step itself."""
        tape = next(iter(self._traced.values())).tape
        return Plan(
            self.entry.title,
            tuple(rows),
            tuple(tape.findings),
            *tape.parameters,
            trace_seconds=self.trace_seconds,
            operations=len(tape.operations),
        )

    def _remat(self, one: _Try) -> bool | None:
        return one.remat if self.entry.takes_remat else None

    def _trace(self, one: _Try) -> _Traced:
        began = time.perf_counter()
        try:
            mesh = one.target.mesh
            of_all = one.batch * mesh.replicas if self.entry.takes_batch else 0
            if self._makes_ranks.get(mesh.devices, True):
                of_rank = one.batch if self.entry.takes_batch else 0
                found = self._traced.get((of_rank, one.remat, mesh.devices)) or self._run(one, of_rank, of_all)
            else:
                found = self._traced.get((of_all, one.remat, 0)) or self._run(one, of_all, of_all)
            if found.mesh is None and mesh.replicas > 1 and found.doubled is None and not found.note:
                found.doubled, found.note = self._doubled(of_all, one.remat)
            return found
        finally:
            self.trace_seconds += time.perf_counter() - began

    def _run(self, one: _Try, batch: int, of_all: int) -> _Traced:
        """Trace the program as rank 0 of the devices; if it makes no process group, what it does is for all of them.

        Args:
            batch: examples of one rank, if it is one.
            of_all: examples of all devices.
        """
        devices = one.target.mesh.devices
        known = self._makes_ranks.get(devices)
        fake = fake_mode()
        with as_rank(devices) as rank:
            given = batch
            with fake:
                step, inputs = self.entry.make(given, one.remat)
            if not rank.used and known is not True:
                if (of_all, one.remat, 0) in self._traced:
                    self._makes_ranks[devices] = False
                    return self._traced[of_all, one.remat, 0]
                if given != of_all:
                    given = of_all
                    with fake:
                        step, inputs = self.entry.make(given, one.remat)
            self.report(f"tracing {self.entry.title}" + (f", batch {given}" if given else ""))
            tape = trace_step(step, inputs, fake)
            self._makes_ranks[devices] = rank.used
            found = _of_rank(tape, rank) if rank.used else _Traced(tape)
        if rank.used and self.settings.mesh is not None:
            raise MeshError(
                f"mesh {self.settings.mesh!r}: the program makes its own process group, and mesh: leave --mesh out"
            )
        if rank.used and given != batch:  # it made the group in the step, having been asked for everybody's batch
            return self._run(one, batch, of_all)
        self._traced[given, one.remat, devices if rank.used else 0] = found
        return found

    def _doubled(self, batch: int, remat: bool) -> tuple[Tape | None, str]:
        """The tape with a batch twice as large, or why there is none."""
        fake = fake_mode()
        with fake:
            step, inputs = self.entry.make(2 * batch, remat)
            if not self.entry.takes_batch:
                inputs = tree_map(_twice, inputs)
        try:
            return trace_step(step, inputs, fake), ""
        except Exception as error:  # a step written for one size
            return None, (
                f"the step does not run with a batch twice as large ({type(error).__name__}: {error}); which "
                "dimensions are the batch is left to the compiler's partitioner"
            )


def _of_rank(tape: Tape, rank: Rank) -> _Traced:
    """What one rank does, counted for all."""
    mesh, batches = rank.mesh, rank.batches
    tape.model_flops *= rank.size
    tape.flops *= rank.size
    tape.examples = None if tape.examples is None else tape.examples * batches
    tape.tokens = None if tape.tokens is None else tape.tokens * batches
    note = f"a program of {rank.size} ranks, of which {batches} have a batch of their own" if rank.size > 1 else ""
    return _Traced(tape, mesh, note=note)


def _twice(x: Any) -> Any:
    if not isinstance(x, torch.Tensor) or x.dim() == 0:
        return x
    return x.new_empty((2 * x.shape[0], *x.shape[1:])).requires_grad_(x.requires_grad)


def _open(mesh: str | None) -> str | None:
    """A mesh whose `fsdp` (else `dp`) axis takes whatever devices there are."""
    parts = (mesh or "fsdp").split(",")
    for name in ("fsdp", "dp"):
        for i, part in enumerate(parts):
            if part.partition("=")[0].strip() == name:
                return ",".join([*parts[:i], name, *parts[i + 1 :]])
    return mesh


def _job(target: _Target, tape: Tape, layout: Layouts, roll: bool, ranks: bool) -> Job:
    topology, precision = target.topology, torch.get_float32_matmul_precision()
    if topology is None:
        return Job(tape, layout, target.mesh, "cpu", "", (), precision, ranks, roll)
    chip = topology.chip
    return Job(
        tape, layout, target.mesh, chip.platform, topology.name, topology.host, precision, ranks, roll, chip.clock,
        chip.bandwidth / chip.devices, chip.interconnect / chip.devices, chip.between_hosts,
    )  # fmt: skip


__all__ = ["Settings", "plan", "plan_entry"]
