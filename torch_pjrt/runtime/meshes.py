"""Several devices of this process as one, with a device index of its own.

An array there lies over all of them, in whichever way: split along axes of the mesh, or with a copy on each. A program
of such arrays is one XLA program that XLA's partitioner spreads, collectives and all. To everything above it is a
device like another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from .. import _C
from .client import device, devices


@dataclass(frozen=True, slots=True)
class LocalMesh:
    """The devices behind one index.

    Attributes:
        index: the device index.
        mesh: the devices and the names of the axes they lie along.
    """

    index: int
    mesh: Mesh

    def sharding(self, axes: Sequence[str], shape: Sequence[int]) -> NamedSharding:
        """How an array lies whose dimension `d` is split along the axes `axes[d]` (names joined by commas).

        XLA splits arrays evenly: a dimension that its axes do not divide lies whole on all of them.
        """
        split = [tuple(filter(None, names.split(","))) for names in axes]
        fitting = [names if size % self._parts(names) == 0 else () for names, size in zip(split, shape, strict=True)]
        return NamedSharding(self.mesh, PartitionSpec(*fitting))

    def _parts(self, names: Sequence[str]) -> int:
        return int(np.prod([self.mesh.shape[name] for name in names], dtype=np.int64))


# By the device indices; and by what was asked for.
_meshes: dict[int, LocalMesh] = {}
_known: dict[tuple[tuple[int, ...], tuple[int, ...], tuple[str, ...]], LocalMesh] = {}


def local_mesh(numbers: Sequence[int], shape: Sequence[int], names: Sequence[str]) -> LocalMesh:
    """The mesh of this process's devices with these numbers, the same one each time that the same is asked for.

    Args:
        numbers: device indices, the last axis running fastest.
        shape, names: size and name of each axis.

    Raises:
        RuntimeError: there are as many different meshes as a process can have.
    """
    wanted = (tuple(numbers), tuple(shape), tuple(names))
    found = _known.get(wanted)
    if found is None:
        placed = np.array([device(n) for n in numbers], dtype=object).reshape(wanted[1])
        found = _known[wanted] = LocalMesh(_C.add_mesh(), Mesh(placed, wanted[2]))
        _meshes[found.index] = found
        # What is drawn there goes on where the program has been.
        _C.default_generator(found.index).set_state(_C.default_generator(_C.current_device()).get_state())
    return found


def mesh_of(index: int) -> LocalMesh | None:
    """The mesh with this device index; None if that is a single device's."""
    return _meshes.get(index)


def devices_of(index: int) -> tuple[jax.Device, ...]:
    """The devices behind a device index: one, or a mesh's."""
    found = _meshes.get(index)
    return (device(index),) if found is None else tuple(found.mesh.devices.flat)


def placement(index: int) -> Sharding:
    """Where arrays of a device index go that nothing says more of: to the device, or as a copy to each of a mesh's."""
    found = _meshes.get(index)
    return SingleDeviceSharding(device(index)) if found is None else NamedSharding(found.mesh, PartitionSpec())


# The mesh of the program that is being traced.
_traced_for: ContextVar[LocalMesh | None] = ContextVar("traced_for", default=None)


@contextmanager
def tracing_for(mesh: LocalMesh | None) -> Iterator[None]:
    """Inside, lowerings are traced for a program of this mesh."""
    before = _traced_for.set(mesh)
    try:
        yield
    finally:
        _traced_for.reset(before)


def on_each_device(array: jax.Array) -> jax.Array:
    """In a program of a mesh, the same array, which each of its devices makes as a whole; else the array itself."""
    mesh = _traced_for.get()
    if mesh is None:
        return array
    return jax.lax.with_sharding_constraint(array, NamedSharding(mesh.mesh, PartitionSpec()))


def first_of(index: int) -> jax.Device:
    """The device behind an index that stands for all of them: a mesh's are of one kind."""
    return devices()[index] if index not in _meshes else devices_of(index)[0]
