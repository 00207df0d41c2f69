"""One program over a device of each of several processes, of which each gives arrays of its own and gets its own.

JAX describes an array by how it is spread over devices. Here nothing is spread: each process has a tensor, and the
others have others under the same name. So the arrays are called replicated, which says that a device's part has the
shape of the whole, and the program is one big `shard_map`, in which every device computes with its own part and nobody
compares them. No program that reshapes, copies or concatenates comes before or after.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

# The name of the mesh's one axis, along which collectives in such a program go.
AXIS = "rank"


class Members:
    """Devices that run programs together.

    Args:
        devices: one of each member, in the order of their ranks.
        mine: which of them is this process's.

    Example:
        >>> members = Members(devices, mine=0)
        >>> total = jax.jit(members.spread(lambda x: jax.lax.psum(x, AXIS)))(members.named(array))
        >>> members.own(total)
    """

    def __init__(self, devices: Sequence[jax.Device], mine: int) -> None:
        self.mesh = Mesh(np.array(devices, dtype=object), (AXIS,))
        self.device = devices[mine]
        self.sharding = NamedSharding(self.mesh, PartitionSpec())

    def __len__(self) -> int:
        return int(self.mesh.devices.size)

    def spread(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """`fn` of each member's own arrays, with collectives along `AXIS`, as a function that `jax.jit` takes."""
        nothing_spread = PartitionSpec()
        spread: Callable[..., Any] = jax.shard_map(
            fn, mesh=self.mesh, in_specs=nothing_spread, out_specs=nothing_spread, check_vma=False
        )
        return spread

    def named(self, array: Any) -> Array:
        """What such a program takes for this member's array, or for a numpy array."""
        mine = array if isinstance(array, Array) else jax.device_put(array, self.device)
        return jax.make_array_from_single_device_arrays(mine.shape, self.sharding, [mine])

    def own(self, array: Array) -> Array:
        """This member's part of what such a program made."""
        mine: Array = array.addressable_shards[0].data
        return mine

    def caller(
        self, compiled: Callable[..., Sequence[Array]], content: str | None = None
    ) -> Callable[..., list[Array]]:
        """A compiled program as a function from this member's arrays to this member's results.

        `content` is what the program depends on, if that can be told.
        """

        def call(*arrays: Any) -> list[Array]:
            return [self.own(r) for r in compiled(*map(self.named, arrays))]

        return call
