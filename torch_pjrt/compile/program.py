"""A compiled graph: one XLA program for each way that its arguments lie in memory and for each set of sizes."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
import torch
from torch.distributed import DistBackendError
from torch.fx import GraphModule, Node

from .. import _C
from ..eager.infer import dtype_of
from ..eager.verdict import Check
from ..lowering.check import Requirement
from ..lowering.dtypes import to_numpy
from ..runtime.executable import Executable, compile_function
from ..runtime.in_flight import dispatched
from ..runtime.progress import compiling
from ..runtime.transfer import upload
from . import dump, shared
from .buckets import Buckets, Left, Link
from .calls import Incoming, exact_caller, into_bucket, out_of_bucket, padded_caller
from .collectives import identity, members_of, portable
from .content import content
from .draws import op_of
from .evaluate import constants, describe, name_of, user_line
from .function import Argument, GraphFunction
from .graph import OutputTuple, Takes, read_convention
from .options import Options
from .padded import PaddedPrograms
from .padding.arrays import Extents
from .recorded import recording
from .report import REPORT, GraphRecord, Origin, ProgramRecord
from .sizes import Sizes

log = logging.getLogger(__name__)


class GraphError(RuntimeError):
    """A graph could not be compiled or run; the message names its ops and the user's lines."""


@dataclass(frozen=True, slots=True)
class Checks:
    """What a program checks of its data."""

    checks: tuple[Check, ...]

    def depending_on(self, check: int) -> None:
        """Which of the program's results a failed check spoils: all of them, for all that is known."""
        return None


# See `Program._compile`.
Call = tuple[Any, list[int], list[OutputTuple], Checks | None]


class Program:
    """An FX graph that can be called with device tensors, compiled when it is.

    Args:
        gm: a functional graph of ATen ops, but for `copy_` to its arguments.
        kind: "forward", "backward" or "inference": what it is called in reports.
        link: what a forward graph and its backward graph share; None for others.
        visible: how many of a forward graph's outputs, the first, the user may see; the backward graph takes the rest.
        record: of the graph that this is a part of; None: it gets one of its own.
        runs: how often one call of that graph calls this.
    """

    def __init__(
        self,
        gm: GraphModule,
        kind: str,
        options: Options,
        link: Link | None = None,
        visible: int | None = None,
        record: GraphRecord | None = None,
        runs: int = 1,
    ) -> None:
        self.gm = gm
        self.kind = kind
        self.options = options
        self.nodes = list(gm.graph.nodes)
        self.convention = read_convention(gm)
        self.needed = self.convention.needed()
        self.members = members_of(self.nodes)
        # What a program is made of: checks name their nodes by the place in it, which is the same in equal graphs.
        inside = self.needed | self.convention.tensors
        self.part = [n for n in self.nodes if n in inside]
        self.executables: list[Executable] = []
        self.constants = constants(n for n in self.nodes if n in self.needed)
        self.constant_arrays: list[jax.Array] | None = None
        self.link = link
        self.visible = visible
        graph = GraphFunction(
            self.nodes, self.needed, list(self.constants), self.convention, (), Sizes(), self.convention.results
        )
        self.padded = PaddedPrograms(graph, Buckets(self.nodes, self.needed), self._content)
        self.record = record or REPORT.add_graph(kind, gm)
        self.runs = runs
        functions = {
            "compile": self._compile, "copy": _copy, "dispatched": dispatched, "explain": self._explain,
        }  # fmt: skip
        self.call = _C.Graph(
            self.convention.device,
            [int(t) for t in self.convention.takes],
            sorted(self.convention.written),
            self.convention.draws,
            functions,
            recording(self),
        )
        self.call._boxed_call = True  # it empties the list that it is called with

    def _compile(self, described: Sequence[tuple[Any, ...]], ints: Sequence[int]) -> Call:
        """What the C++ core needs to call the graph with arguments like these.

        Args:
            described: for each tensor argument, the fields of `Argument`.
            ints: the values of the arguments that are sizes.

        Returns:
            the function to call with the arguments' arrays, then starts and keys if there are any; for each written
            argument the result that it becomes; the recipes of the graph's outputs; what the program checks, whose
            findings come last among its results.
        """
        arguments = [Argument(*d) for d in described]
        sizes, arrived, came = self._bind(arguments, ints)
        self._check_sizes(sizes)
        if not self.convention.results:
            return None, self._written(arguments)[0], self.convention.recipes(sizes), None
        try:
            with compiling(lambda: f"the {self.kind} graph of {len(self.nodes)} nodes"):
                # Members with collectives between them have one program for the sizes that they all have.
                chosen: Mapping[Any, int] = {} if self.members else self.padded.choose(sizes)
                if came and chosen:
                    chosen = came
                made = self._padded_call(arguments, arrived, sizes, chosen) if chosen else None
                self.record.not_padded = self.padded.refused
                return made or self._exact_call(arguments, arrived, sizes)
        except Exception as error:
            raise self._error("compiling", error) from error

    def _exact_call(self, arguments: Sequence[Argument], arrived: Mapping[int, Extents], sizes: Sizes) -> Call:
        """A program for exactly these sizes. Arguments that come padded are cut first."""
        started = time.perf_counter()
        incoming = [Incoming(a.starts) for a in arguments]
        if arrived:
            incoming = out_of_bucket(arguments, arrived, sizes, self.convention.device)
            arguments = self.padded.at(arguments, arrived, sizes)
        written, through_views = self._written(arguments)
        executable, lowered, origin = self._executable(arguments, sizes, through_views)
        self._record(executable, lowered, origin, started, arguments, sizes)
        required = [(self.part[place], Requirement(kind, text)) for place, kind, text in executable.notes]
        caller = exact_caller(executable, self.constant_arrays or [], incoming)
        return caller, written, self.convention.recipes(sizes), self._checks(required)

    def _padded_call(
        self, arguments: Sequence[Argument], arrived: Mapping[int, Extents], sizes: Sizes, chosen: Mapping[Any, int]
    ) -> Call | None:
        """A program for the bucket of these sizes; None if the graph cannot be padded."""
        started = time.perf_counter()
        convention = self.convention
        written, through_views = self._written(arguments)
        if through_views:
            self.padded.refuse(f"argument {through_views[0].index}, a view, is written to")
            return None
        stay = self._staying(chosen)
        held = self._constants()
        program, origin = self.padded.find(
            arguments, arrived, sizes, chosen, stay, held, self._donated(arguments), self.options.compiler_options
        )
        if program is None:
            return None
        exact = {s: int(n) for s, n in sizes.known.items()}
        at_bucket = Sizes({**exact, **chosen})
        if origin is not None:
            self._record(program.executable, program.lowered, origin, started, program.arguments, at_bucket, True)
        if stay and self.link is not None:
            told = self._sizes_told() & set(exact)
            self.link.left[frozenset((s, exact[s]) for s in told)] = Left(chosen, program.left)
        incoming = into_bucket(arguments, program, arrived, sizes, convention.device)
        kept = [n in stay for n in convention.results]
        caller = padded_caller(program, held, incoming, sizes, kept, convention.device)
        checks = self._checks(program.requirements(sizes))
        return caller, written, convention.recipes(sizes, stay, at_bucket), checks

    def _staying(self, chosen: Mapping[Any, int]) -> set[Node]:
        """The outputs that only the backward graph will see: they are left padded."""
        outputs = self.convention.outputs
        if self.link is None or not self.link.whole or self.visible is None or self.visible >= len(outputs):
            return set()
        if not set(chosen) <= self._sizes_told():
            return set()  # the backward graph would not know the real sizes
        saved = [o for o in outputs[self.visible :] if isinstance(o, Node)]
        seen = {o for o in outputs[: self.visible] if isinstance(o, Node)}
        seen |= {self.convention.roots[o] for o in seen if o in self.convention.roots}
        seen |= set(self.convention.placeholders) | set(self.convention.written.values())
        roots = self.convention.roots
        tensors = [n for n in saved if isinstance(n.meta.get("val"), torch.Tensor)]
        return {n for n in tensors if n not in seen and roots.get(n, n) not in seen and roots.get(n, n) in tensors}

    def _sizes_told(self) -> set[Any]:
        """The symbols whose values the forward graph hands to the backward graph."""
        values = [o.meta.get("val") for o in self.convention.outputs if isinstance(o, Node)]
        return {v.node.expr for v in values if isinstance(v, torch.SymInt)}

    def _record(
        self,
        executable: Executable,
        lowered: jax.stages.Lowered | None,
        origin: Origin,
        started: float,
        arguments: Sequence[Argument],
        sizes: Sizes,
        padded: bool = False,
    ) -> None:
        self.executables.append(executable)
        ints = sizes.of(n.meta["val"] for n in self.convention.ints)
        seconds = time.perf_counter() - started
        record = ProgramRecord.of(executable, seconds, self._donated(arguments), ints, origin, padded, self.runs)
        self.record.programs.append(record)
        log.info("%s %s graph %s of %d nodes in %.2f s", origin, self.kind, list(ints), len(self.nodes), seconds)
        if lowered is not None:
            dump.write(self, record, executable, lowered)

    def bind(self, arguments: Sequence[Argument]) -> Sizes:
        """The sizes of a graph that has no symbolic ones. Raises GraphError if an argument is not what was traced."""
        return self._bind(arguments, [])[0]

    def _bind(
        self, arguments: Sequence[Argument], ints: Sequence[int]
    ) -> tuple[Sizes, Mapping[int, Extents], Mapping[Any, int]]:
        """The graph's symbolic sizes as numbers; which arguments came padded, and where, and to what sizes.

        Raises GraphError if an argument is not what was traced.
        """
        sizes = Sizes()
        sizes.bind((n.meta["val"] for n in self.convention.ints), ints)
        left = self.link.find(sizes.known) if self.link is not None and self.kind == "backward" else Left({}, {})
        fakes = [(self.convention.placeholders[a.index].meta["val"], a.own) for a in arguments]
        fitting = [(fake, own) for fake, own in fakes if len(fake.shape) == len(own[1])]
        for products in (False, True):  # a part of a graph may be given `4 * n` elements and nothing that is n
            for fake, (_, shape, _) in fitting:
                sizes.bind(fake.shape, shape, products)
            for fake, (_, _, strides) in fitting:  # those of dimensions of one element may be any
                sizes.bind(fake.stride(), strides, products)
        at_bucket = Sizes({**sizes.known, **left.buckets})
        arrived: dict[int, Extents] = {}
        for a in arguments:
            node = self.convention.placeholders[a.index]
            fake = node.meta["val"]
            own = (dtype_of(a.own[0]), a.own[1])
            if node.name in left.structure and (fake.dtype, at_bucket.of(fake.shape)) == own:
                arrived[a.index] = left.structure[node.name]
                continue
            expected = (fake.dtype, sizes.of(fake.shape))
            if expected != own:
                raise GraphError(
                    f"argument {a.index} ({node.name}) of a {self.kind} graph: traced as {expected[0]} "
                    f"{list(expected[1])}, called with {own[0]} {list(own[1])}"
                )
        return sizes, arrived, left.buckets

    def _check_sizes(self, sizes: Sizes) -> None:
        """What the graph asserts of its sizes, each set of them when it is first met. Raises what the CPU does."""
        for node in self.nodes:
            if op_of(node) is torch.ops.aten._assert_scalar.default:
                condition, message = node.args
                value = condition.meta.get("val") if isinstance(condition, Node) else condition
                if sizes.holds(value) is False:
                    raise RuntimeError(message)

    def _written(self, arguments: Sequence[Argument]) -> tuple[list[int], list[Argument]]:
        """For each written argument the result that it becomes, and those written through a view: more results."""
        results = self.convention.results
        numbers: list[int] = []
        through_views: list[Argument] = []
        by_index = {a.index: a for a in arguments}
        for index in sorted(self.convention.written):
            argument = by_index[index]
            if argument.structure is None:
                numbers.append(results.index(self.convention.written[index]))
            else:
                numbers.append(len(results) + len(through_views))
                through_views.append(argument)
        return numbers, through_views

    def _donated(self, arguments: Sequence[Argument]) -> list[int]:
        """Which of the program's inputs it may overwrite: the arrays of the device tensors that the graph writes to."""
        taken = {i for i in self.convention.written if self.convention.takes[i] is Takes.TENSOR}
        return [k for k, a in enumerate(arguments) if a.index in taken]

    def _executable(
        self, arguments: Sequence[Argument], sizes: Sizes, through_views: Sequence[Argument]
    ) -> tuple[Executable, jax.stages.Lowered | None, Origin]:
        """The executable, and what it was lowered from if it was compiled for this graph."""
        convention = self.convention
        held = self._constants()
        graph = replace(self.padded.graph, arguments=arguments, sizes=sizes, through_views=through_views, checked=[])

        def run(inputs: list[jax.Array], floats: None, starts: Any, keys: Any) -> list[jax.Array]:
            return graph(inputs[: len(arguments)], inputs[len(arguments) :], starts, keys)

        specs = [jax.ShapeDtypeStruct(a.base[1], to_numpy(dtype_of(a.base[0]))) for a in arguments]
        specs += [jax.ShapeDtypeStruct(c.shape, c.dtype) for c in held]
        starts = sum(a.starts for a in arguments)
        parameters = [None, _parameter(starts, np.int64), _parameter(4 * convention.draws, np.uint32)]
        places = {node: i for i, node in enumerate(self.part)}
        text = self._content(arguments, sizes, through_views)
        return shared.find_or_make(text, self.options.compiler_options, lambda: compile_function(
            run, specs, parameters, self._donated(arguments), convention.device, text,
            lambda: [(places[node], r.kind, r.text) for node, r in graph.checked], self.options.compiler_options,
            self.members,
        ))  # fmt: skip

    def _content(
        self, arguments: Sequence[Argument], sizes: Sizes, through_views: Sequence[Argument] = ()
    ) -> str | None:
        if dump.wanted():
            return None  # somebody wants to see the StableHLO: it has to be made
        convention = self.convention
        ints = {n: sizes.of([n.meta["val"]])[0] for n in convention.ints if n in self.needed}
        text = content(
            self.nodes, self.part, sizes,
            arguments=[(convention.placeholders[a.index], (a.own, a.base, a.structure, a.starts)) for a in arguments],
            ints=ints,
            constants=dict(zip(self.constants, self._constants(), strict=True)),
            results=convention.results,
            writes=[(convention.placeholders[a.index], convention.written[a.index]) for a in through_views],
            donated=self._donated(arguments), device=-1 if self.members else convention.device,
        )  # fmt: skip
        if text is None or self.members is None:
            return text
        return f"{portable(text, convention.device)}\n{identity(self.nodes)}"

    def _checks(self, required: Sequence[tuple[Node, Requirement]]) -> Checks | None:
        found = [
            Check(i, name_of(node), user_line(node) or None, r.kind, r.text) for i, (node, r) in enumerate(required)
        ]
        return Checks(tuple(found)) if found else None

    def _constants(self) -> list[jax.Array]:
        """The tensors that the graph's module holds, on the device; uploaded once."""
        if self.constant_arrays is None:
            index = self.convention.device
            self.constant_arrays = [
                upload(t.contiguous(), index) if t.device.type == "cpu" else _C.array(t)
                for t in self.constants.values()
            ]
        return self.constant_arrays

    def _explain(self, error: Exception) -> None:
        if isinstance(error, DistBackendError):
            raise error
        raise self._error("running", error) from error

    def _error(self, doing: str, error: Exception) -> GraphError:
        at = next((note for note in getattr(error, "__notes__", ()) if note.startswith("while lowering")), "")
        return GraphError(
            f"{doing} a {self.kind} graph of {len(self.nodes)} nodes failed: {type(error).__name__}: {error}\n"
            + (f"{at}\n" if at else "")
            + f"nodes of the graph:\n  {self.summary()}"
        )

    def summary(self) -> str:
        """The graph's nodes, one a line with the user's line behind it; long graphs are cut in the middle."""
        lines = [f"%{n.name} = {describe(n)}" for n in self.nodes if n.op == "call_function"]
        if len(lines) > 24:
            lines = [*lines[:12], f"... {len(lines) - 20} more ...", *lines[-8:]]
        return "\n  ".join(lines)


def _parameter(count: int, dtype: Any) -> jax.ShapeDtypeStruct | None:
    return jax.ShapeDtypeStruct((count,), dtype) if count else None


def _copy(array: jax.Array) -> jax.Array:
    """The same content in memory of its own, for a program that will overwrite it."""
    copied: jax.Array = jax.device_put(array, array.sharding, may_alias=False)
    return copied
