"""What is under the storages of a tape while its program is traced."""

from __future__ import annotations

from itertools import pairwise

import jax
import jax.numpy as jnp
from jax import lax

from ..lowering.dtypes import to_numpy
from .roll import Storages
from .tape import Tape


def abstract(tape: Tape, group: Storages) -> jax.ShapeDtypeStruct:
    """Shape and dtype of the array that stands for storages."""
    base = tape.storages[group[0]].base
    return jax.ShapeDtypeStruct(base.sizes if len(group) == 1 else (len(group), *base.sizes), to_numpy(base.dtype))


class Content:
    """The arrays under the storages; one array may hold several, along its dimension 0."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self._arrays: dict[int, jax.Array] = {}
        self._places: dict[int, tuple[int, int | None]] = {}  # storage -> (array, index in it)
        self._next = 0

    def __contains__(self, number: int) -> bool:
        return number in self._places

    def put(self, group: Storages, array: jax.Array) -> None:
        """Give storages new content: the array, or its rows."""
        self._arrays[self._next] = array
        for i, number in enumerate(group):
            self._places[number] = self._next, i if len(group) > 1 else None
        self._next += 1

    def whole(self, number: int) -> jax.Array:
        """The array under a storage; zeros if nothing was written to it yet."""
        place = self._places.get(number)
        if place is None:
            base = self.tape.storages[number].base
            return jnp.zeros(base.sizes, to_numpy(base.dtype))
        array, index = self._arrays[place[0]], place[1]
        return array if index is None else lax.index_in_dim(array, index, keepdims=False)

    def stack(self, group: Storages) -> jax.Array:
        """The arrays under storages, one after the other; of one, the array itself."""
        if len(group) == 1:
            return self.whole(group[0])
        held = self.held(group)
        if held is not None and held[1:] == (0, 1) and self._arrays[held[0]].shape[0] == len(group):
            return self._arrays[held[0]]
        return jnp.stack([self.whole(n) for n in group])

    def held(self, group: Storages) -> tuple[int, int, int] | None:
        """(array, first row, step) if the storages are rows of one array, forwards or backwards; else None."""
        places = [self._places.get(n) for n in group]
        if any(p is None or p[1] is None for p in places):
            return None
        rows = [p[1] for p in places if p is not None and p[1] is not None]
        arrays = {p[0] for p in places if p is not None}
        step = rows[1] - rows[0] if len(rows) > 1 else 1
        if len(arrays) > 1 or step not in (1, -1) or any(b - a != step for a, b in pairwise(rows)):
            return None
        return arrays.pop(), rows[0], step

    def rows(self, group: Storages) -> tuple[int, int, int]:
        """As `held`, of an array that is made if there is none."""
        held = self.held(group)
        if held is None:
            self.put(group, self.stack(group))
            held = self.held(group)
        assert held is not None
        return held

    def array(self, key: int) -> jax.Array:
        """The array with this key."""
        return self._arrays[key]

    def replace(self, key: int, array: jax.Array) -> None:
        """Another array in place of one, for all the storages in it."""
        self._arrays[key] = array
