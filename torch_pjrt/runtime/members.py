"""One program over a device of each of several processes, of which each gives arrays of its own and gets its own.

JAX describes an array by how it is spread over devices. Here nothing is spread: each process has a tensor, and the
others have others under the same name. So the arrays are called replicated, which says that a device's part has the
shape of the whole, and the program is one big `shard_map`, in which every device computes with its own part and nobody
compares them. No program that reshapes, copies or concatenates comes before or after, and a call takes and gives the
process's own arrays as they are: naming them to JAX and back took 130 of the 230 µs of a call.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from . import waiting

# The name of the mesh's one axis, along which collectives in such a program go.
AXIS = "rank"
# XLA:CPU runs a program of fewer than 1,000 flops (a collective alone has none) in the thread that dispatches it, which
# would wait there for all members; with this many numbers to add up it is done by a thread of XLA's.
_NUMBERS = 1024
# The most such programs that are dispatched and have not ended. XLA:CPU's client takes 32 programs; then dispatching
# blocks, out of reach of Ctrl-C and of what a guard knows.
_AT_ONCE = 16

_ends: deque[Array] = deque()
# The last one's, which the next one takes as an argument: all members must run them in one order, and XLA:CPU runs
# programs that do not need each other's results in any.
_last: dict[jax.Device, Array] = {}
_lock = threading.Lock()


class Members:
    """Devices that run programs together.

    Args:
        devices: one of each member, in the order of their ranks.
        mine: which of them is this process's.

    Example:
        >>> members = Members(devices, mine=0)
        >>> shape = jax.ShapeDtypeStruct((3,), "float32", sharding=members.sharding)
        >>> total = jax.jit(members.spread(lambda x: [jax.lax.psum(x, AXIS)]), keep_unused=True)
        >>> results, end = members.program(total.lower(shape, members.after).compile())(array)
    """

    def __init__(self, devices: Sequence[jax.Device], mine: int) -> None:
        self.mesh = Mesh(np.array(devices, dtype=object), (AXIS,))
        self.device = devices[mine]
        self.sharding = NamedSharding(self.mesh, PartitionSpec())
        # What a program is given that says when the one before it has ended.
        self.after = jax.ShapeDtypeStruct((), np.float32, sharding=self.sharding)

    def __len__(self) -> int:
        return int(self.mesh.devices.size)

    def spread(self, fn: Callable[..., Sequence[Any]]) -> Callable[..., Any]:
        """`fn` of each member's own arrays, with collectives along `AXIS`, as a function that `jax.jit` takes.

        It has one argument more, `after`, and one result more, `end` of `program`.
        """
        nothing_spread = PartitionSpec()

        def ending(*arrays: Array) -> list[Any]:
            return [*fn(*arrays[:-1]), _end()]

        spread: Callable[..., Any] = jax.shard_map(
            ending, mesh=self.mesh, in_specs=nothing_spread, out_specs=nothing_spread, check_vma=False
        )
        return spread

    def program(self, compiled: jax.stages.Compiled) -> Callable[..., tuple[list[Array], Array]]:
        """A compiled `spread` as a function from this member's arrays to its results and `end`.

        `end` is a number that is there once the program has ended. All arguments must be in use (`keep_unused`). A call
        does not wait for the program; with many of them under way it waits for an earlier one, and raises then what a
        guard does (`waiting`).
        """
        executable: Any = compiled.runtime_executable()

        def call(*arrays: Any) -> tuple[list[Array], Array]:
            _wait_for_room()
            given = [a if isinstance(a, Array) else jax.device_put(a, self.device) for a in arrays]
            with _lock:
                before = _last.get(self.device)
                given.append(jax.device_put(np.float32(0), self.device) if before is None else before)
                results = executable.execute_sharded(given).disassemble_into_single_device_arrays()
                *made, end = [shards[0] for shards in results]
                _ends.append(end)
                _last[self.device] = end
            return made, end

        return call

    def caller(self, compiled: jax.stages.Compiled, content: str | None = None) -> Callable[..., list[Array]]:
        """`program`, with the results alone. `content` is what the program depends on, if that can be told."""
        run = self.program(compiled)
        return lambda *arrays: run(*arrays)[0]


def _end() -> Array:
    """A number of the program that takes `_NUMBERS` additions, of what is known only at run time."""
    numbers = jnp.arange(_NUMBERS, dtype=jnp.float32)
    rank = jax.lax.axis_index(AXIS).astype(jnp.float32)
    return ((numbers + rank) * (numbers - rank)).sum()


def _wait_for_room() -> None:
    while True:
        with _lock:
            while _ends and _ends[0].is_ready():  # type: ignore[attr-defined]
                _ends.popleft()
            if len(_ends) < _AT_ONCE:
                return
            oldest = _ends[0]
        waiting.until_ready(oldest)
        with _lock:  # without guards nothing was waited for
            if _ends and _ends[0] is oldest:
                _ends.popleft()
