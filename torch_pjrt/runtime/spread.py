"""A program over a mesh of this process's devices: one executable for each way that its arguments lie there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding

from . import interrupts

Compile = Callable[[Sequence[jax.ShapeDtypeStruct]], jax.stages.Compiled]


class Spread:
    """A function of arrays that is compiled when it is called, since only then it is known how its arguments lie.

    How its results lie is XLA's choice. What the runtime knows of it (`cost_analysis()` and the like) is what it knows
    of the executable that was made last.

    Args:
        arguments: shape and dtype of each.
        whole: how an argument lies that is not on the device yet.
        compile: compiles the program for arguments that lie as those that it is given.
    """

    def __init__(self, arguments: Sequence[jax.ShapeDtypeStruct], whole: Sharding, compile: Compile) -> None:
        # Of a program without arguments JAX would not know the devices. One more than it takes does no harm.
        self._more = () if arguments else (np.empty(0, np.uint8),)
        self._arguments = [*arguments, *(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in self._more)]
        self._whole = whole
        self._compile = compile
        self._made: dict[tuple[Sharding, ...], jax.stages.Compiled] = {}
        # Called with each executable's number, from 1, and with the executable as the runtime knows it.
        self.then: Callable[[int, Any], None] = lambda number, runtime: None

    def __call__(self, *arguments: Any) -> list[jax.Array]:
        with jax.enable_x64(True):
            return self._call(*arguments, *self._more)

    def prepare(self, arrays: Sequence[jax.Array]) -> None:
        """Compile for these arguments, and the numbers that come behind them, if it has not been done."""
        with jax.enable_x64(True):
            self._compiled((*(a.sharding for a in arrays), *[self._whole] * (len(self._arguments) - len(arrays))))

    def _call(self, *arguments: Any) -> list[jax.Array]:
        lie = tuple(a.sharding if isinstance(a, jax.Array) else self._whole for a in arguments)
        results: list[jax.Array] = self._compiled(lie)(*arguments)
        return results

    def _compiled(self, lie: tuple[Sharding, ...]) -> jax.stages.Compiled:
        compiled = self._made.get(lie)
        if compiled is None:
            placed = [
                jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=s) for a, s in zip(self._arguments, lie, strict=True)
            ]
            with interrupts.listening():
                compiled = self._made[lie] = self._compile(placed)
            self.then(len(self._made), compiled.runtime_executable())
        return compiled

    def __getattr__(self, name: str) -> Any:
        made = self.__dict__.get("_made")
        if not made or name.startswith("_"):
            raise AttributeError(f"{name}: nothing is compiled yet")
        return getattr(next(reversed(made.values())).runtime_executable(), name)
