"""A recorded trace becomes one JAX function, and that one executable."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..lowering import Spec, apply, find, view
from ..lowering.check import Requirement, collecting
from ..lowering.dtypes import to_numpy
from ..runtime import cache
from ..runtime.executable import Executable, compile_function
from ..runtime.progress import compiling
from . import dump
from .content import content
from .donation import donations
from .infer import Call, dtype_of
from .recorded import RecordedGraph
from .verdict import Check

Place = tuple[int, int]  # (node, output)


@dataclass(frozen=True, slots=True)
class Operand:
    """Where a node's tensor comes from, and through which view.

    Attributes:
        kind: "input" or "node" (with `index` and, for a node, `out`), "zeros" for a storage never written to, or
            "write_only" where the old content does not matter.
        structure: the view (None: the whole value).
        starts: where the view starts, if that is known at compile time, else
        run_time_starts: (first, count) among the trace's ints.
        base, view: shape and dtype of the value, and of the tensor.
    """

    kind: str
    index: int
    out: int
    structure: Any
    starts: tuple[int, ...] | None
    run_time_starts: tuple[int, int] | None
    base: Spec
    view: Spec


@dataclass(frozen=True, slots=True)
class Node:
    """One operation.

    Attributes:
        kind: an ATen `call` ("op"), a call of a compiled `graph` ("graph"), a write through a view ("update") or a
            storage's new size ("resize").
    """

    kind: str
    call: Call | None
    graph: RecordedGraph | None
    operands: tuple[Operand, ...]
    outs: tuple[Spec | None, ...]
    first_float: int
    first_int: int
    first_key: int
    structure: Any
    source: str | None

    @property
    def name(self) -> str:
        """The ATen op's, or the kind of node."""
        return self.kind if self.call is None else self.call.op.name()

    @property
    def calls(self) -> bool:
        """Whether it is an op or a graph: something that the user's program called."""
        return self.kind in ("op", "graph")

    def __str__(self) -> str:
        what = str(self.call or self.graph or self.kind)
        return f"{what}  # {self.source}" if self.source else what


@dataclass(frozen=True, slots=True)
class Trace:
    """What was recorded between two cuts on one device.

    Attributes:
        results: numbers of the outputs (over all nodes' outputs in order) that somebody still holds.
        donatable: numbers of the inputs that nobody else holds.
        floats, ints, keys: how many run-time parameters of each kind there are.
    """

    device: int
    nodes: tuple[Node, ...]
    inputs: tuple[Spec, ...]
    results: tuple[int, ...]
    donatable: tuple[int, ...]
    floats: int
    ints: int
    keys: int

    @staticmethod
    def from_core(d: dict[str, Any]) -> Trace:
        """The trace as the C++ core describes it."""

        def spec(s: Any) -> Spec | None:
            return None if s is None else Spec(s[1], dtype_of(s[0]))

        def operand(o: Any) -> Operand:
            base, seen = spec(o[6]), spec(o[7])
            assert base is not None and seen is not None
            kind, index, out, structure, starts, run_time_starts = o[:6]
            return Operand(kind, index, out, structure, starts, run_time_starts, base, seen)

        nodes = [
            Node(
                k,
                None if k == "graph" else c,
                c if k == "graph" else None,
                tuple(map(operand, ops)),
                tuple(map(spec, outs)),
                f,
                i,
                key,
                structure,
                source,
            )
            for k, c, ops, outs, (f, i, key), structure, source in d["nodes"]
        ]
        inputs = [Spec(s[1], dtype_of(s[0])) for s in d["inputs"]]
        return Trace(
            d["device"], tuple(nodes), tuple(inputs), tuple(d["results"]), tuple(d["donatable"]),
            d["floats"], d["ints"], d["keys"],
        )  # fmt: skip

    @property
    def graphs(self) -> list[RecordedGraph]:
        """The compiled graphs that it calls, in order."""
        return [n.graph for n in self.nodes if n.graph is not None]


class TraceError(RuntimeError):
    """A trace could not be compiled or run; the message names its ops and the user's lines."""


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled trace.

    Attributes:
        executable: its arguments are the trace's inputs and run-time parameters; its results the trace's in an order
            of its own, then the findings of the `checks` if there are any.
        order: for each result of the trace, which one of the executable's it is.
        checks: what it checks of its data.
        sources: for each node, the nodes it reads.
        results: for each result, the node that makes it.
        summary: its ops, for the message of an error at run time.
    """

    executable: Executable
    order: tuple[int, ...]
    checks: tuple[Check, ...]
    sources: tuple[tuple[int, ...], ...]
    results: tuple[int, ...]
    summary: str

    def __call__(self, inputs: list[jax.Array], *parameters: np.ndarray) -> tuple[list[jax.Array], jax.Array | None]:
        """(the trace's results, the findings)."""
        results = self.executable(inputs, *parameters)
        return [results[i] for i in self.order], results[-1] if self.checks else None

    def depending_on(self, node: int) -> list[int]:
        """The numbers of the results that `node` had a part in."""
        tainted = {node}
        for i, sources in enumerate(self.sources):
            if not tainted.isdisjoint(sources):
                tainted.add(i)
        return [i for i, maker in enumerate(self.results) if maker in tainted]


def compile_trace(description: dict[str, Any]) -> Program:
    """Lower and compile a trace as the C++ core describes it.

    Raises TraceError, naming the trace's ops and the user's lines, if JAX or XLA refuses it.
    """
    trace = Trace.from_core(description)
    specs = [_struct(s) for s in trace.inputs]
    parameters = [
        _parameter(trace.floats, np.float64),
        _parameter(trace.ints, np.int64),
        _parameter(trace.keys, np.uint32),
    ]
    places = _result_places(trace)
    needed = _needed(trace, places)
    donated = donations(trace, places, needed)
    # JAX pairs donated inputs with results of their shape and dtype first come, first served.
    made = [*donated.values(), *sorted(set(range(len(places))) - set(donated.values()))]
    checked: list[tuple[int, Requirement, int | None]] = []
    graphs = trace.graphs

    def run(
        inputs: list[jax.Array], floats: jax.Array | None, ints: jax.Array | None, keys: jax.Array | None
    ) -> list[jax.Array]:
        evaluation = _Evaluation(trace, inputs, floats, ints, keys)
        results, findings = evaluation.results([places[i] for i in made], needed)
        checked[:] = [(node, requirement, place) for node, place, requirement, _ in findings]
        return results + ([jnp.stack([finding for *_, finding in findings])] if findings else [])

    # Where somebody wants to see the StableHLO, it has to be made.
    kept = cache.directory() is not None and not dump.wanted()
    started = time.perf_counter()
    try:
        with compiling(lambda: _title(trace)):
            executable, lowered = compile_function(
                run, specs, parameters, list(donated), trace.device, content(trace, donated) if kept else None,
                lambda: [(node, requirement.kind, requirement.text, place) for node, requirement, place in checked],
                graphs[0].options if graphs else None,
            )  # fmt: skip
    except Exception as error:
        raise explain(trace, error) from error
    if lowered is not None:
        dump.write(trace, lowered)
    if graphs:
        ops = sum(n.kind == "op" for n in trace.nodes)
        seconds = time.perf_counter() - started
        graphs[0].note_program(graphs, ops, executable, seconds, list(donated), lowered is None)
    checks = tuple(_check(trace.nodes[n], n, kind, text, place) for n, kind, text, place in executable.notes)
    sources = tuple(tuple(o.index for o in n.operands if o.kind == "node") for n in trace.nodes)
    order = tuple(sorted(range(len(made)), key=made.__getitem__))
    return Program(executable, order, checks, sources, tuple(node for node, _ in places), trace_summary(trace))


def _check(node: Node, number: int, kind: str, text: str, place: int | None) -> Check:
    if node.graph is None or place is None:
        return Check(number, node.name, node.source, kind, text)
    op, source = node.graph.place(place)
    return Check(number, op, source or node.source, kind, text)


def _title(trace: Trace) -> str:
    if trace.graphs:
        return f"{' + '.join(g.name for g in trace.graphs)} with {len(trace.nodes)} operations"
    return f"a trace of {len(trace.nodes)} operations"


def trace_summary(trace: Trace) -> str:
    """The trace's ops, one a line with the user's line behind it; long traces are cut in the middle."""
    lines = [str(n) for n in trace.nodes if n.calls]
    if len(lines) > 24:
        lines = [*lines[:12], f"... {len(lines) - 20} more ...", *lines[-8:]]
    return "\n  ".join(lines)


def explain(trace: Trace, error: Exception) -> TraceError:
    """The error of a trace that did not compile, with the op that broke it if the lowering knows."""
    at = next((note for note in getattr(error, "__notes__", ()) if note.startswith("while lowering")), "")
    return TraceError(
        f"compiling a trace of {len(trace.nodes)} ops failed: {type(error).__name__}: {error}\n"
        + (f"{at}\n" if at else "")
        + f"ops of the trace:\n  {trace_summary(trace)}"
    )


def _struct(s: Spec) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(s.shape, to_numpy(s.dtype))


def _parameter(count: int, dtype: Any) -> jax.ShapeDtypeStruct | None:
    return jax.ShapeDtypeStruct((count,), dtype) if count else None


def _result_places(trace: Trace) -> list[Place]:
    places = [(i, j) for i, n in enumerate(trace.nodes) for j in range(len(n.outs))]
    return [places[r] for r in trace.results]


def _needed(trace: Trace, places: Sequence[Place]) -> set[int]:
    """The nodes that some result comes from, and those that only check something."""
    needed: set[int] = set()
    stack = [i for i, _ in places] + [i for i, n in enumerate(trace.nodes) if n.kind == "op" and not n.outs]
    while stack:
        i = stack.pop()
        if i not in needed:
            needed.add(i)
            stack += [o.index for o in trace.nodes[i].operands if o.kind == "node"]
    return needed


class _Evaluation:
    """Evaluates a trace's nodes on JAX tracers, in order, skipping those that are not needed."""

    def __init__(
        self,
        trace: Trace,
        inputs: list[jax.Array],
        floats: jax.Array | None,
        ints: jax.Array | None,
        keys: jax.Array | None,
    ) -> None:
        self.trace = trace
        self.inputs = inputs
        self.floats, self.ints, self.keys = floats, ints, keys
        self.made: list[list[jax.Array | None]] = []

    def results(
        self, places: Sequence[Place], needed: set[int]
    ) -> tuple[list[jax.Array], list[tuple[int, int | None, Requirement, jax.Array]]]:
        """The arrays at `places`, and what the nodes required.

        Of each requirement: the node, the place in it if that is a graph, the requirement and its finding.
        """
        owners: list[tuple[int, int | None]] = []  # of each finding
        with collecting() as collector:
            for i, node in enumerate(self.trace.nodes):
                if i not in needed:
                    self.made.append([])
                    continue
                self.required_at: Sequence[int | None] = ()
                try:
                    self.made.append(self._evaluate(node))
                except Exception as error:
                    error.add_note(f"while lowering {node}")
                    raise
                required = len(collector.found) - len(owners)
                owners += [(i, place) for place in self.required_at or [None] * required]
        findings = [(*owner, *found) for owner, found in zip(owners, collector.found, strict=True)]
        return [self.made[i][j] for i, j in places], findings  # type: ignore[misc]

    def _evaluate(self, node: Node) -> list[jax.Array | None]:
        if node.kind == "op":
            return self._call(node)
        if node.kind == "graph":
            return self._call_graph(node)
        if node.kind == "update":
            o, content = node.operands
            return [view.write(self._whole(o), node.structure, self._starts(o), self._read(content))]
        (out,) = node.outs
        assert out is not None
        flat = self._read(node.operands[0])[: out.shape[0]]
        return [jnp.pad(flat, (0, out.shape[0] - flat.shape[0]))]

    def _call(self, node: Node) -> list[jax.Array | None]:
        call = node.call
        assert call is not None
        tensors = iter(node.operands)
        floats, ints = iter(range(node.first_float, 1 << 62)), iter(range(node.first_int, 1 << 62))

        def fill(a: Any) -> Any:
            if isinstance(a, list):
                return [fill(x) for x in a]
            if not (isinstance(a, tuple) and a and isinstance(a[0], str) and a[0].startswith("$")):
                return a
            if a[0] == "$tensor":
                return self._read(next(tensors))
            if a[0] == "$int":
                assert self.ints is not None
                return self.ints[next(ints)].astype(to_numpy(dtype_of(a[1])))
            assert self.floats is not None
            number = self.floats[next(floats)]
            return weak(number) if a[1] is None else number.astype(to_numpy(dtype_of(a[1])))

        args, kwargs = [], {}
        for schema, a in zip(call.op._schema.arguments, call.template, strict=True):
            if schema.kwarg_only:
                kwargs[schema.name] = fill(a)
            else:
                args.append(fill(a))
        key = None
        lowering = find(call.op)
        if lowering is not None and lowering.random:
            assert self.keys is not None
            key = self.keys[node.first_key : node.first_key + 4]
        return list(apply(call.op, args, kwargs, call.specs, key))

    def _call_graph(self, node: Node) -> list[jax.Array | None]:
        graph = node.graph
        assert graph is not None
        keys = self.keys[node.first_key : node.first_key + 4 * graph.draws] if self.keys is not None else None
        results, self.required_at = graph.evaluate(
            [self._read(o) for o in node.operands], keys if graph.draws else None
        )
        return list(results)

    def _whole(self, o: Operand) -> jax.Array:
        if o.kind == "input":
            return self.inputs[o.index]
        if o.kind == "node":
            value = self.made[o.index][o.out]
            assert value is not None
            return value
        return jnp.zeros(o.base.shape, to_numpy(o.base.dtype))

    def _read(self, o: Operand) -> Any:
        if o.kind == "write_only":
            return _struct(o.view)
        value = self._whole(o)
        return value if o.structure is None else view.read(value, o.structure, self._starts(o))

    def _starts(self, o: Operand) -> Sequence[Any]:
        if o.run_time_starts is None:
            return o.starts or ()
        assert self.ints is not None
        first, count = o.run_time_starts
        return [self.ints[first + k].astype(np.int32) for k in range(count)]


def weak(number: jax.Array) -> jax.Array:
    """A run-time scalar that ranks like a Python number in type promotion."""
    from jax._src.lax.lax import _convert_element_type

    weakened: jax.Array = _convert_element_type(number, weak_type=True)
    return weakened
