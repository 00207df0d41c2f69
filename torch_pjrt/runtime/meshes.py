"""Several devices of this process as one, with a device index of its own.

An array there lies over all of them, in whichever way: split along the axes of a grid of the devices, or with a copy on
each. A program of such arrays is one XLA program that XLA's partitioner spreads, collectives and all. To everything
above it is a device like another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from .. import _C
from .client import device


@dataclass(frozen=True, slots=True)
class Together:
    """The devices behind one index.

    Attributes:
        index: the device index.
        devices: in the order in which grids of them are filled, the last axis fastest.
    """

    index: int
    devices: tuple[jax.Device, ...]

    def sharding(self, grid: Sequence[int], axes: Sequence[str], shape: Sequence[int]) -> NamedSharding:
        """How an array of this shape lies over a grid of the devices.

        XLA splits arrays evenly: a dimension that its axes do not divide lies whole on all of them.

        Args:
            grid: its sizes.
            axes: for each dimension of the array the numbers of the grid's axes that it is split along: "0,1".
        """
        split = [tuple(filter(None, numbers.split(","))) for numbers in axes]
        parts = [prod(grid[int(n)] for n in numbers) for numbers in split]
        fitting = [
            numbers if size % count == 0 else () for numbers, count, size in zip(split, parts, shape, strict=True)
        ]
        return NamedSharding(self._mesh(grid), PartitionSpec(*fitting))

    def copies(self) -> NamedSharding:
        """How an array lies of which each device has a copy."""
        return NamedSharding(self._mesh([len(self.devices)]), PartitionSpec())

    def _mesh(self, grid: Sequence[int]) -> Mesh:
        laid = np.array(self.devices, dtype=object).reshape(tuple(grid))
        return Mesh(laid, tuple(map(str, range(len(grid)))))


# By the device indices, and by the numbers of the devices.
_by_index: dict[int, Together] = {}
_by_numbers: dict[tuple[int, ...], Together] = {}


def together(numbers: Sequence[int]) -> Together:
    """This process's devices with these indices as one, the same one each time.

    Raises:
        RuntimeError: there are as many as a process can have.
    """
    found = _by_numbers.get(tuple(numbers))
    if found is None:
        members = tuple(map(device, numbers))
        found = _by_numbers[tuple(numbers)] = Together(_C.add_mesh(), members)
        _by_index[found.index] = found
    return found


def together_at(index: int) -> Together | None:
    """The devices that are one with this index; None if it is a single device's."""
    return _by_index.get(index)


def devices_of(index: int) -> tuple[jax.Device, ...]:
    """The devices behind a device index: one, or several."""
    found = _by_index.get(index)
    return (device(index),) if found is None else found.devices


def placement(index: int) -> Sharding:
    """Where arrays of a device index go that nothing says more of: to the device, or as a copy to each of several."""
    found = _by_index.get(index)
    return SingleDeviceSharding(device(index)) if found is None else found.copies()
