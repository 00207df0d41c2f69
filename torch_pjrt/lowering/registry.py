"""The one table of lowerings: ATen overload name -> a function over JAX arrays.

A lowering takes the op's schema arguments in schema order. Tensors arrive as JAX arrays in their logical shape
(never a view to be undone), lists of tensors as lists, numbers, dtypes and size lists as Python values. A float
`Scalar` arrives as a weakly typed 0-d array (it travels at run time, so that a learning-rate schedule compiles
nothing) unless it is named in `static`. It returns an array, or a tuple / list of arrays in the order of the
schema's returns; `apply` casts each to the dtype PyTorch promises, so a lowering need not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

import jax.numpy as jnp
from jax import Array

from .check import require_divisor
from .dtypes import opmath, promote, to_numpy


@dataclass(frozen=True, slots=True)
class Lowering:
    """How one ATen overload becomes JAX.

    Attributes:
        fn: the function, called with the schema's arguments.
        static: names of `Scalar` arguments that must be compile-time constants (an exponent, an order of a norm).
        dynamic: names of `float` arguments that may change from call to call without a recompile (`lr`).
        random: `fn` takes a keyword `key`, a uint32[4] array that is fresh for every call.
        write_only: names of tensor arguments whose old content does not matter; they arrive as ShapeDtypeStruct.
    """

    fn: Callable[..., Any]
    static: frozenset[str] = frozenset()
    dynamic: frozenset[str] = frozenset()
    random: bool = False
    write_only: frozenset[str] = frozenset()


_TABLE: dict[str, Lowering] = {}


def lower(
    *names: str,
    static: Sequence[str] = (),
    dynamic: Sequence[str] = (),
    random: bool = False,
    write_only: Sequence[str] = (),
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function as the lowering of ATen overloads, e.g. `@lower("mm", "bmm")`.

    A name is the overload's without the `aten::` (`"add.Tensor"`; `"relu"` for the default overload). In-place and
    `out=` overloads are derived from the functional one; register them only if they differ from it.
    """

    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        entry = Lowering(fn, frozenset(static), frozenset(dynamic), random, frozenset(write_only))
        for name in names:
            if name in _TABLE:
                raise ValueError(f"aten::{name} has two lowerings: {_TABLE[name].fn} and {fn}")
            _TABLE[name] = entry
        return fn

    return register


def pointwise(
    *names: str,
    floating: bool = False,
    rounded: bool | Sequence[str] = False,
    static: Sequence[str] = (),
    aside: Sequence[str] = (),
    divisor: str = "",
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register an elementwise function whose operands meet in one dtype.

    Every array argument (and number in an operand position) is cast to PyTorch's promoted dtype, the half types to
    float32 first (PyTorch's opmath), before the function sees it; so the function is the formula and nothing else.
    `floating`: integers compute in the default float dtype (`sin`, `true_divide`). `rounded`: the operands
    that are rounded to the promoted dtype first also if they are numbers or 0-d tensors, True for all: CPU PyTorch does
    so in most operators (bfloat16's 0.1 equals 0.1), but not with a second factor or a divisor, and in few activations.
    Tensors with dimensions always are. Arguments named in `static` (see
    `lower`) and `aside` (a mask, a number of decimals) take no part in that and are passed through untouched. The one
    named `divisor` must not be zero where the operands meet in an integer dtype.
    """
    untouched = frozenset(static) | frozenset(aside)

    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        import inspect

        params = list(inspect.signature(fn).parameters)

        @wraps(fn)
        def computed(*args: Any, **kwargs: Any) -> Any:
            bound = dict(zip(params, args, strict=False)) | kwargs
            operands = {k: v for k, v in bound.items() if k not in untouched and is_operand(v)}
            meet = promote(list(operands.values()), floating=floating)
            dtype = to_numpy(opmath(meet))
            for k, v in operands.items():
                # A number goes through its own type first: 300 wraps in uint8, as PyTorch's wrapped numbers do.
                x = jnp.asarray(v)
                if x.ndim or rounded is True or (rounded and k in rounded):
                    x = x.astype(to_numpy(meet))
                bound[k] = x.astype(dtype)
                if k == divisor and (isinstance(v, Array) or v == 0):
                    require_divisor(bound[k])
            return fn(**bound)

        lower(*names, static=static)(computed)
        return fn

    return register


def is_operand(value: object) -> bool:
    """Whether an argument takes part in type promotion: an array or a number, but no string, list, dtype or None."""
    return isinstance(value, (Array, bool, int, float, complex))


def get(name: str) -> Lowering | None:
    """The lowering registered for exactly this overload name, or None."""
    return _TABLE.get(name)


def names() -> list[str]:
    """Every overload name with a lowering of its own."""
    return sorted(_TABLE)
