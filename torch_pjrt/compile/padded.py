"""A graph's programs at the sizes of buckets, and how a call of other sizes uses them."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np
import sympy  # type: ignore[import-untyped]
import torch
from jax.extend.core import jaxpr_as_fun
from torch.fx import Node

from ..eager.content import text_of
from ..eager.infer import dtype_of, number_of
from ..lowering import view
from ..lowering.check import Requirement
from ..lowering.dtypes import to_numpy
from ..runtime.executable import Executable, compile_function
from . import shared
from .buckets import Buckets
from .function import Argument, GraphFunction
from .graph import contiguous
from .padding import Aligned, NotPaddable, align, evaluate
from .padding.arrays import Atom, Extent, Extents, extent
from .padding.fit import Fit, value_of
from .report import Origin
from .sizes import Sizes, expressions_of, symbols_of

log = logging.getLogger(__name__)

# Padded shape, dtype, where the padding is.
Result = tuple[tuple[int, ...], Any, Extents]


@dataclass(slots=True)
class PaddedProgram:
    """One executable for all sizes that have the same buckets.

    Attributes:
        executable: takes the padded arrays, then `aligned.real` (float64), starts and `aligned.whole` (int64), keys.
        aligned: the program as evaluated.
        arguments: its tensor arguments: those whose sizes vary have the bucket's.
        extents: for each argument where its padding is.
        results: for each of its results but the findings the padded shape, the dtype and where the padding is.
        samples: the sizes that it was traced at, the buckets first.
        checked: for each sample what the graph requires of its data.
        left: name of each tensor that it leaves padded -> where its padding is.
        lowered: for dumps.
    """

    executable: Executable
    aligned: Aligned
    arguments: Sequence[Argument]
    extents: Sequence[Extents]
    results: Sequence[Result]
    samples: Sequence[Mapping[Any, int]]
    checked: Sequence[Sequence[tuple[Node, Requirement]]]
    left: Mapping[str, Extents]
    lowered: jax.stages.Lowered | None

    def numbers(self, sizes: Sizes) -> tuple[np.ndarray, np.ndarray]:
        """The run-time numbers for these real sizes: `aligned.whole` and `aligned.real`."""
        known = {s: int(n) for s, n in sizes.known.items()}
        whole = [value_of(e, known) for e in self.aligned.whole]
        return np.array(whole, np.int64), np.array([value_of(e, known) for e in self.aligned.real], np.float64)

    def requirements(self, sizes: Sizes) -> list[tuple[Node, Requirement]]:
        """What it requires, with the real sizes in the texts."""
        fit = Fit(self.samples)
        known = {s: int(n) for s, n in sizes.known.items()}
        found = []
        for same in zip(*self.checked, strict=True):
            parts = [re.split(r"(\d+)", r.text) for _, r in same]
            if len({len(p) for p in parts}) == 1:
                text = "".join(_spelled(fit, piece, known) for piece in zip(*parts, strict=True))
            else:
                text = same[0][1].text
            found.append((same[0][0], replace(same[0][1], text=text)))
        return found


@dataclass(frozen=True, slots=True)
class _Traced:
    """A graph traced at several sizes; `watched`: nodes after its results, whose padding is to be known too."""

    aligned: Aligned
    samples: Sequence[Mapping[Any, int]]
    watched: Sequence[Node]
    checked: Sequence[Sequence[tuple[Node, Requirement]]]
    texts: Sequence[str | None]


@dataclass(slots=True)
class PaddedPrograms:
    """What a graph has been compiled to for buckets of sizes.

    Attributes:
        graph: the graph; its arguments and sizes are those of each program.
        buckets: which sizes are padded.
        programs: by buckets, other sizes and how the arguments lie.
        content: what a program of the graph depends on for arguments and sizes (`content.content`).
        refused: why the graph cannot be padded; None as long as nothing speaks against it.
    """

    graph: GraphFunction
    buckets: Buckets
    content: Callable[[Sequence[Argument], Sizes], str | None]
    programs: dict[Any, PaddedProgram] = field(default_factory=dict)
    refused: str | None = None

    def choose(self, sizes: Sizes) -> dict[Any, int]:
        """The buckets for a call of these sizes; empty if it is to run at its own."""
        if self.refused is not None or not sizes.known or not sizes.all_apart:
            return {}
        chosen = self.buckets.choose({s: int(n) for s, n in sizes.known.items()})
        for i in self.graph.convention.written:
            value = self.graph.convention.placeholders[i].meta["val"]
            if isinstance(value, torch.Tensor) and symbols_of(value) & set(chosen):
                self.refuse(f"argument {i}, whose size varies, is written to")
                return {}
        return chosen

    def find(
        self,
        arguments: Sequence[Argument],
        arrived: Mapping[int, Extents],
        sizes: Sizes,
        chosen: Mapping[Any, int],
        stay: Collection[Node],
        constants: Sequence[jax.Array],
        donate: Sequence[int],
        options: Mapping[str, Any],
    ) -> tuple[PaddedProgram | None, Origin | None]:
        """The program for a call, None if the graph cannot be padded, and where it comes from if it is new.

        Args:
            arguments: as called.
            arrived: those of them that are padded already, and where.
            sizes: the real sizes.
            chosen: the buckets.
            stay: outputs that will be left padded; `PaddedProgram.left` says where.
        """
        exact = {s: int(n) for s, n in sizes.known.items() if s not in chosen}
        at_bucket = self._at_bucket(arguments, arrived, exact, chosen)
        key = (
            tuple(sorted(chosen.items(), key=str)), tuple(at_bucket), frozenset(arrived.items()),
            tuple(sorted(((s, n) for s, n in exact.items() if s in self.buckets.relevant), key=str)),
        )  # fmt: skip
        if key in self.programs:
            return self.programs[key], None
        reasons = []
        guesses: set[tuple[Extents, ...]] = set()
        try:
            traced = self._traced(arguments, exact, chosen, stay, constants)
            for rows in (False, True):
                inputs = zip(at_bucket, traced.aligned.input_dims, strict=False)
                extents = tuple(_extents(a, dims, arrived.get(a.index), rows) for a, dims in inputs)
                if extents in guesses:
                    continue
                guesses.add(extents)
                try:
                    made, origin = self._compile(traced, at_bucket, arrived, extents, stay, constants, donate, options)
                except Exception as error:
                    reasons.append(self._reason(error))
                    continue
                self.programs[key] = made
                return made, origin
        except Exception as error:
            reasons.append(self._reason(error))
        self.refuse(reasons[0])
        return None, None

    def _reason(self, error: Exception) -> str:
        """Why not, also where a rule fails: the graph can still be compiled for each size."""
        if isinstance(error, NotPaddable):
            return str(error)
        log.warning("padding a graph of %d nodes failed", len(self.graph.nodes), exc_info=error)
        return f"{type(error).__name__}: {error}"

    def refuse(self, reason: str) -> None:
        """Compile the graph for each size from now on."""
        self.refused = reason
        log.info("a graph of %d nodes is compiled for each size: %s", len(self.graph.nodes), reason)

    def _arguments(
        self, arguments: Sequence[Argument], exact: Mapping[Any, int], varying: Mapping[Any, int]
    ) -> list[Argument]:
        """The arguments at other sizes: those that vary are whole arrays of those sizes."""
        sizes = Sizes({**exact, **varying})
        return [self._argument(a, sizes) if self.varies(a, varying) else a for a in arguments]

    def _at_bucket(
        self,
        arguments: Sequence[Argument],
        arrived: Mapping[int, Extents],
        exact: Mapping[Any, int],
        chosen: Mapping[Any, int],
    ) -> list[Argument]:
        """The arguments that the program takes: what arrived padded may be a view."""
        whole = self._arguments(arguments, exact, chosen)
        return [a if a.index in arrived else w for a, w in zip(arguments, whole, strict=True)]

    def at(self, arguments: Sequence[Argument], these: Collection[int], sizes: Sizes) -> list[Argument]:
        """The arguments, `these` of them as whole arrays of other sizes."""
        return [self._argument(a, sizes) if a.index in these else a for a in arguments]

    def _argument(self, a: Argument, sizes: Sizes) -> Argument:
        fake = self.graph.convention.placeholders[a.index].meta["val"]
        shape = sizes.of(fake.shape)
        layout = contiguous(number_of(fake.dtype), shape)
        return Argument(a.index, layout, layout, None, 0, True)

    def varies(self, a: Argument, chosen: Mapping[Any, int]) -> bool:
        """Whether the size of an argument depends on one of the symbols."""
        return bool(symbols_of(self.graph.convention.placeholders[a.index].meta["val"]) & set(chosen))

    def _traced(
        self,
        arguments: Sequence[Argument],
        exact: Mapping[Any, int],
        chosen: Mapping[Any, int],
        stay: Collection[Node],
        constants: Sequence[jax.Array],
    ) -> _Traced:
        """The graph at the buckets' sizes and at others. Raises NotPaddable if the traces cannot be laid together."""
        convention = self.graph.convention
        watched = [n for n in stay if n not in convention.results]  # views of results
        samples = self.buckets.samples(chosen)
        traces, checked, texts = [], [], []
        for sample in samples:
            function = replace(
                self.graph, needed=convention.needed(watched), results=[*convention.results, *watched], checked=[],
                arguments=self._arguments(arguments, exact, sample), sizes=Sizes({**exact, **sample}),
            )  # fmt: skip
            traces.append(_trace(function, constants, convention.draws))
            checked.append(list(function.checked))
            texts.append(self.content(function.arguments, function.sizes))
        aligned = align(traces, Fit(samples, expressions_of(self.graph.nodes, exact)))
        return _Traced(aligned, samples, watched, checked, texts)

    def _compile(
        self,
        traced: _Traced,
        at_bucket: Sequence[Argument],
        arrived: Mapping[int, Extents],
        extents: Sequence[Extents],
        stay: Collection[Node],
        constants: Sequence[jax.Array],
        donate: Sequence[int],
        options: Mapping[str, Any],
    ) -> tuple[PaddedProgram, Origin]:
        convention, aligned, watched = self.graph.convention, traced.aligned, traced.watched
        for e in (e for es in extents for e in es if e is not None):
            for atom in e.atoms or ():
                if not atom.fixed:
                    aligned.whole.setdefault(atom.real, len(aligned.whole))
        begin = sum(a.starts for a in at_bucket)
        found: list[Result] = []

        def run(inputs: list[jax.Array], floats: Any, ints: Any, keys: Any) -> list[jax.Array]:
            given, starts = _read_arrived(at_bucket, arrived, inputs, ints[:begin])
            given += [jax.numpy.stack(starts)] if starts else []
            given += [] if keys is None else [keys]
            known = [*extents, *((None,) * x.ndim for x in given[len(extents) :])]
            zero = [a.index not in arrived for a in at_bucket] + [True] * (len(given) - len(at_bucket))
            made = evaluate(aligned, given, ints[begin:], floats, known, zero)
            found[:] = [(tuple(x.array.shape), x.array.dtype, x.extents) for x in made]
            kept = len(convention.results)
            return [x.array for x in made[:kept] + made[kept + len(watched) :]]

        specs = [jax.ShapeDtypeStruct(a.base[1], to_numpy(dtype_of(a.base[0]))) for a in at_bucket]
        specs += [jax.ShapeDtypeStruct(c.shape, c.dtype) for c in constants]
        parameters = [
            jax.ShapeDtypeStruct((len(aligned.real),), np.float64) if aligned.real else None,
            jax.ShapeDtypeStruct((begin + len(aligned.whole),), np.int64),
            jax.ShapeDtypeStruct((4 * convention.draws,), np.uint32) if convention.draws else None,
        ]
        run_it, text = _traced_now(run, specs, parameters), _joined(traced, extents, at_bucket, arrived)
        executable, lowered, origin = shared.find_or_make(
            text, options, lambda: compile_function(
                run_it, specs, parameters, donate, convention.device, text, options=options
            ),
        )  # fmt: skip
        places = zip([*convention.results, *watched], found, strict=False)
        left = {node.name: where for node, (_, _, where) in places if node in stay}
        kept = len(convention.results)
        made = PaddedProgram(
            executable, aligned, at_bucket, extents, found[:kept], traced.samples, traced.checked, left, lowered
        )
        return made, origin


def _extents(a: Argument, dims: Sequence[Any], arrived: Extents | None, rows: bool) -> Extents:
    """Where an argument's padding is: where the forward graph left it, else at the end of each dimension.

    A dimension of c * n elements may be c rows of n (`rows`) or n of c; which of them only the graph knows.
    """
    if arrived is not None:
        return tuple(None if e is None else _renamed(e, d) for e, d in zip(arrived, dims, strict=True))
    found: list[Extent | None] = []
    for real, padded in zip(dims, a.base[1], strict=True):
        outer = 1 if real is None else int(sympy.sympify(real).as_coeff_Mul()[0])
        if rows and outer > 1 and padded % outer == 0:
            inner = sympy.sympify(real) / outer
            found.append(Extent(real, padded, (Atom(outer, outer), Atom(inner, padded // outer))))
        else:
            found.append(None if real is None else extent(real, padded))
    return tuple(found)


def _renamed(e: Extent, real: Any) -> Extent:
    if real is None or sympy.expand(sympy.sympify(e.real) - real) != 0:
        raise NotPaddable(f"the forward graph left a tensor of {e.real} elements where {real} are expected")
    return Extent(real, e.padded, e.atoms)


def _traced_now(
    run: Callable[..., list[jax.Array]],
    specs: Sequence[jax.ShapeDtypeStruct],
    parameters: Sequence[jax.ShapeDtypeStruct | None],
) -> Callable[..., list[jax.Array]]:
    """The same function, traced now: what tracing it tells is wanted also where its executable is found made."""

    def flat(inputs: Sequence[jax.Array], given: Sequence[jax.Array]) -> list[jax.Array]:
        supply = iter(given)
        return run(list(inputs), *(None if p is None else next(supply) for p in parameters))

    with jax.enable_x64(True):
        jaxpr = jax.make_jaxpr(flat)(list(specs), [p for p in parameters if p is not None])
    traced = jaxpr_as_fun(jaxpr)
    return lambda inputs, *given: list(traced(*inputs, *(g for g in given if g is not None)))


def _joined(
    traced: _Traced, extents: Sequence[Extents], arguments: Sequence[Argument], arrived: Mapping[int, Extents]
) -> str | None:
    """All that the executable depends on: the graph at the samples, and what differs between them."""
    if None in traced.texts:
        return None
    samples, aligned = traced.samples, traced.aligned
    plain = {s: sympy.Symbol(f"n{i}") for i, s in enumerate(samples[0])}  # Dynamo's names go by its own count

    def named(e: Any) -> str:
        return str(sympy.sympify(e).xreplace(plain))

    where = [[None if e is None else [(named(a.real), a.padded) for a in e.atoms or ()] for e in x] for x in extents]
    numbers = [list(map(named, aligned.whole)), list(map(named, aligned.real))]
    taken = [(a.index, a.own, a.base, a.structure, a.starts) for a in arguments]
    return "\n".join(
        [
            text_of(([list(s.values()) for s in samples], numbers, where, taken, sorted(arrived))),
            *map(str, traced.texts),
        ]
    )


def _read_arrived(
    arguments: Sequence[Argument], arrived: Mapping[int, Extents], inputs: Sequence[jax.Array], starts: jax.Array
) -> tuple[list[jax.Array], list[jax.Array]]:
    """The inputs, those that arrived as views read, and the starts of the others."""
    given: list[jax.Array] = list(inputs)
    rest: list[jax.Array] = []
    place = 0
    for k, a in enumerate(arguments):
        mine = [starts[place + i] for i in range(a.starts)]
        place += a.starts
        if a.index in arrived and a.structure is not None:
            given[k] = view.read(inputs[k], a.structure, [s.astype(np.int32) for s in mine])
        else:
            rest += mine
    return given, rest


def _trace(function: GraphFunction, constants: Sequence[jax.Array], draws: int) -> Any:
    specs = [jax.ShapeDtypeStruct(a.base[1], to_numpy(dtype_of(a.base[0]))) for a in function.arguments]
    specs += [jax.ShapeDtypeStruct(c.shape, c.dtype) for c in constants]
    starts = sum(a.starts for a in function.arguments)
    tensors, held = len(function.arguments), len(constants)
    specs += [jax.ShapeDtypeStruct((starts,), np.int64)] if starts else []
    specs += [jax.ShapeDtypeStruct((4 * draws,), np.uint32)] if draws else []

    def flat(*given: jax.Array) -> list[jax.Array]:
        rest: Iterator[jax.Array] = iter(given[tensors + held :])
        where = next(rest) if starts else None
        return function(given[:tensors], given[tensors : tensors + held], where, next(rest) if draws else None)

    with jax.enable_x64(True):
        try:
            return jax.make_jaxpr(flat)(*specs)
        except Exception as error:  # whatever a lowering says of a size that the graph's guards may rule out
            raise NotPaddable(f"at another size it cannot be traced: {type(error).__name__}: {error}") from error


def _spelled(fit: Fit, pieces: Sequence[str], known: Mapping[Any, int]) -> str:
    if len(set(pieces)) == 1 or not all(p.isdigit() for p in pieces):
        return pieces[0]
    expression = fit.find(tuple(int(p) for p in pieces))
    return pieces[0] if expression is None else str(value_of(expression, known))
