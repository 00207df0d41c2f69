"""Collectives as XLA programs: one SPMD program over one device of each member, for each kind, shape and dtype.

The functions of one member's array (`all_reduce`, ...) are also what collectives inside compiled graphs are made of
(`compile/collectives.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from ..runtime.members import AXIS, Members
from .dispatch import dispatched

_BITWISE = {"BAND": jnp.bitwise_and, "BOR": jnp.bitwise_or, "BXOR": jnp.bitwise_xor}
# A collective on one member's array, given how many members there are.
Collective = Callable[..., Array]
# Ranks along `AXIS` that do a collective among themselves, each in one group of a size; None: all of them together.
Groups = Sequence[Sequence[int]] | None


@dataclass(frozen=True)
class Kind:
    """What a collective does on each member: `of(x, members, **settings)`, to be run over the mesh axis `AXIS`."""

    of: Collective
    settings: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        return f"{self.of.__name__}({', '.join(f'{name}={value}' for name, value in self.settings)})"


class Programs:
    """The compiled collectives of some members."""

    def __init__(self, members: Members) -> None:
        self.members = members
        self._compiled: dict[Any, Any] = {}

    def run(self, kind: Kind, arrays: Sequence[Array]) -> list[Array]:
        """Dispatch the collective on each of the arrays, all in one program; this member's results.

        Args:
            kind: what to do.
            arrays: this member's operands, on its device. All members give as many, of the same shapes and dtypes.
        """
        flat = [a.reshape(1) if a.ndim == 0 else a for a in arrays]
        key = (kind, tuple((a.shape, a.dtype) for a in flat))
        program = self._compiled.get(key)
        if program is None:
            program = self._compiled[key] = self._compile(kind, flat)
        results: list[Array] = program(*flat)
        return results

    def _compile(self, kind: Kind, arrays: Sequence[Array]) -> Any:
        one = functools.partial(kind.of, members=len(self.members), **dict(kind.settings))

        def each(*xs: Array) -> tuple[Array, ...]:
            return tuple(one(x) for x in xs)

        with jax.enable_x64(True):
            operands = [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=self.members.sharding) for a in arrays]
            compiled = jax.jit(self.members.spread(each)).lower(*operands).compile()
        return self.members.caller(dispatched(compiled))


def all_reduce(x: Array, members: int, *, op: str, groups: Groups = None) -> Array:
    """The members' arrays reduced by `op`, a name of torch.distributed.ReduceOp."""
    if op in ("SUM", "AVG"):
        # As NCCL and Gloo: a sum of bools is "any of them"; a mean of integers is cut.
        if x.dtype == jnp.bool_:
            return lax.pmax(x, AXIS, axis_index_groups=groups)
        total = lax.psum(x, AXIS, axis_index_groups=groups)
        return total if op == "SUM" else _divided(total, members)
    if op in ("MAX", "MIN"):
        return (lax.pmax if op == "MAX" else lax.pmin)(x, AXIS, axis_index_groups=groups)
    return _reduced(lax.all_gather(x, AXIS, axis_index_groups=groups), op)


def reduce_scatter(x: Array, members: int, *, op: str, groups: Groups = None) -> Array:
    """The i-th of `members` equal parts of `x` along dimension 0, reduced over the members, for member i."""
    if op in ("SUM", "AVG") and x.dtype != jnp.bool_:
        total = lax.psum_scatter(x, AXIS, tiled=True, axis_index_groups=groups)
        return total if op == "SUM" else _divided(total, members)
    return _reduced(all_to_all(x, members, groups=groups).reshape(members, -1, *x.shape[1:]), op)


def _reduced(parts: Array, op: str) -> Array:
    """The members' arrays, stacked, reduced by what XLA has no collective for."""
    if op in _BITWISE:
        return functools.reduce(_BITWISE[op], list(parts))
    if parts.dtype == jnp.bool_:
        return parts.all(0) if op in ("MIN", "PRODUCT") else parts.any(0)
    return parts.prod(0, dtype=parts.dtype) if op == "PRODUCT" else parts.max(0) if op == "MAX" else parts.min(0)


def all_gather(x: Array, members: int, *, groups: Groups = None) -> Array:
    """The members' arrays, one after the other along dimension 0."""
    return lax.all_gather(x, AXIS, tiled=True, axis_index_groups=groups)


def all_to_all(x: Array, members: int, *, split: int = 0, concat: int = 0, groups: Groups = None) -> Array:
    """Part i of `x` along dimension `split` goes to member i, which joins what comes along `concat` by its senders."""
    return lax.all_to_all(x, AXIS, split, concat, tiled=True, axis_index_groups=groups)


def broadcast(x: Array, members: int, *, root: int, groups: Groups = None) -> Array:
    """The array of member `root`, as a sum of bits: XLA:CPU has no broadcast, a sum of floats loses the sign of -0."""
    bits, dtype = _as_integers(x)
    roots = jnp.asarray([root] if groups is None else [group[root] for group in groups])
    sent = jnp.where((lax.axis_index(AXIS) == roots).any(), bits, jnp.zeros_like(bits))
    return _from_integers(lax.psum(sent, AXIS, axis_index_groups=groups), dtype).reshape(x.shape)


def send(x: Array, members: int, *, to: int) -> Array:
    """Of two members, `to` gets the other's array."""
    return lax.ppermute(x, AXIS, [(1 - to, to)])


def _divided(total: Array, members: int) -> Array:
    if jnp.issubdtype(total.dtype, jnp.integer):
        return lax.div(total, jnp.asarray(members, total.dtype))
    return total / jnp.asarray(members, total.dtype)


def _as_integers(x: Array) -> tuple[Array, Any]:
    if x.dtype == jnp.bool_:
        return x.astype(jnp.uint8), x.dtype
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        x, dtype = jnp.stack([x.real, x.imag]), x.dtype
    else:
        dtype = x.dtype
    if jnp.issubdtype(x.dtype, jnp.integer):
        return x, dtype
    return lax.bitcast_convert_type(x, f"uint{8 * x.dtype.itemsize}"), dtype


def _from_integers(bits: Array, dtype: Any) -> Array:
    if dtype == jnp.bool_:
        return bits != 0
    if jnp.issubdtype(dtype, jnp.complexfloating):
        real, imaginary = lax.bitcast_convert_type(bits, f"float{8 * bits.dtype.itemsize}")
        return lax.complex(real, imaginary)
    return bits if bits.dtype == dtype else lax.bitcast_convert_type(bits, dtype)
