"""Programs with convolutions, rewritten so that images stay channels-last from one convolution to the next.

XLA:CPU convolves in NHWC and puts a transpose around every convolution that is written in NCHW, as PyTorch's are. Those
transposes cancel only if nothing is between them, and normalizations and activations are. So on the CPU a program's
jaxpr is evaluated with the transposes deferred: a convolution's result is a *permuted* value, elementwise operations
and reductions work on it as it lies in memory, and what cannot is given the transposed array. XLA's layout assignment
does the same on GPUs and TPUs, where nothing is rewritten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

from jax import Array, lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

_INLINED = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "custom_jvp_call": "call_jaxpr"}
_ELEMENTWISE = frozenset({
    "abs", "acos", "acosh", "add", "and", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil", "clamp",
    "convert_element_type", "copy", "cos", "cosh", "div", "eq", "erf", "erf_inv", "erfc", "exp", "exp2", "expm1",
    "floor", "ge", "gt", "integer_pow", "is_finite", "le", "log", "log1p", "logistic", "lt", "max", "min", "mul",
    "ne", "neg", "nextafter", "not", "or", "pow", "rem", "round", "rsqrt", "select_n", "sign", "sin", "sinh",
    "sqrt", "square", "sub", "tan", "tanh", "xor",
})  # fmt: skip
_REDUCTIONS = frozenset({"reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or"})
_WINDOWED = frozenset({"reduce_window_max", "reduce_window_min", "reduce_window_sum", "select_and_scatter_add"})
_PER_DIM = ("window_dimensions", "window_strides", "padding", "base_dilation", "window_dilation")


@dataclass(frozen=True, slots=True)
class Permuted:
    """An array whose dimension k is the value's dimension `order[k]`."""

    array: Array
    order: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Spread:
    """An array to be broadcast to `shape`; its dimension j is the value's dimension `dims[j]`."""

    array: Array
    shape: tuple[int, ...]
    dims: tuple[int, ...]


Value: TypeAlias = Any  # Array | Permuted | Spread


def has_convolutions(jaxpr: Jaxpr) -> bool:
    """Whether a convolution of images or volumes is anywhere in the program."""
    return any(e.primitive.name == "conv_general_dilated" and _ndim(e) > 3 for e in _all_eqns(jaxpr))


def rewritten(closed: ClosedJaxpr) -> Callable[..., list[Array]]:
    """A function that computes what `closed` does, with its images channels-last."""

    def fn(*args: Array) -> list[Array]:
        return [_plain(v) for v in _evaluate(closed.jaxpr, closed.consts, args)]

    return fn


def _all_eqns(jaxpr: Jaxpr) -> Iterator[JaxprEqn]:
    for eqn in jaxpr.eqns:
        yield eqn
        inner = _INLINED.get(eqn.primitive.name)
        if inner is not None:
            yield from _all_eqns(eqn.params[inner].jaxpr)


def _shape(eqn: JaxprEqn) -> tuple[int, ...]:
    return getattr(eqn.outvars[0].aval, "shape", ())


def _ndim(eqn: JaxprEqn) -> int:
    return len(_shape(eqn))


def _evaluate(jaxpr: Jaxpr, consts: Sequence[Any], args: Sequence[Value]) -> list[Value]:
    values: dict[Any, Value] = dict(zip(jaxpr.constvars, consts, strict=True))
    values.update(zip(jaxpr.invars, args, strict=True))

    def value(v: Any) -> Value:
        return v.val if isinstance(v, Literal) else values[v]

    for eqn in jaxpr.eqns:
        for var, made in zip(eqn.outvars, _apply(eqn, [value(v) for v in eqn.invars]), strict=True):
            values[var] = made
    return [value(v) for v in jaxpr.outvars]


def _apply(eqn: JaxprEqn, given: list[Value]) -> list[Value]:
    name = eqn.primitive.name
    if name in _INLINED:
        inner = eqn.params[_INLINED[name]]
        return _evaluate(inner.jaxpr, inner.consts, given)
    if name == "conv_general_dilated" and _ndim(eqn) > 3:
        return [_convolution(eqn, *given)]
    if name in ("broadcast_in_dim", "reshape") and len(given) == 1:
        spread = _spread(eqn, given[0])
        if spread is not None:
            return [spread]
    order = next((v.order for v in given if isinstance(v, Permuted)), None)
    if order is not None:
        rule = _rule(name)
        if rule is not None:
            made = rule(eqn, given, order)
            if made is not None:
                return [made]
    made = eqn.primitive.bind(*map(_plain, given), **eqn.params)
    return list(made) if eqn.primitive.multiple_results else [made]


def _rule(name: str) -> Callable[[JaxprEqn, list[Value], tuple[int, ...]], Value] | None:
    if name in _ELEMENTWISE:
        return _elementwise
    if name in _REDUCTIONS:
        return _reduction
    if name in _WINDOWED:
        return _windowed
    return {"pad": _pad, "transpose": _transpose}.get(name)


def _plain(v: Value) -> Array:
    """The array itself."""
    if isinstance(v, Permuted):
        return lax.transpose(v.array, _inverse(v.order))
    if isinstance(v, Spread):
        return lax.broadcast_in_dim(v.array, v.shape, v.dims)
    return v


def _ordered(v: Value, order: tuple[int, ...]) -> Array:
    """The value as an array whose dimension k is the value's dimension `order[k]`."""
    if isinstance(v, Permuted) and v.order == order:
        return v.array
    if isinstance(v, Spread):
        places = [order.index(d) for d in v.dims]
        by_place = sorted(range(len(places)), key=places.__getitem__)
        array = v.array if by_place == list(range(len(places))) else lax.transpose(v.array, by_place)
        return lax.broadcast_in_dim(array, [v.shape[d] for d in order], sorted(places))
    array = _plain(v)
    return array if getattr(array, "ndim", 0) == 0 else lax.transpose(array, order)


def _inverse(order: Sequence[int]) -> tuple[int, ...]:
    return tuple(order.index(d) for d in range(len(order)))


def _permuted(array: Array, order: Sequence[int]) -> Value:
    return array if list(order) == sorted(order) else Permuted(array, tuple(order))


def _spread(eqn: JaxprEqn, v: Value) -> Spread | None:
    """A small array along some dimensions of a large one: placed when it is known how that one lies."""
    shape = _shape(eqn)
    if isinstance(v, (Permuted, Spread)) or len(shape) < 3:
        return None
    sizes = getattr(v, "shape", ())
    if eqn.primitive.name == "broadcast_in_dim":
        dims = eqn.params["broadcast_dimensions"]
    else:
        dims = tuple(d for d, n in enumerate(shape) if n != 1)
        if eqn.params.get("dimensions") is not None or [n for n in sizes if n != 1] != [shape[d] for d in dims]:
            return None
        return Spread(lax.reshape(v, [shape[d] for d in dims]), shape, dims) if len(dims) < 2 else None
    kept = [j for j, n in enumerate(sizes) if n != 1]
    if len(kept) > 1 or prod(sizes) == prod(shape):
        return None
    return Spread(lax.reshape(v, [sizes[j] for j in kept]), shape, tuple(dims[j] for j in kept))


def _convolution(eqn: JaxprEqn, lhs: Value, rhs: Value) -> Value:
    """One convolution over its operands as they lie; a result that is an image comes out channels-last."""
    numbers = eqn.params["dimension_numbers"]
    ndim = _ndim(eqn)
    if not isinstance(lhs, Permuted) and numbers.lhs_spec == tuple(range(ndim)):
        lhs = Permuted(_ordered(lhs, _last(ndim)), _last(ndim))
    operands, specs = [], []
    for v, spec in ((lhs, numbers.lhs_spec), (rhs, numbers.rhs_spec)):
        v = v if isinstance(v, Permuted) else Permuted(_plain(v), tuple(range(ndim)))
        operands.append(v.array)
        specs.append(tuple(v.order.index(d) for d in spec))
    out_order = _last(ndim) if numbers.out_spec == tuple(range(ndim)) else tuple(range(ndim))
    out_spec = tuple(out_order.index(d) for d in numbers.out_spec)
    params = {**eqn.params, "dimension_numbers": lax.ConvDimensionNumbers(specs[0], specs[1], out_spec)}
    return _permuted(eqn.primitive.bind(*operands, **params), out_order)


def _last(ndim: int) -> tuple[int, ...]:
    return (0, *range(2, ndim), 1)


def _elementwise(eqn: JaxprEqn, given: list[Value], order: tuple[int, ...]) -> Value:
    permuted = sum(v.array.size for v in given if isinstance(v, Permuted))
    if sum(getattr(v, "size", 0) for v in given if not isinstance(v, (Permuted, Spread))) > permuted:
        return None  # fewer transposes the other way round
    return _permuted(eqn.primitive.bind(*(_ordered(v, order) for v in given), **eqn.params), order)


def _reduction(eqn: JaxprEqn, given: list[Value], order: tuple[int, ...]) -> Value:
    (v,) = given
    axes = eqn.params["axes"]
    kept = [d for d in range(len(order)) if d not in axes]
    made = eqn.primitive.bind(v.array, **{**eqn.params, "axes": tuple(sorted(order.index(a) for a in axes))})
    return _permuted(made, [kept.index(d) for d in order if d in kept])


def _windowed(eqn: JaxprEqn, given: list[Value], order: tuple[int, ...]) -> Value:
    params = dict(eqn.params)
    for key in _PER_DIM:
        if key in params:
            params[key] = tuple(params[key][d] for d in order)
    return _permuted(eqn.primitive.bind(*(_ordered(v, order) for v in given), **params), order)


def _pad(eqn: JaxprEqn, given: list[Value], order: tuple[int, ...]) -> Value:
    v, fill = given
    if not isinstance(v, Permuted):
        return None
    config = tuple(eqn.params["padding_config"][d] for d in order)
    return _permuted(eqn.primitive.bind(v.array, _plain(fill), **{**eqn.params, "padding_config": config}), order)


def _transpose(eqn: JaxprEqn, given: list[Value], order: tuple[int, ...]) -> Value:
    moved = eqn.params["permutation"]
    return _permuted(given[0].array, [moved.index(d) for d in order])
