"""What the program that is being traced will run on, for the lowerings that have more than one way to say an op.

Whoever compiles says so (`compiling_for`). Without it a lowering says what every platform has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from math import prod

from jax import Array
from jax.lax import with_sharding_constraint
from jax.sharding import Mesh, Sharding


@dataclass(frozen=True, slots=True)
class Target:
    """A platform, and how XLA's partitioner spreads the program.

    Attributes:
        platform: as JAX names it: "cpu", "tpu".
        mesh: the devices that the program is partitioned over; None if it is one device's.
        batch: axes of the mesh that dimension 0 of the operands of an attention, or of a table's gradient, lies along;
            None if that is not known.
        heads: axes that its heads lie along.
        copies: of a program that XLA's partitioner spreads as its arguments lie: how an array lies of which each device
            has a copy; None of others.
        interpret: have JAX interpret Pallas kernels, which any platform can: for tests.

    Example:
        >>> with compiling_for(Target("tpu")):
        ...     jax.jit(fn).trace(x)
    """

    platform: str
    mesh: Mesh | None = None
    batch: tuple[str, ...] | None = ()
    heads: tuple[str, ...] = ()
    copies: Sharding | None = None
    interpret: bool = False

    def size(self, axes: Sequence[str]) -> int:
        """Along how many devices of the mesh these axes go."""
        assert self.mesh is not None
        return prod(self.mesh.shape[axis] for axis in axes)


_TARGET: ContextVar[Target | None] = ContextVar("target", default=None)


@contextmanager
def compiling_for(target: Target | None) -> Iterator[None]:
    """Tell the lowerings called within what their program will run on."""
    token = _TARGET.set(target)
    try:
        yield
    finally:
        _TARGET.reset(token)


def target() -> Target | None:
    """What the program that is being traced will run on; None if nobody has said."""
    return _TARGET.get()


def on_each_device(array: Array) -> Array:
    """In a program that is spread as its arguments lie, the same array, which each device makes as a whole."""
    on = target()
    return array if on is None or on.copies is None else with_sharding_constraint(array, on.copies)
