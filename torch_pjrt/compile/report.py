"""What torch.compile did: graphs, programs and their costs, graph breaks, recompiles."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import jax
from torch.fx import GraphModule

from ..runtime.executable import Executable

# How a graph came by a program: "shared" with an equal graph of this process, or "loaded" from TORCH_PJRT_CACHE_DIR.
Origin = Literal["compiled", "loaded", "shared"]


@dataclass(frozen=True, slots=True)
class ProgramRecord:
    """One executable of a graph.

    Attributes:
        sizes: the values of the graph's symbolic sizes that it is for; the largest ones if it is padded.
        origin: "compiled" for this graph, "loaded" from the cache directory, "shared" with an equal graph.
        padded: whether it also serves smaller sizes, padded to these.
        compile_seconds: tracing, lowering and compiling, or what there was to do instead.
        flops, bytes_accessed: XLA's estimate for one run; None where the platform gives none.
        argument_bytes, output_bytes, temporary_bytes, donated_bytes: device memory; donated is the part of the
            arguments whose memory outputs take over.
        donated: numbers of the inputs that it may overwrite.
        runs: how often one call of the graph runs it.
    """

    sizes: tuple[int, ...]
    origin: Origin
    compile_seconds: float
    flops: float | None
    bytes_accessed: float | None
    argument_bytes: int | None
    output_bytes: int | None
    temporary_bytes: int | None
    donated_bytes: int | None
    donated: tuple[int, ...]
    padded: bool = False
    runs: int = 1

    @staticmethod
    def of(
        executable: Executable,
        seconds: float,
        donated: list[int],
        sizes: tuple[int, ...],
        origin: Origin,
        padded: bool = False,
        runs: int = 1,
    ) -> ProgramRecord:
        """The record of an executable that a graph has just got."""
        costs = _asked(executable.runtime, "cost_analysis") or {}
        memory = _asked(executable.runtime, "get_compiled_memory_stats")
        return ProgramRecord(
            sizes,
            origin,
            seconds,
            costs.get("flops"),
            costs.get("bytes accessed"),
            getattr(memory, "argument_size_in_bytes", None),
            getattr(memory, "output_size_in_bytes", None),
            getattr(memory, "temp_size_in_bytes", None),
            getattr(memory, "alias_size_in_bytes", None),
            tuple(donated),
            padded,
            runs,
        )


def _asked(runtime: Any, question: str) -> Any:
    """What the platform's plugin answers; None if it has no answer to give."""
    try:
        return getattr(runtime, question)()
    except (AttributeError, NotImplementedError, jax.errors.JaxRuntimeError):
        return None


@dataclass(slots=True)
class GraphRecord:
    """One FX graph: "forward", "backward" or "inference".

    Attributes:
        kind: which of them it is.
        nodes: how many operations it has.
        segments: one for a graph that is one program; more where ops run outside of it, on eager traces.
        eager_ops: the ops that do, with how often they occur.
        blocks: (how many, of how many operations each) of each run of equal blocks that is one program, run for each.
        programs: its executables so far.
        not_padded: why each size has a program of its own; None if sizes can be padded or none has changed yet.
    """

    kind: str
    nodes: int
    segments: int = 1
    eager_ops: dict[str, int] = field(default_factory=dict)
    blocks: list[tuple[int, int]] = field(default_factory=list)
    programs: list[ProgramRecord] = field(default_factory=list)
    not_padded: str | None = None


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A program made of recorded graphs and of ops: a training step, or the part of one up to a value that was read.

    Attributes:
        graphs: forward, backward, perhaps a compiled optimizer's.
        ops: how many ops besides.
        program: its executable.
    """

    graphs: list[GraphRecord]
    ops: int
    program: ProgramRecord


@dataclass(slots=True)
class Report:
    """All of it, since the start of the process or the last `reset`.

    `print(report)` gives the text; the attributes are for programs.

    Attributes:
        graphs: what Dynamo handed over, in order.
        steps: programs of several graphs, or of graphs and ops. Graphs equal to others may run as part of theirs.
        graph_breaks: (the user's line, the reason) of each.
        recompiles: (function, the guard that failed) of each.
    """

    graphs: list[GraphRecord] = field(default_factory=list)
    steps: list[StepRecord] = field(default_factory=list)

    def add_step(self, graphs: list[GraphRecord], ops: int, program: ProgramRecord) -> None:
        """Enter a program that is not one graph alone."""
        self.steps.append(StepRecord(graphs, ops, program))

    def add_graph(self, kind: str, gm: GraphModule) -> GraphRecord:
        """Begin the record of a graph."""
        record = GraphRecord(kind, sum(n.op == "call_function" for n in gm.graph.nodes))
        self.graphs.append(record)
        return record

    @property
    def graph_breaks(self) -> list[tuple[str, str]]:
        dynamo = sys.modules.get("torch._dynamo.utils")
        return [] if dynamo is None else [_break(r) for r in dynamo.graph_break_reasons]

    @property
    def recompiles(self) -> list[tuple[str, str]]:
        dynamo = sys.modules.get("torch._dynamo.utils")
        if dynamo is None:
            return []
        return [
            (f"{code.co_filename}:{code.co_firstlineno} {code.co_name}", str(reason))
            for code, reasons in dynamo.guard_failures.items()
            for reason in reasons
        ]

    def __str__(self) -> str:
        programs = [*(p for g in self.graphs for p in g.programs), *(s.program for s in self.steps)]
        lines = [f"{len(self.graphs)} graphs; programs: {', '.join(_tally(programs)) or 'none'}"]
        for number, graph in enumerate(self.graphs):
            lines.append(f"graph {number} ({graph.kind}): {graph.nodes} nodes")
            if graph.eager_ops:
                ops = ", ".join(f"{name} ×{n}" for name, n in graph.eager_ops.items())
                lines.append(f"  in {graph.segments} segments; run by eager: {ops}")
            for count, nodes in graph.blocks:
                lines.append(f"  {count} equal blocks of {nodes} nodes are one program")
            if graph.not_padded is not None:
                lines.append(f"  a program for each size: {graph.not_padded}")
            lines += [f"  {_line(p)}" for p in graph.programs]
        for step in self.steps:
            lines.append(f"program of {self._parts(step)}\n  {_line(step.program)}")
        for where, reason in self.graph_breaks:
            lines.append(f"graph break at {where}: {reason}")
        for function, guard in self.recompiles:
            lines.append(f"recompile of {function}: {guard}")
        return "\n".join(lines)

    def _parts(self, step: StepRecord) -> str:
        numbers = {id(graph): i for i, graph in enumerate(self.graphs)}
        parts = [f"{g.kind} graph {numbers.get(id(g), '(of an earlier report)')}" for g in step.graphs]
        return " + ".join([*parts, *([f"{step.ops} ops"] if step.ops else [])])


def _tally(programs: list[ProgramRecord]) -> Iterator[str]:
    for origin in get_args(Origin):
        seconds = [p.compile_seconds for p in programs if p.origin == origin]
        if seconds:
            yield f"{len(seconds)} {origin} in {sum(seconds):.1f} s"


def _line(p: ProgramRecord) -> str:
    parts = [f"sizes {'up to ' if p.padded else ''}{list(p.sizes)}"] if p.sizes else []
    parts.append(f"{p.origin} in {p.compile_seconds:.2f} s")
    if p.runs > 1:
        parts.append(f"run {p.runs} times")
    if p.flops is not None:
        parts.append(f"{p.flops:,.0f} FLOPs")
    if p.bytes_accessed is not None:
        parts.append(f"{p.bytes_accessed:,.0f} bytes accessed")
    for name in ("argument", "output", "temporary", "donated"):
        size = getattr(p, f"{name}_bytes")
        if size is not None:
            parts.append(f"{name} {size:,} B")
    return ", ".join(parts)


def _break(reason: Any) -> tuple[str, str]:
    frame = reason.user_stack[-1] if reason.user_stack else None
    where = f"{frame.filename}:{frame.lineno} in {frame.name}" if frame is not None else "<unknown line>"
    return where, str(reason.reason).strip().splitlines()[0]


REPORT = Report()


def report() -> Report:
    """What torch.compile has done for the device so far: print it, or read its attributes.

    Example:
        >>> torch.pjrt.compiler.report().graphs[0].programs[0].flops
        2048.0
    """
    return REPORT


def reset() -> None:
    """Begin a new report. `torch.compiler.reset()` empties Dynamo's part: graph breaks and recompiles."""
    REPORT.graphs.clear()
    REPORT.steps.clear()
