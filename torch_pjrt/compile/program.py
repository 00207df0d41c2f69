"""A compiled graph: one XLA program for each way that its arguments lie in memory and for each set of sizes."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from torch.fx import GraphModule, Node

from .. import _C
from ..eager.infer import LayoutTuple, dtype_of
from ..eager.verdict import Check
from ..lowering import view
from ..lowering.check import Requirement, collecting
from ..lowering.dtypes import to_numpy
from ..runtime.executable import Executable, compile_function
from ..runtime.in_flight import dispatched
from ..runtime.progress import compiling
from ..runtime.transfer import upload
from . import dump, shared
from .content import content
from .draws import op_of
from .evaluate import Evaluation, constants, describe, user_line
from .graph import OutputTuple, Takes, read_convention
from .options import Options
from .report import REPORT, Origin, ProgramRecord
from .sizes import Sizes

log = logging.getLogger(__name__)


class GraphError(RuntimeError):
    """A graph could not be compiled or run; the message names its ops and the user's lines."""


@dataclass(frozen=True, slots=True)
class Argument:
    """How one tensor argument lies in memory.

    Attributes:
        index: which argument of the graph it is.
        own: layout of the tensor.
        base: layout of the array under its storage.
        structure: the view that the tensor is of the array; None: all of it.
        starts: how many numbers say where the view starts.
    """

    index: int
    own: LayoutTuple
    base: LayoutTuple
    structure: Any
    starts: int


@dataclass(frozen=True, slots=True)
class Checks:
    """What a program checks of its data."""

    checks: tuple[Check, ...]

    def depending_on(self, check: int) -> None:
        """Which of the program's results a failed check spoils: all of them, for all that is known."""
        return None


class Program:
    """An FX graph that can be called with device tensors, compiled when it is.

    Args:
        gm: a functional graph of ATen ops, but for `copy_` to its arguments.
        kind: "forward", "backward" or "inference": what it is called in reports.
    """

    def __init__(self, gm: GraphModule, kind: str, options: Options) -> None:
        self.gm = gm
        self.kind = kind
        self.options = options
        self.nodes = list(gm.graph.nodes)
        self.convention = read_convention(gm)
        self.needed = self.convention.needed()
        # What a program is made of: checks name their nodes by the place in it, which is the same in equal graphs.
        inside = self.needed | self.convention.tensors
        self.part = [n for n in self.nodes if n in inside]
        self.executables: list[Executable] = []
        self.constants = constants(n for n in self.nodes if n in self.needed)
        self.constant_arrays: list[jax.Array] | None = None
        self.record = REPORT.add_graph(kind, gm)
        functions = {
            "compile": self._compile, "copy": _copy, "dispatched": dispatched, "explain": self._explain,
        }  # fmt: skip
        self.call = _C.Graph(
            self.convention.device,
            [int(t) for t in self.convention.takes],
            sorted(self.convention.written),
            self.convention.draws,
            functions,
        )
        self.call._boxed_call = True  # it empties the list that it is called with

    def _compile(
        self, described: Sequence[tuple[Any, ...]], ints: Sequence[int]
    ) -> tuple[Any, list[int], list[OutputTuple], Checks | None]:
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
        sizes = self._bind(arguments, ints)
        recipes = self.convention.recipes(sizes)
        written, extra = self._written(arguments)
        if not self.convention.results:
            return None, written, recipes, None
        started = time.perf_counter()
        try:
            with compiling(lambda: f"the {self.kind} graph of {len(self.nodes)} nodes"):
                executable, lowered, origin = self._executable(arguments, sizes, ints, extra)
        except Exception as error:
            raise self._error("compiling", error) from error
        self.executables.append(executable)
        seconds = time.perf_counter() - started
        record = ProgramRecord.of(executable, seconds, self._donated(arguments), tuple(ints), origin)
        self.record.programs.append(record)
        log.info("%s %s graph %s of %d nodes in %.2f s", origin, self.kind, list(ints), len(self.nodes), seconds)
        if lowered is not None:
            dump.write(self, record, executable, lowered)
        return self._caller(executable), written, recipes, self._checks(executable)

    def _bind(self, arguments: Sequence[Argument], ints: Sequence[int]) -> Sizes:
        """The graph's symbolic sizes as numbers. Raises GraphError if an argument is not what was traced."""
        sizes = Sizes()
        supply = iter(ints)
        for node, takes in zip(self.convention.placeholders, self.convention.takes, strict=True):
            if takes is Takes.INT:
                sizes.bind([node.meta["val"]], [next(supply)])
        for a in arguments:
            fake = self.convention.placeholders[a.index].meta["val"]
            if len(fake.shape) == len(a.own[1]):
                sizes.bind(fake.shape, a.own[1])
                sizes.bind(fake.stride(), a.own[2])
        for a in arguments:
            node = self.convention.placeholders[a.index]
            fake = node.meta["val"]
            expected = (fake.dtype, sizes.of(fake.shape))
            if expected != (dtype_of(a.own[0]), a.own[1]):
                raise GraphError(
                    f"argument {a.index} ({node.name}) of a {self.kind} graph: traced as {expected[0]} "
                    f"{list(expected[1])}, called with {dtype_of(a.own[0])} {list(a.own[1])}"
                )
        return sizes

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
        self, arguments: Sequence[Argument], sizes: Sizes, ints: Sequence[int], through_views: Sequence[Argument]
    ) -> tuple[Executable, jax.stages.Lowered | None, Origin]:
        """The executable, and what it was lowered from if it was compiled for this graph."""
        convention = self.convention
        held = self._constants()
        given = dict(
            zip(
                (n for n, t in zip(convention.placeholders, convention.takes, strict=True) if t is Takes.INT),
                ints,
                strict=True,
            )
        )

        checked: list[tuple[Node, Requirement]] = []

        def run(inputs: list[jax.Array], floats: None, starts: Any, keys: Any) -> list[jax.Array]:
            tensors, rest = inputs[: len(arguments)], inputs[len(arguments) :]
            place = 0
            values: dict[Node, Any] = dict(given)
            where: dict[int, list[jax.Array]] = {}
            for a, array in zip(arguments, tensors, strict=True):
                node = convention.placeholders[a.index]
                where[a.index] = [starts[place + k].astype(np.int32) for k in range(a.starts)]
                place += a.starts
                values[node] = array if a.structure is None else view.read(array, a.structure, where[a.index])
            evaluation = Evaluation(
                values,
                sizes,
                None if keys is None else keys.reshape(-1, 4),
                dict(zip(self.constants, rest, strict=True)),
            )
            with collecting() as collector:
                values = evaluation.run(self.nodes, self.needed, lambda: len(collector.found))
            checked[:] = zip(evaluation.required_by, (r for r, _ in collector.found), strict=True)
            results = [values[n] for n in convention.results]
            for a in through_views:
                array = tensors[[b.index for b in arguments].index(a.index)]
                content = values[convention.written[a.index]]
                results.append(view.write(array, a.structure, where[a.index], content))
            if collector.found:
                results.append(jnp.stack([finding for _, finding in collector.found]))
            return results

        specs = [jax.ShapeDtypeStruct(a.base[1], to_numpy(dtype_of(a.base[0]))) for a in arguments]
        specs += [jax.ShapeDtypeStruct(c.shape, c.dtype) for c in held]
        starts = sum(a.starts for a in arguments)
        parameters = [None, _parameter(starts, np.int64), _parameter(4 * convention.draws, np.uint32)]
        places = {node: i for i, node in enumerate(self.part)}
        text = self._content(arguments, sizes, given, through_views)
        return shared.find_or_make(text, self.options.compiler_options, lambda: compile_function(
            run, specs, parameters, self._donated(arguments), convention.device, text,
            lambda: [(places[node], r.kind, r.text) for node, r in checked], self.options.compiler_options,
        ))  # fmt: skip

    def _content(
        self,
        arguments: Sequence[Argument],
        sizes: Sizes,
        given: Mapping[Node, int],
        through_views: Sequence[Argument],
    ) -> str | None:
        if dump.wanted():
            return None  # somebody wants to see the StableHLO: it has to be made
        convention = self.convention
        return content(
            self.nodes, self.part, sizes,
            arguments=[(convention.placeholders[a.index], (a.own, a.base, a.structure, a.starts)) for a in arguments],
            ints={n: i for n, i in given.items() if n in self.needed},
            constants=dict(zip(self.constants, self._constants(), strict=True)),
            results=convention.results,
            writes=[(convention.placeholders[a.index], convention.written[a.index]) for a in through_views],
            donated=self._donated(arguments), device=convention.device,
        )  # fmt: skip

    def _checks(self, executable: Executable) -> Checks | None:
        found = []
        for i, (place, kind, text) in enumerate(executable.notes):
            node = self.part[place]
            found.append(Check(i, str(op_of(node) or node.name), user_line(node) or None, kind, text))
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

    def _caller(self, executable: Executable) -> Any:
        """The program as a function of the arguments' arrays, then starts and keys if it takes any."""
        held = self.constant_arrays or []
        compiled = executable.compiled
        starts, keys = executable.takes[1:]
        if not held and not starts:
            return compiled

        def call(*arrays: Any) -> list[jax.Array]:
            last = len(arrays) - starts - keys
            # 64-bit starts come from numpy, which JAX would cut to 32 bits.
            with jax.enable_x64(True):
                results: list[jax.Array] = compiled(*arrays[:last], *held, *arrays[last:])
            return results

        return call

    def _explain(self, error: Exception) -> None:
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
