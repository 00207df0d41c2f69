"""Evaluate an aligned program on padded arrays."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array

from . import batched, contraction, elementwise, indexing, loops, random, reduction, shape  # noqa: F401  (they register rules)
from .aligned import Aligned, Constant, NotPaddable, Operand, Sized
from .arrays import Extents, Numbers, Padded, extent
from .rules import Call, rule_of


def evaluate(
    program: Aligned,
    inputs: Sequence[Array],
    whole: Array | None,
    real: Array | None,
    extents: Sequence[Extents] | None = None,
    zero: Sequence[bool] | None = None,
) -> list[Padded]:
    """The program's results.

    Args:
        inputs: of the sizes of the first sample.
        whole: int64, the values of `program.whole` for the real sizes; None if there are none.
        real: float64, those of `program.real`.
        extents: where the inputs' padding is; None: at the end of each dimension that varies.
        zero: whether it is zero; None: everywhere.

    Raises NotPaddable if an operation has no rule, or its rule cannot tell where the padding would go.
    """
    if extents is None:
        extents = [
            tuple(None if d is None else extent(d, n) for d, n in zip(dims, array.shape, strict=True))
            for dims, array in zip(program.input_dims, inputs, strict=True)
        ]
    known = [True] * len(inputs) if zero is None else zero
    padded = [Padded(x, e, z and any(e)) for x, e, z in zip(inputs, extents, known, strict=True)]
    return run(program, padded, Numbers(program, whole, real))


def run(program: Aligned, inputs: Sequence[Padded], numbers: Numbers) -> list[Padded]:
    """The results of a program, or of a loop's body, whose inputs are padded already."""
    values: dict[int, Padded] = dict(zip(program.inputs, inputs, strict=True))

    def read(operand: Operand) -> Padded:
        if isinstance(operand, Constant):
            array = jnp.asarray(operand.value)
            return Padded(array, (None,) * array.ndim)
        if isinstance(operand, Sized):
            return Padded(numbers.value(operand), ())
        return values[operand]

    remaining = _last_uses(program)
    for place, step in enumerate(program.steps):
        call = Call(step, [read(o) for o in step.operands], numbers, run)
        if call.fixed:
            made = step.primitive.bind(*(x.array for x in call.operands), **step.params)
            arrays = made if step.primitive.multiple_results else [made]
            results = [Padded(a, (None,) * a.ndim) for a in arrays]
        else:
            try:
                results = rule_of(step)(call)
            except NotPaddable as error:
                raise NotPaddable(f"{step.primitive.name}: {error}") from None
        for number, dims, result in zip(step.results, step.dims, results, strict=True):
            said = tuple(None if e is None else e.real for e in result.extents)
            if said != dims:
                raise NotPaddable(f"{step.primitive.name}: sizes {dims} came out as {said}")
            if number is not None:
                values[number] = result
        for number in remaining.get(place, ()):
            values.pop(number, None)
    return [read(o) for o in program.outputs]


def _last_uses(program: Aligned) -> dict[int, list[int]]:
    """step -> the values that nothing after it reads."""
    last = {o: place for place, step in enumerate(program.steps) for o in step.operands if isinstance(o, int)}
    for output in program.outputs:
        if isinstance(output, int):
            last.pop(output, None)
    found: dict[int, list[int]] = {}
    for number, place in last.items():
        found.setdefault(place, []).append(number)
    return found
