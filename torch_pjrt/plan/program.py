"""A tape as a function of arrays, which JAX can trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..eager.infer import op_named
from ..lowering import apply, find, view
from ..lowering.dtypes import to_numpy
from ..lowering.target import Target, compiling_for
from .content import Content, abstract
from .roll import Loop, Storages, loops, stacks
from .tape import Operation, Ref, Tape
from .transfers import PREFIX, evaluate

# What is done to an operation's results: (operation's index, result's index, array) -> array.
Constrain = Callable[[int, int, jax.Array], jax.Array]
# What an operation, by its index, runs on.
Place = Callable[[int], Target | None]


@dataclass(frozen=True, slots=True)
class Signature:
    """What a program takes and returns, as numbers of the tape's storages.

    An argument or result that is several storages is an array of them, one after the other along a new dimension 0.

    Attributes:
        inputs: storages that exist before the step.
        donated: positions among the inputs of those whose memory the step may use.
        host_inputs: (operation, storage): results of operations that run on the CPU, which arrive as arguments.
        outputs: storages with new content, first those of the donated inputs in the inputs' order.
        host_outputs: (operation, storage): what an operation on the CPU reads.
        draws: how many random keys, uint32[4], the program takes as its last argument.
        loops: stretches of equal operations that are compiled once.
    """

    inputs: tuple[Storages, ...]
    donated: tuple[int, ...]
    host_inputs: tuple[tuple[int, int], ...]
    outputs: tuple[Storages, ...]
    host_outputs: tuple[tuple[int, int], ...]
    draws: int
    loops: tuple[Loop, ...]


def signature(tape: Tape, roll: bool = True) -> Signature:
    """How the program of a tape is called.

    Args:
        roll: whether equal layers become loops.
    """
    found = tuple(loops(tape)) if roll else ()
    stacked = {s: sequence for sequence in stacks(tape, found) for s in sequence}
    inputs = tuple(dict.fromkeys(stacked.get(n, (n,)) for n in tape.inputs))
    written = set(tape.written)
    kept = [group for group in inputs if not written.isdisjoint(group)]
    donated = tuple(i for i, group in enumerate(inputs) if group in kept or all(n in tape.freed for n in group))
    on_host = [(i, o) for i, o in enumerate(tape.operations) if o.on_host]
    return Signature(
        inputs,
        donated,
        tuple((i, n) for i, o in on_host for n in _given(o)),
        (*kept, *((n,) for n in tape.returned)),
        tuple((i, r.storage) for i, o in on_host for r in o.reads()),
        tape.draws,
        found,
    )


def _given(operation: Operation) -> list[int]:
    return [*(w.storage for w in operation.writes), *(n for n in operation.makes if n is not None)]


def program(
    tape: Tape, called: Signature, constrain: Constrain = lambda i, j, x: x, place: Place = lambda i: None
) -> Callable[..., list[jax.Array]]:
    """The function of a tape: (arrays of `called.inputs`, of `called.host_inputs`, keys) -> results.

    The results are the arrays of `called.outputs`, then of `called.host_outputs`.

    Args:
        constrain: applied to each result of each operation, to say how it is sharded.
        place: asked for each operation.
    """

    def run(inputs: Sequence[jax.Array], from_host: Sequence[jax.Array], keys: jax.Array | None) -> list[jax.Array]:
        content = Content(tape)
        for group, array in zip(called.inputs, inputs, strict=True):
            content.put(group, array)
        evaluation = _Evaluation(tape, content, keys, constrain, place)
        arrivals: dict[int, list[tuple[int, jax.Array]]] = {}
        for (index, number), array in zip(called.host_inputs, from_host, strict=True):
            arrivals.setdefault(index, []).append((number, array))
        departed: list[jax.Array] = []
        rolled = {loop.first: loop for loop in called.loops}
        index = 0
        while index < len(tape.operations):
            operation = tape.operations[index]
            if index in rolled:
                evaluation.run_loop(rolled[index])
                index = rolled[index].end
                continue
            if operation.on_host:
                departed += [content.whole(r.storage) for r in operation.reads()]
                for number, array in arrivals.get(index, ()):
                    content.put((number,), array)
            else:
                evaluation.run(index, operation)
            index += 1
        return [*(content.stack(group) for group in called.outputs), *departed]

    return run


def place_of(operation: Operation) -> str:
    """The operation's name in the program; StableHLO and HLO carry it as the location."""
    kind = "|recompute" if operation.recompute is not None else "|backward" if operation.backward else ""
    return f"{operation.line} {operation.name}{kind}".replace("/", "|")


class _Evaluation:
    """The content of the storages while a tape's operations are run on tracers."""

    def __init__(
        self,
        tape: Tape,
        content: Content,
        keys: jax.Array | None,
        constrain: Constrain,
        place: Place,
        in_loop: bool = False,
    ) -> None:
        self.tape = tape
        self.content = content
        self.keys = keys
        self.constrain = constrain
        self.place = place
        self.drawn = 0
        # In a loop's body there is nothing to merge with what is computed again.
        self._regions = {} if in_loop else _reads_of_regions(tape.operations)
        self._made_in: dict[int, int] = {}  # storage -> the region whose recomputation gave it its content
        self._again: dict[int, jax.Array] = {}
        self._region: int | None = None
        self._last_gradient: int | None = None

    def run(self, index: int, operation: Operation) -> None:
        """Run one operation: read, apply its lowering, give the storages their new content."""
        with jax.named_scope(place_of(operation)):
            self._enter(operation)
            if operation.name.startswith(PREFIX):
                self._transfer(index, operation)
                return
            op = op_named(operation.name)
            lowering = find(op)
            assert lowering is not None
            args, kwargs = self._arguments(operation, lowering.write_only)
            key = None
            if operation.random:
                assert self.keys is not None
                key, self.drawn = self.keys[self.drawn], self.drawn + 1
            try:
                with compiling_for(self.place(index)):
                    flat = apply(op, args, kwargs, operation.specs, key)
            except Exception as error:
                error.add_note(f"while lowering {operation.name} at {operation.line}")
                raise
            flat = [x if x is None else self.constrain(index, j, x) for j, x in enumerate(flat)]
            self._give(operation, flat)

    def _transfer(self, index: int, operation: Operation) -> None:
        given = [self._read(ref, operation.recompute) for ref in operation.reads()]
        if operation.backward:
            given = self._apart(given)
        with compiling_for(self.place(index)):
            made = evaluate(operation.name.removeprefix(PREFIX), given, operation.kwargs)
        specs = [spec for spec in operation.specs if spec is not None]
        self._give(operation, [x.reshape(spec.shape) for x, spec in zip(made, specs, strict=True)])

    def _apart(self, arrays: list[jax.Array]) -> list[jax.Array]:
        """The same arrays, not before the newest gradient.

        What FSDP2 gathers for the backward pass XLA would take for what was gathered before, and keep that so long.
        """
        newest = self._last_gradient
        held = lax.optimization_barrier((*arrays, *([] if newest is None else [self.content.whole(newest)])))
        if newest is not None:
            self.content.put((newest,), held[-1])
        return list(held[: len(arrays)])

    def run_loop(self, loop: Loop) -> None:
        """Run equal stretches as one loop."""
        content, tape = self.content, self.tape
        body = tape.operations[loop.first : loop.first + loop.period]
        draws = sum(o.random for o in body)
        rows = {s: content.rows(column) for s, column in loop.turned.items()}
        keys = None
        if draws:
            assert self.keys is not None
            keys = self.keys[self.drawn : self.drawn + draws * loop.turns].reshape(loop.turns, draws, 4)
            self.drawn += draws * loop.turns
        updated = list(dict.fromkeys(rows[s][0] for s in loop.updated))
        start: Any = (
            jnp.zeros((), np.int32),
            {s: content.whole(s) for s in loop.carried},
            {s: content.whole(s) for s in loop.kept},
            {s: content.whole(s) for s in loop.last},
            {key: content.array(key) for key in updated},
            {s: _zeros(abstract(tape, column)) for s, column in loop.stacked.items()},
        )

        def turn(carry: Any) -> Any:
            k, carried, kept, _, arrays, stacked = carry
            mine = None if keys is None else lax.dynamic_index_in_dim(keys, k, keepdims=False)
            inner = Content(tape)
            inner._arrays, inner._places, inner._next = dict(content._arrays), dict(content._places), content._next
            for s, (key, first, way) in rows.items():
                source = arrays.get(key)
                source = content.array(key) if source is None else source
                inner.put((s,), lax.dynamic_index_in_dim(source, first + way * k, keepdims=False))
            for s, array in [*carried.items(), *kept.items()]:
                inner.put((s,), array)
            evaluation = _Evaluation(tape, inner, mine, self.constrain, self.place, in_loop=True)
            for j, operation in enumerate(body):
                evaluation.run(loop.first + j, operation)
            for s in sorted(loop.updated):
                key, first, way = rows[s]
                arrays = arrays | {
                    key: lax.dynamic_update_index_in_dim(arrays[key], inner.whole(s), first + way * k, 0)
                }
            return (
                k + 1,
                {s: inner.whole(m) for s, m in loop.carried.items()},
                {s: inner.whole(s) for s in loop.kept},
                {s: inner.whole(s) for s in loop.last},
                arrays,
                {s: lax.dynamic_update_index_in_dim(x, inner.whole(s), k, 0) for s, x in stacked.items()},
            )

        # lax.scan would count in 64 bits here, which a TPU has not: XLA then does not see how often a loop turns.
        _, _, kept, last, arrays, made = lax.while_loop(lambda carry: carry[0] < np.int32(loop.turns), turn, start)
        for s, column in loop.stacked.items():
            content.put(column, made[s])
        for s, array in kept.items():
            content.put((s,), array)
        for s, number in loop.last.items():
            content.put((number,), last[s])
        for key, array in arrays.items():
            content.replace(key, array)
        self._last_gradient = None

    def _give(self, operation: Operation, flat: Sequence[jax.Array | None]) -> None:
        fresh = flat[len(operation.writes) :]
        for ref, new in zip(operation.writes, flat, strict=False):
            assert new is not None
            self._write(ref, new)
        for number, new in zip(operation.makes, fresh, strict=True):
            if number is not None and new is not None:
                base = self.tape.storages[number].base
                self._write(Ref(number, base if base.sizes == new.shape else _flat(base.dtype, new.shape)), new)
        for number in _given(operation):
            if operation.recompute is not None:
                self._made_in[number] = operation.recompute
            elif operation.backward and len(self.tape.storages[number].base.sizes) > 1:
                self._last_gradient = number

    def _arguments(self, operation: Operation, write_only: frozenset[str]) -> tuple[list[Any], dict[str, Any]]:
        names = [a.name for a in op_named(operation.name)._schema.arguments]

        def read(name: str, value: Any) -> Any:
            if isinstance(value, (list, tuple)):
                return [read(name, v) for v in value]
            if not isinstance(value, Ref):
                return value
            if name in write_only:
                return jax.ShapeDtypeStruct(value.view.sizes, to_numpy(value.view.dtype))
            return self._read(value, operation.recompute)

        args = [read(n, a) for n, a in zip(names, operation.args, strict=False)]
        return args, {n: read(n, a) for n, a in operation.kwargs.items()}

    def _read(self, ref: Ref, region: int | None) -> jax.Array:
        array = None
        if region is not None and self._made_in.get(ref.storage) != region:
            array = self._again.get(ref.storage)
        if array is None:
            array = self.content.whole(ref.storage)
        plan = _plan(self.tape.storages[ref.storage].base, ref.view)
        if not plan.structure.identity:
            array = view.read(array, plan.structure, plan.starts)
        if ref.conjugated:
            array = jnp.conj(array)
        return -array if ref.negated else array

    def _write(self, ref: Ref, new: jax.Array) -> None:
        if ref.conjugated:
            new = jnp.conj(new)
        if ref.negated:
            new = -new
        plan = _plan(self.tape.storages[ref.storage].base, ref.view)
        if not plan.structure.identity:
            new = view.write(self.content.whole(ref.storage), plan.structure, plan.starts, new)
        self.content.put((ref.storage,), new)

    def _enter(self, operation: Operation) -> None:
        """At the first operation of a region that computes the forward pass again, keep XLA from merging the two.

        What the region reads of the forward pass goes through an optimization barrier together with the newest
        gradient, so that it is not computed before that gradient is there (as `jax.checkpoint` does it).
        """
        if operation.recompute == self._region or not self._regions:
            return
        self._region = operation.recompute
        if self._region is None:
            return
        numbers = [n for n in self._regions[self._region] if n in self.content]
        after = [] if self._last_gradient is None else [self._last_gradient]
        held = lax.optimization_barrier(tuple(self.content.whole(n) for n in (*numbers, *after)))
        self._again = dict(zip(numbers, held, strict=False))
        if self._last_gradient is not None:
            self.content.put((self._last_gradient,), held[-1])


def _zeros(of: jax.ShapeDtypeStruct) -> jax.Array:
    return jnp.zeros(of.shape, of.dtype)


def _reads_of_regions(operations: Iterable[Operation]) -> dict[int, list[int]]:
    """For each region, the storages that it reads and has not given content itself, in order."""
    found: dict[int, dict[int, None]] = {}
    made: dict[int, set[int]] = {}
    for o in operations:
        if o.recompute is None:
            continue
        reads, mine = found.setdefault(o.recompute, {}), made.setdefault(o.recompute, set())
        reads.update(dict.fromkeys(r.storage for r in o.reads() if r.storage not in mine))
        mine.update(_given(o))
    return {region: list(reads) for region, reads in found.items()}


@cache
def _plan(base: view.Layout, seen: view.Layout) -> view.ViewPlan:
    return view.plan(base, seen)


def _flat(dtype: Any, sizes: tuple[int, ...]) -> view.Layout:
    """The layout of a tensor whose elements lie one after the other from the start of the storage."""
    strides = [1] * len(sizes)
    for d in range(len(sizes) - 2, -1, -1):
        strides[d] = strides[d + 1] * sizes[d + 1]
    return view.Layout(dtype, sizes, tuple(strides))
