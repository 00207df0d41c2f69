"""An executable as bytes, and back, without the Python objects that JAX keeps beside it.

`jax.experimental.serialize_executable` pickles those; this writes the few that a call needs as JSON. The way back ends
in the same C++ call path that `jax.stages.Compiled` uses (3 µs a result less than through `execute_sharded`).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from .client import device

_LENGTH = 8


@dataclass(frozen=True, slots=True)
class Signature:
    """What a call of an executable must know.

    Attributes:
        arguments: how many it takes.
        results: (shape, dtype's name) of each array it returns.
        notes: what came with it, as JSON has it.
    """

    arguments: int
    results: tuple[tuple[tuple[int, ...], str], ...]
    notes: Any


@dataclass(frozen=True, slots=True)
class Stored:
    """An executable that was loaded.

    Attributes:
        call: arrays (or NumPy arrays) in, a list of arrays out.
        runtime: the executable as the runtime knows it.
        notes: what was stored with it.
    """

    call: Callable[..., list[jax.Array]]
    runtime: Any
    notes: Any


def to_bytes(compiled: jax.stages.Compiled, notes: Any) -> bytes:
    """The executable, its signature, and `notes` (anything JSON can hold).

    Raises what the runtime raises where a platform cannot serialize (`jax.errors.JaxRuntimeError`).
    """
    executable: Any = compiled.runtime_executable()
    infos = jax.tree.leaves(compiled.out_info)
    results = tuple((tuple(o.shape), np.dtype(o.dtype).name) for o in infos)
    signature = Signature(len(jax.tree.leaves(compiled.in_avals)), results, notes)
    header = json.dumps(asdict(signature)).encode()
    serialized: bytes = executable.client.serialize_executable(executable)
    return len(header).to_bytes(_LENGTH, "little") + header + serialized


def from_bytes(data: bytes, index: int) -> Stored:
    """What `to_bytes` was given, for device `index`.

    Raises ValueError for bytes that `to_bytes` did not write, and what the runtime raises for an executable that is
    not its own.
    """
    end = _LENGTH + int.from_bytes(data[:_LENGTH], "little")
    said = json.loads(data[_LENGTH:end])
    results = tuple((tuple(shape), name) for shape, name in said["results"])
    signature = Signature(said["arguments"], results, said["notes"])
    executable = _load(data[end:], index)
    return Stored(_callable(executable, signature, index), executable, signature.notes)


def _load(serialized: bytes, index: int) -> Any:
    from jaxlib import _jax

    target = device(index)
    return target.client.deserialize_executable(serialized, executable_devices=_jax.DeviceList((target,)))


def _callable(executable: Any, signature: Signature, index: int) -> Callable[..., list[jax.Array]]:
    """JAX's C++ dispatch of one executable: the first call runs it from Python and hands over what later ones need."""
    from jax._src import tree_util
    from jax._src.interpreters import pxla
    from jaxlib import _jax

    placement = SingleDeviceSharding(device(index))
    tree = tree_util.dispatch_registry.flatten([0] * len(signature.results), None)[1]
    avals = [jax.core.ShapedArray(shape, np.dtype(name)) for shape, name in signature.results]
    n = signature.arguments

    # Made here and not at the first call: with a JAX that wants it otherwise, loading fails and the caller compiles.
    fast = pxla.MeshExecutableFastpathData(
        executable, tree, [placement] * n, [placement] * len(avals), avals, [True] * len(avals), [True] * n,
        [None] * n, (),
    )  # fmt: skip

    def first_call(*arguments: Any) -> tuple[list[jax.Array], Any, bool]:
        placed = [a if isinstance(a, jax.Array) else jax.device_put(a, placement) for a in arguments]
        made = executable.execute_sharded(placed).disassemble_into_single_device_arrays()
        return [shards[0] for shards in made], fast, False

    call: Callable[..., list[jax.Array]] = _jax.pjit(
        "stored", None, first_call, [], [], pxla.JitGlobalCppCacheKeys(), tree_util.dispatch_registry,
        pxla.cc_shard_arg,
    )  # fmt: skip
    return call
