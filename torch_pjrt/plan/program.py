"""A tape as a function of arrays, which JAX can trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..lowering import Spec, apply, find, view
from ..lowering.dtypes import to_numpy
from ..eager.infer import op_named
from .tape import Operation, Ref, Tape, refs

# What is done to an operation's results: (operation's index, result's index, array) -> array.
Constrain = Callable[[int, int, jax.Array], jax.Array]


@dataclass(frozen=True, slots=True)
class Signature:
    """What a program takes and returns, as numbers of the tape's storages.

    Attributes:
        inputs: storages that exist before the step.
        donated: positions among the inputs of those whose memory the step may use.
        host_inputs: (operation, storage): results of operations that run on the CPU, which arrive as arguments.
        outputs: storages with new content, first those of the donated inputs in the inputs' order.
        host_outputs: storages that an operation on the CPU reads.
        draws: how many random keys, uint32[4], the program takes as its last argument.
    """

    inputs: tuple[int, ...]
    donated: tuple[int, ...]
    host_inputs: tuple[tuple[int, int], ...]
    outputs: tuple[int, ...]
    host_outputs: tuple[tuple[int, int], ...]
    draws: int


def signature(tape: Tape) -> Signature:
    """How the program of a tape is called."""
    inputs, written = tape.inputs, tape.written
    place = {number: i for i, number in enumerate(inputs)}
    freed = [n for n in inputs if n in tape.freed and n not in written]
    donated = sorted(place[n] for n in [*written, *freed])
    on_host = [(i, o) for i, o in enumerate(tape.operations) if o.on_host]
    host_inputs = [(i, n) for i, o in on_host for n in _given(o)]
    host_outputs = [(i, r.storage) for i, o in on_host for r in o.reads()]
    outputs = [*written, *(n for n in tape.returned)]
    return Signature(
        tuple(inputs), tuple(donated), tuple(host_inputs), tuple(outputs), tuple(host_outputs), tape.draws
    )


def _given(operation: Operation) -> list[int]:
    return [*(w.storage for w in operation.writes), *(n for n in operation.makes if n is not None)]


def abstract(tape: Tape, number: int) -> jax.ShapeDtypeStruct:
    """Shape and dtype of the array under a storage."""
    base = tape.storages[number].base
    return jax.ShapeDtypeStruct(base.sizes, to_numpy(base.dtype))


def program(tape: Tape, constrain: Constrain = lambda i, j, x: x) -> Callable[..., list[jax.Array]]:
    """The function of a tape: (arrays of `signature(tape).inputs`, of `host_inputs`, keys) -> results.

    The results are the arrays of `outputs`, then of `host_outputs`.

    Args:
        constrain: applied to each result of each operation, to say how it is sharded.
    """
    called = signature(tape)

    def run(
        inputs: Sequence[jax.Array], from_host: Sequence[jax.Array], keys: jax.Array | None
    ) -> list[jax.Array]:
        evaluation = _Evaluation(tape, dict(zip(called.inputs, inputs, strict=True)), keys, constrain)
        arrivals: dict[int, list[tuple[int, jax.Array]]] = {}
        for (index, number), array in zip(called.host_inputs, from_host, strict=True):
            arrivals.setdefault(index, []).append((number, array))
        departed: list[jax.Array] = []
        for index, operation in enumerate(tape.operations):
            if operation.on_host:
                departed += [evaluation.whole(r.storage) for r in operation.reads()]
                evaluation.arrays.update(arrivals.get(index, ()))
                continue
            with jax.named_scope(place_of(operation)):
                evaluation.run(index, operation)
        return [*(evaluation.whole(n) for n in called.outputs), *departed]

    return run


def place_of(operation: Operation) -> str:
    """The operation's name in the program; StableHLO and HLO carry it as the location."""
    kind = "|recompute" if operation.recompute is not None else "|backward" if operation.backward else ""
    return f"{operation.line} {operation.name}{kind}".replace("/", "|")


class _Evaluation:
    """The content of the storages while a tape's operations are run on tracers."""

    def __init__(
        self, tape: Tape, arrays: Mapping[int, jax.Array], keys: jax.Array | None, constrain: Constrain
    ) -> None:
        self.tape = tape
        self.arrays: dict[int, jax.Array] = dict(arrays)
        self.keys = iter([] if keys is None else [keys[i] for i in range(keys.shape[0])])
        self.constrain = constrain
        self._made_in: dict[int, int] = {}  # storage -> the region whose recomputation gave it its content
        self._again: dict[int, jax.Array] = {}
        self._region: int | None = None
        self._last_gradient: int | None = None
        self._regions = _reads_of_regions(tape.operations)

    def whole(self, number: int) -> jax.Array:
        """The array under a storage; zeros if nothing was written to it yet."""
        found = self.arrays.get(number)
        if found is None:
            base = self.tape.storages[number].base
            found = jnp.zeros(base.sizes, to_numpy(base.dtype))
        return found

    def run(self, index: int, operation: Operation) -> None:
        """Run one operation: read, apply its lowering, give the storages their new content."""
        self._enter(operation)
        op = op_named(operation.name)
        lowering = find(op)
        assert lowering is not None
        args, kwargs = self._arguments(operation, lowering.write_only)
        key = next(self.keys) if operation.random else None
        try:
            flat = apply(op, args, kwargs, operation.specs, key)
        except Exception as error:
            error.add_note(f"while lowering {operation.name} at {operation.line}")
            raise
        flat = [x if x is None else self.constrain(index, j, x) for j, x in enumerate(flat)]
        fresh = flat[len(operation.writes) :]
        for ref, content in zip(operation.writes, flat, strict=False):
            self._write(ref, content)
        for number, content in zip(operation.makes, fresh, strict=True):
            if number is not None and content is not None:
                self._write(self._own(number, content), content)
        for number in _given(operation):
            if operation.recompute is not None:
                self._made_in[number] = operation.recompute
            elif operation.backward and self.whole(number).ndim > 1:
                self._last_gradient = number

    def _own(self, number: int, content: jax.Array) -> Ref:
        base = self.tape.storages[number].base
        return Ref(number, base if base.sizes == content.shape else view.Layout(base.dtype, content.shape, ()))

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
        array = self.whole(ref.storage)
        if region is not None and self._made_in.get(ref.storage) != region:
            array = self._again.get(ref.storage, array)
        plan = _plan(self.tape.storages[ref.storage].base, ref.view)
        if not plan.structure.identity:
            array = view.read(array, plan.structure, plan.starts)
        if ref.conjugated:
            array = jnp.conj(array)
        return -array if ref.negated else array

    def _write(self, ref: Ref, content: jax.Array) -> None:
        base = self.tape.storages[ref.storage].base
        if ref.conjugated:
            content = jnp.conj(content)
        if ref.negated:
            content = -content
        if content.shape == base.sizes and ref.view == base:
            self.arrays[ref.storage] = content
            return
        plan = _plan(base, ref.view if ref.view.strides or not ref.view.sizes else _flat(ref.view))
        if plan.structure.identity:
            self.arrays[ref.storage] = content
        else:
            self.arrays[ref.storage] = view.write(self.whole(ref.storage), plan.structure, plan.starts, content)

    def _enter(self, operation: Operation) -> None:
        """At the first operation of a region that computes the forward pass again, keep XLA from merging the two.

        What the region reads of the forward pass goes through an optimization barrier together with the newest
        gradient, so that it is not computed before that gradient is there (as `jax.checkpoint` does it).
        """
        if operation.recompute == self._region:
            return
        self._region = operation.recompute
        if self._region is None:
            return
        numbers = [n for n in self._regions[self._region] if n in self.arrays]
        after = [] if self._last_gradient is None else [self.arrays[self._last_gradient]]
        held = lax.optimization_barrier((*(self.arrays[n] for n in numbers), *after))
        self._again = dict(zip(numbers, held, strict=False))
        if self._last_gradient is not None:
            self.arrays[self._last_gradient] = held[-1]


def _reads_of_regions(operations: Iterable[Operation]) -> dict[int, list[int]]:
    """For each region, the storages that it reads and has not given content itself, in order."""
    found: dict[int, dict[int, None]] = {}
    made: dict[int, set[int]] = {}
    for o in operations:
        if o.recompute is None:
            continue
        reads, mine = found.setdefault(o.recompute, {}), made.setdefault(o.recompute, set())
        reads.update(dict.fromkeys(r.storage for r in refs((o.args, tuple(o.kwargs.values()))) if r.storage not in mine))
        mine.update(_given(o))
    return {region: list(reads) for region, reads in found.items()}


@cache
def _plan(base: view.Layout, seen: view.Layout) -> view.ViewPlan:
    return view.plan(base, seen)


def _flat(layout: view.Layout) -> view.Layout:
    """The same sizes, one element after the other from the start of the storage."""
    strides = [1] * len(layout.sizes)
    for d in range(len(layout.sizes) - 2, -1, -1):
        strides[d] = strides[d + 1] * layout.sizes[d + 1]
    return view.Layout(layout.dtype, layout.sizes, tuple(strides))


__all__ = ["Constrain", "Signature", "Spec", "abstract", "place_of", "program", "signature"]
