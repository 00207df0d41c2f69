"""Collectives as XLA programs: one SPMD program over one device of each member, for each kind, shape and dtype.

A member's part of the program's operand is its own tensor: the global array is the members' tensors one after the other
along the first dimension. So no program that reshapes or copies comes before or after.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from .dispatch import dispatch

AXIS = "rank"
_BITWISE = {"BAND": jnp.bitwise_and, "BOR": jnp.bitwise_or, "BXOR": jnp.bitwise_xor}
# A collective on one member's array, given how many members there are.
Collective = Callable[..., Array]


@dataclass(frozen=True)
class Kind:
    """What a collective does on each member: `of(x, members, **settings)`, to be run over the mesh axis `AXIS`."""

    of: Collective
    settings: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        return f"{self.of.__name__}({', '.join(f'{name}={value}' for name, value in self.settings)})"


class Programs:
    """The compiled collectives of one set of devices.

    Args:
        devices: one of each member, in the order of their ranks.
        mine: which of them is this process's.
    """

    def __init__(self, devices: Sequence[jax.Device], mine: int) -> None:
        self.mesh = Mesh(np.array(devices, dtype=object), (AXIS,))
        self.members = len(devices)
        self.device = devices[mine]
        self._sharding = NamedSharding(self.mesh, PartitionSpec(AXIS))
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
        operands = [self._global(a) for a in flat]
        results = dispatch(lambda: program(*operands))
        return [r.addressable_shards[0].data for r in results]

    def _global(self, array: Array) -> Array:
        shape = (self.members * array.shape[0], *array.shape[1:])
        return jax.make_array_from_single_device_arrays(shape, self._sharding, [array])

    def _compile(self, kind: Kind, arrays: Sequence[Array]) -> Any:
        one = functools.partial(kind.of, members=self.members, **dict(kind.settings))

        def each(*xs: Array) -> tuple[Array, ...]:
            return tuple(one(x) for x in xs)

        along = PartitionSpec(AXIS)
        program = jax.shard_map(each, mesh=self.mesh, in_specs=along, out_specs=along, check_vma=False)
        with jax.enable_x64(True):
            operands = [
                jax.ShapeDtypeStruct((self.members * a.shape[0], *a.shape[1:]), a.dtype, sharding=self._sharding)
                for a in arrays
            ]
            return jax.jit(program).lower(*operands).compile()


def all_reduce(x: Array, members: int, *, op: str) -> Array:
    """The members' arrays reduced by `op`, a name of torch.distributed.ReduceOp."""
    if op in ("SUM", "AVG"):
        # As NCCL and Gloo: a sum of bools is "any of them"; a mean of integers is cut.
        if x.dtype == jnp.bool_:
            return lax.pmax(x, AXIS)
        total = lax.psum(x, AXIS)
        return total if op == "SUM" else _divided(total, members)
    if op in ("MAX", "MIN"):
        return (lax.pmax if op == "MAX" else lax.pmin)(x, AXIS)
    return _reduced(lax.all_gather(x, AXIS), op)


def reduce_scatter(x: Array, members: int, *, op: str) -> Array:
    """The i-th of `members` equal parts of `x` along dimension 0, reduced over the members, for member i."""
    if op in ("SUM", "AVG") and x.dtype != jnp.bool_:
        total = lax.psum_scatter(x, AXIS, tiled=True)
        return total if op == "SUM" else _divided(total, members)
    return _reduced(all_to_all(x, members).reshape(members, -1, *x.shape[1:]), op)


def _reduced(parts: Array, op: str) -> Array:
    """The members' arrays, stacked, reduced by what XLA has no collective for."""
    if op in _BITWISE:
        return functools.reduce(_BITWISE[op], list(parts))
    if parts.dtype == jnp.bool_:
        return parts.all(0) if op in ("MIN", "PRODUCT") else parts.any(0)
    return parts.prod(0, dtype=parts.dtype) if op == "PRODUCT" else parts.max(0) if op == "MAX" else parts.min(0)


def all_gather(x: Array, members: int) -> Array:
    """The members' arrays, one after the other along dimension 0."""
    return lax.all_gather(x, AXIS, tiled=True)


def all_to_all(x: Array, members: int) -> Array:
    """Part i of `x` goes to member i, which puts the parts that come in the order of their senders."""
    return lax.all_to_all(x, AXIS, 0, 0, tiled=True)


def broadcast(x: Array, members: int, *, root: int) -> Array:
    """The array of member `root`, as a sum of bits: XLA:CPU has no broadcast, a sum of floats loses the sign of -0."""
    bits, dtype = _as_integers(x)
    sent = jnp.where(lax.axis_index(AXIS) == root, bits, jnp.zeros_like(bits))
    return _from_integers(lax.psum(sent, AXIS), dtype).reshape(x.shape)


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
