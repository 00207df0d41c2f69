"""Arrays between the host, the device, and one device and another."""

from __future__ import annotations

import ctypes

import jax
import numpy as np
import torch

from ..lowering.dtypes import in_array, to_numpy, to_torch
from .client import check_not_forked
from .meshes import placement
from .metrics import METRICS
from .waiting import until_ready

# Arrays have as many at most.
_MOST_DIMENSIONS = 64
# Dtypes numpy has no name for go through an integer of their size.
_CARRIER = {1: np.dtype(np.uint8), 2: np.dtype(np.int16)}


def upload(tensor: torch.Tensor, index: int) -> jax.Array:
    """A contiguous CPU tensor's content on device `index`, independent of the tensor from now on."""
    if tensor.dim() > _MOST_DIMENSIONS:
        raise RuntimeError(f"only tensors with up to {_MOST_DIMENSIONS} dims are supported, got {tensor.dim()}")
    plain = in_array(tensor.resolve_conj().resolve_neg())
    array = np.empty(tuple(plain.shape), to_numpy(plain.dtype))
    # Not `copy_`: that wakes OpenMP's threads, which go on spinning on the cores that XLA:CPU computes with. On 2 busy
    # cores 1 MiB took it 7 ms of CPU time, and this 0.3 ms; up to 64 MiB it was no faster.
    ctypes.memmove(array.ctypes.data, plain.data_ptr(), array.nbytes)
    METRICS.bytes_to_device += array.nbytes
    with jax.enable_x64(True):
        # `array` is ours alone, so the runtime may keep it instead of copying it once more.
        placed: jax.Array = jax.device_put(array, placement(index))
    return placed


def download(array: jax.Array) -> torch.Tensor:
    """A device array's content as a CPU tensor. It may share the array's memory: copy from it, don't keep it."""
    check_not_forked()
    until_ready(array)
    host = np.asarray(array)
    METRICS.bytes_to_host += host.nbytes
    if not host.flags.writeable:
        host = _writeable(np.ascontiguousarray(host)).reshape(host.shape) if host.size else host.copy()
    return host_view(host)


def host_view(array: np.ndarray) -> torch.Tensor:
    """A torch tensor over a numpy array's memory, also for the dtypes that only ml_dtypes has."""
    dtype = to_torch(array.dtype)
    if array.dtype.type.__module__ == "numpy":
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(_CARRIER[dtype.itemsize])).view(dtype)


def transfer(array: jax.Array, index: int) -> jax.Array:
    """The array on another device of the platform, in memory of its own."""
    there = placement(index)
    with jax.enable_x64(True):
        if not array.sharding.device_set.isdisjoint(there.device_set):
            array = array.copy()  # JAX would take over the part that is there already
        moved: jax.Array = jax.device_put(array, there)
    return moved


def _writeable(host: np.ndarray) -> np.ndarray:
    """The same memory, claiming to be writeable: torch.from_numpy warns of read-only memory even of a mere reader."""
    memory = (ctypes.c_char * host.nbytes).from_address(host.__array_interface__["data"][0])
    memory.owner = host  # type: ignore[attr-defined]
    return np.frombuffer(memory, host.dtype).reshape(host.shape)  # type: ignore[call-overload]
