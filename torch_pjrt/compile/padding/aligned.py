"""A function traced at several sizes, as one program in which all that depends on sizes is named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np
import sympy  # type: ignore[import-untyped]
from jax.extend.core import ClosedJaxpr, Literal, Var

from .fit import Fit, Number

# Calls that are evaluated in place, and the parameter that holds what they call.
_INLINED = {
    "jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr", "checkpoint": "jaxpr",
    "remat2": "jaxpr", "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr",
}  # fmt: skip


class NotPaddable(Exception):
    """A program cannot run at a padded size; the message says which operation stands in the way."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A number or array that is the same at all sizes."""

    value: Any


@dataclass(frozen=True, slots=True)
class Sized:
    """A 0-d number that depends on sizes."""

    expression: Any
    dtype: np.dtype


# Operations with programs of their own, and the parameters that hold them.
_LOOPS = {"scan": ("jaxpr",), "while": ("cond_jaxpr", "body_jaxpr"), "cond": ("branches",)}

# A value of the program by its number, or what is no value of it.
Operand = int | Constant | Sized
# For each dimension the expression of its real size; None if it is the same at all sizes.
Dims = tuple[Any | None, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """One equation.

    Attributes:
        params: as traced at the bucket's size.
        differs: parameter -> its values at the samples, of those that depend on sizes.
        fitted: the same with an expression for each number that depends on sizes, where all that differs are numbers.
        results: the number of each result; None: nobody reads it.
        shapes, dims: of each result, at the bucket's size and in truth.
        bodies: parameter -> the programs that it holds.
    """

    primitive: Any
    params: dict[str, Any]
    differs: dict[str, tuple[Any, ...]]
    fitted: dict[str, Any]
    operands: tuple[Operand, ...]
    results: tuple[int | None, ...]
    shapes: tuple[tuple[int, ...], ...]
    dims: tuple[Dims, ...]
    bodies: dict[str, tuple[Aligned, ...]] = field(default_factory=dict)

    @property
    def fixed(self) -> bool:
        """Whether nothing but its operands can depend on sizes."""
        return (
            not self.differs
            and not any(d is not None for dims in self.dims for d in dims)
            and all(b.fixed for bodies in self.bodies.values() for b in bodies)
        )


@dataclass(slots=True)
class Aligned:
    """A program.

    Attributes:
        inputs, input_dims: its arguments.
        steps: its equations, in order.
        outputs, output_dims: its results.
        whole, real: the expressions whose values it needs at run time, integers and floats: expression -> place.
    """

    inputs: list[int] = field(default_factory=list)
    input_dims: list[Dims] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    outputs: list[Operand] = field(default_factory=list)
    output_dims: list[Dims] = field(default_factory=list)
    whole: dict[Any, int] = field(default_factory=dict)
    real: dict[Any, int] = field(default_factory=dict)

    @property
    def fixed(self) -> bool:
        """Whether nothing in it depends on sizes."""
        return all(s.fixed and not any(isinstance(o, Sized) for o in s.operands) for s in self.steps)


def align(traces: Sequence[ClosedJaxpr], fit: Fit) -> Aligned:
    """One program of the same function traced at the samples of `fit`, the first of which is the bucket.

    Raises NotPaddable where the traces differ in anything but numbers that `fit` can express.
    """
    return _Alignment(fit).program(traces)


class _Alignment:
    def __init__(self, fit: Fit, within: Aligned | None = None) -> None:
        self.fit = fit
        self.made = Aligned()
        if within is not None:  # the run-time numbers are those of the whole program
            self.made.whole, self.made.real = within.whole, within.real
        self.count = 0

    def program(self, traces: Sequence[ClosedJaxpr]) -> Aligned:
        first = traces[0].jaxpr
        self.made.inputs = [self._fresh() for _ in first.invars]
        self.made.input_dims = [self._dims([t.jaxpr.invars[i] for t in traces]) for i in range(len(first.invars))]
        self.made.outputs = self._inline(traces, list(self.made.inputs))
        self.made.output_dims = [self._dims([t.jaxpr.outvars[i] for t in traces]) for i in range(len(first.outvars))]
        read = {o for step in self.made.steps for o in step.operands if isinstance(o, int)}
        read |= {o for o in self.made.outputs if isinstance(o, int)}
        self.made.steps = [
            replace(step, results=tuple(r if r in read else None for r in step.results)) for step in self.made.steps
        ]
        return self.made

    def _fresh(self) -> int:
        self.count += 1
        return self.count

    def _inline(self, traces: Sequence[ClosedJaxpr], arguments: Sequence[Operand]) -> list[Operand]:
        jaxprs = [t.jaxpr for t in traces]
        if len({(len(j.eqns), len(j.invars), len(j.outvars), len(j.constvars)) for j in jaxprs}) > 1:
            raise NotPaddable(f"it has {sorted({len(j.eqns) for j in jaxprs})} operations at different sizes")
        known: list[dict[Var, Operand]] = [dict(zip(j.invars, arguments, strict=True)) for j in jaxprs]
        for i in range(len(jaxprs[0].constvars)):
            constant = _same_constant([t.consts[i] for t in traces])
            for k, j in zip(known, jaxprs, strict=True):
                k[j.constvars[i]] = constant
        for eqns in zip(*(j.eqns for j in jaxprs), strict=True):
            self._equation(eqns, known)
        return [self._operand([j.outvars[i] for j in jaxprs], known) for i in range(len(jaxprs[0].outvars))]

    def _equation(self, eqns: Sequence[Any], known: Sequence[dict[Var, Operand]]) -> None:
        first = eqns[0]
        name = first.primitive.name
        if {e.primitive.name for e in eqns} != {name} or len({(len(e.invars), len(e.outvars)) for e in eqns}) > 1:
            raise NotPaddable(f"it does {' or '.join(sorted({e.primitive.name for e in eqns}))} depending on sizes")
        operands = tuple(self._operand([e.invars[i] for e in eqns], known) for i in range(len(first.invars)))
        if name in _INLINED:
            inner = [_closed(e.params[_INLINED[name]]) for e in eqns]
            for i, value in enumerate(self._inline(inner, operands)):
                for k, e in zip(known, eqns, strict=True):
                    k[e.outvars[i]] = value
            return
        results: list[int | None] = []
        for i in range(len(first.outvars)):
            number = self._fresh()
            results.append(number)
            for k, e in zip(known, eqns, strict=True):
                k[e.outvars[i]] = number
        bodies = {k: self._bodies([e.params[k] for e in eqns]) for k in _LOOPS.get(name, ())}
        differs = {
            k: tuple(e.params[k] for e in eqns)
            for k in first.params
            if k not in bodies and any(not _equal(first.params[k], e.params[k]) for e in eqns[1:])
        }
        self.made.steps.append(
            Step(
                first.primitive,
                first.params,
                differs,
                {k: fitted for k, values in differs.items() if (fitted := self._fitted(values)) is not None},
                operands,
                tuple(results),
                tuple(tuple(v.aval.shape) for v in first.outvars),
                tuple(self._dims([e.outvars[i] for e in eqns]) for i in range(len(first.outvars))),
                bodies,
            )
        )

    def _bodies(self, held: Sequence[Any]) -> tuple[Aligned, ...]:
        lists = [h if isinstance(h, tuple) else (h,) for h in held]
        return tuple(
            _Alignment(self.fit, self.made).program([_closed(j) for j in same]) for same in zip(*lists, strict=True)
        )

    def _operand(self, atoms: Sequence[Any], known: Sequence[dict[Var, Operand]]) -> Operand:
        if not isinstance(atoms[0], Literal):
            values = [k[a] for k, a in zip(known, atoms, strict=True)]
            if not all(v is values[0] or (isinstance(v, int) and v == values[0]) for v in values):
                raise NotPaddable("what an operation reads depends on sizes")
            return values[0]
        if not all(isinstance(a, Literal) for a in atoms):
            raise NotPaddable("what an operation reads depends on sizes")
        aval: Any = atoms[0].aval
        literals = [a.val for a in atoms]
        if all(_equal(literals[0], v) for v in literals[1:]):
            return Constant(_array(literals[0], aval))
        dtype = np.dtype(aval.dtype)
        if np.ndim(literals[0]) != 0 or dtype.kind not in "iuf":
            raise NotPaddable(f"a constant {dtype} array depends on sizes")
        return Sized(self._expression([int(v) if dtype.kind in "iu" else float(v) for v in literals]), dtype)

    def _dims(self, atoms: Sequence[Any]) -> Dims:
        shapes = [tuple(a.aval.shape) for a in atoms]
        if len({len(s) for s in shapes}) > 1:
            raise NotPaddable("how many dimensions a tensor has depends on sizes")
        return tuple(None if len(set(d)) == 1 else self._size(d) for d in zip(*shapes, strict=True))

    def _size(self, values: Sequence[int]) -> Any:
        found = self._expression(values)
        growing = all(c > 0 for term, c in sympy.expand(found).as_coefficients_dict().items() if term.free_symbols)
        if max(values) > values[0] or not growing:
            raise NotPaddable(f"size {found} shrinks where another grows")
        return found

    def _fitted(self, values: Sequence[Any]) -> Any:
        """A parameter of numbers, those that depend on sizes as expressions; None if it has anything else."""
        if all(isinstance(v, (int, np.integer)) and not isinstance(v, bool) for v in values):
            return int(values[0]) if len(set(values)) == 1 else self._expression([int(v) for v in values])
        if all(isinstance(v, tuple) for v in values) and len({len(v) for v in values}) == 1:
            elements = [self._fitted(e) for e in zip(*values, strict=True)]
            return None if None in elements else tuple(elements)
        return None

    def _expression(self, values: Sequence[Number]) -> Any:
        found = self.fit.find(tuple(values))
        if found is None:
            raise NotPaddable(f"a number is {', '.join(map(str, values))} at different sizes, for no known reason")
        table = self.made.whole if isinstance(values[0], int) else self.made.real
        table.setdefault(found, len(table))
        return found


def _closed(jaxpr: Any) -> ClosedJaxpr:
    return jaxpr if isinstance(jaxpr, ClosedJaxpr) else ClosedJaxpr(jaxpr, ())


def _same_constant(values: Sequence[Any]) -> Constant:
    if not all(_equal(values[0], v) for v in values[1:]):
        raise NotPaddable("a constant array depends on sizes")
    return Constant(values[0])


def _array(value: Any, aval: Any) -> Any:
    return value if isinstance(value, jax.Array) else np.asarray(value, aval.dtype)


def _equal(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if isinstance(a, (np.ndarray, np.generic, jax.Array)) or isinstance(b, (np.ndarray, np.generic, jax.Array)):
        return np.shape(a) == np.shape(b) and bool(np.array_equal(a, b, equal_nan=np.asarray(a).dtype.kind in "fc"))
    if isinstance(a, ClosedJaxpr):
        return isinstance(b, ClosedJaxpr) and str(a) == str(b)
    if isinstance(a, float) and isinstance(b, float) and a != a:
        return b != b
    return bool(type(a) is type(b) and a == b)
