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
from torch import Tensor

from ..runtime.members import AXIS, Members
from . import exchange
from .tensors import array_of

_OF_TWO: dict[str, Callable[[Array, Array], Array]] = {
    "SUM": lax.add, "AVG": lax.add, "PRODUCT": lambda x, y: x & y if x.dtype == jnp.bool_ else x * y,
    "MAX": lax.max, "MIN": lax.min, "BAND": lax.bitwise_and, "BOR": lax.bitwise_or, "BXOR": lax.bitwise_xor,
}  # fmt: skip
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


@dataclass(frozen=True)
class Program:
    """A compiled collective: `run` of the operands' arrays, as `Members.program` has it."""

    what: str
    run: Callable[..., tuple[list[Array], Array]]


class Programs:
    """The compiled collectives of some members."""

    def __init__(self, members: Members) -> None:
        self.members = members
        self._made: dict[Any, Program] = {}

    def of(self, kind: Kind, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Program:
        """The program that does it with each of the inputs.

        Args:
            kind: what to do.
            inputs: this member's operands. All members give as many, of the same shapes and dtypes.
            outputs: tensors of the first results' shapes, up to reshaping. Any, or none: nobody else needs to know.
        """
        key = (kind, *((t.shape, t.dtype) for t in inputs), *(t.shape for t in outputs))
        program = self._made.get(key)
        if program is None:
            given = ", ".join(f"{str(t.dtype).removeprefix('torch.')} {tuple(t.shape)}" for t in inputs)
            run = self._compile(kind, [array_of(t) for t in inputs], [tuple(t.shape) for t in outputs])
            program = self._made[key] = Program(f"{kind} of {given}", run)
        return program

    def _compile(self, kind: Kind, arrays: Sequence[Array], shapes: Sequence[tuple[int, ...]]) -> Any:
        one = functools.partial(kind.of, members=len(self.members), **dict(kind.settings))

        def each(*xs: Array) -> list[Array]:
            made = [one(x.reshape(1) if x.ndim == 0 else x) for x in xs]
            return [m.reshape(shape) for m, shape in zip(made, shapes, strict=False)] + made[len(shapes) :]

        with jax.enable_x64(True):
            operands = [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=self.members.sharding) for a in arrays]
            jitted = jax.jit(self.members.spread(each), keep_unused=True)
            compiled = jitted.lower(*operands, self.members.after).compile()
        return self.members.program(compiled)


def all_reduce(x: Array, members: int, *, op: str, groups: Groups = None) -> Array:
    """The members' arrays reduced by `op`, a name of torch.distributed.ReduceOp."""
    sums = op in ("SUM", "AVG")
    if sums and x.dtype == jnp.bool_:
        op, sums = "MAX", False  # as NCCL and Gloo: a sum of bools is "any of them"
    if exchange.pair(members):
        total = _folded([x, exchange.others(x, groups)], op)
    elif exchange.small(x):
        total = _folded(list(exchange.everyones(x, members, groups)), op)
    elif sums:
        total = lax.psum(x, AXIS, axis_index_groups=groups)
    elif op in ("MAX", "MIN"):
        total = (lax.pmax if op == "MAX" else lax.pmin)(x, AXIS, axis_index_groups=groups)
    else:
        total = _folded(list(lax.all_gather(x, AXIS, axis_index_groups=groups)), op)
    return _divided(total, members) if op == "AVG" else total


def reduce_scatter(x: Array, members: int, *, op: str, groups: Groups = None) -> Array:
    """The i-th of `members` equal parts of `x` along dimension 0, reduced over the members, for member i."""
    sums = op in ("SUM", "AVG")
    if sums and x.dtype == jnp.bool_:
        op, sums = "MAX", False
    if exchange.in_steps() and not exchange.small(x):
        total = _folded(exchange.parts_for_me(x, members, groups), op)
    elif sums and not exchange.small(x):
        total = lax.psum_scatter(x, AXIS, tiled=True, axis_index_groups=groups)
    else:
        total = _folded(list(all_to_all(x, members, groups=groups).reshape(members, -1, *x.shape[1:])), op)
    return _divided(total, members) if op == "AVG" else total


def _folded(parts: Sequence[Array], op: str) -> Array:
    """The members' arrays reduced one after the other."""
    return functools.reduce(_OF_TWO[op], parts)


def all_gather(x: Array, members: int, *, groups: Groups = None) -> Array:
    """The members' arrays, one after the other along dimension 0."""
    if exchange.small(x):
        return exchange.everyones(x, members, groups).reshape(members * x.shape[0], *x.shape[1:])
    return lax.all_gather(x, AXIS, tiled=True, axis_index_groups=groups)


def all_to_all(x: Array, members: int, *, split: int = 0, concat: int = 0, groups: Groups = None) -> Array:
    """Part i of `x` along dimension `split` goes to member i, which joins what comes along `concat` by its senders."""
    if exchange.pair(members) and split == concat == 0:
        return exchange.swapped_parts(x, groups)
    return lax.all_to_all(x, AXIS, split, concat, tiled=True, axis_index_groups=groups)


def broadcast(x: Array, members: int, *, root: int, groups: Groups = None) -> Array:
    """The array of member `root`, as a sum of bits: XLA:CPU has no broadcast, a sum of floats loses the sign of -0."""
    if exchange.small(x):
        return exchange.everyones(x, members, groups)[root]
    roots = jnp.asarray([root] if groups is None else [group[root] for group in groups])
    is_root = (lax.axis_index(AXIS) == roots).any()
    if exchange.pair(members):
        return jnp.where(is_root, x, exchange.others(x, groups))
    bits, dtype = _as_integers(x)
    sent = jnp.where(is_root, bits, jnp.zeros_like(bits))
    return _from_integers(lax.psum(sent, AXIS, axis_index_groups=groups), dtype).reshape(x.shape)


def shift(x: Array, members: int, *, by: int, groups: Groups = None) -> Array:
    """The array of the member so many places before, round the group."""
    return lax.ppermute(x, AXIS, exchange.ahead(by, members, groups))


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
