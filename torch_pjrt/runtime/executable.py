"""Compile a function of arrays for one device, and call it with as little as possible in between."""

from __future__ import annotations

import ctypes
import functools
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from .cache import enable_persistent_cache
from .client import device, dispatched
from .metrics import METRICS

# XLA may otherwise keep bfloat16 intermediates in float32 where it fuses, and results would depend on the trace.
_OPTIONS: dict[str, Any] = {"xla_allow_excess_precision": False}


@dataclass(frozen=True, slots=True)
class Executable:
    """A compiled program. Its arguments: the trace's inputs, then the run-time parameters that exist."""

    compiled: jax.stages.Compiled
    # Which of (floats, ints, keys) the program takes.
    takes: tuple[bool, bool, bool]
    # What it computes, for the message of an error at run time.
    summary: str = ""

    def __call__(self, inputs: list[jax.Array], *parameters: np.ndarray) -> list[jax.Array]:
        taken = [p for p, wanted in zip(parameters, self.takes, strict=True) if wanted]
        with jax.enable_x64(True):
            results: list[jax.Array] = self.compiled(*inputs, *taken)
        dispatched(results)
        return results


def compile_function(
    fn: Callable[..., list[jax.Array]],
    inputs: Sequence[jax.ShapeDtypeStruct],
    parameters: Sequence[jax.ShapeDtypeStruct | None],
    donate: Sequence[int],
    index: int,
    options: Mapping[str, Any] | None = None,
) -> tuple[Executable, jax.stages.Lowered]:
    """Compile `fn(inputs, floats, ints, keys)` for device `index`.

    Args:
        fn: traced by JAX once, with lists of arrays; parameters that don't exist are None.
        inputs: shape and dtype of each input.
        parameters: the same for floats (float64), ints (int64) and keys (uint32), or None.
        donate: inputs whose memory the program may overwrite.
        options: further XLA options, by XLA's names.

    Returns:
        the executable, and the lowered module for those who want to look at it.
    """
    enable_persistent_cache()
    started = time.perf_counter()
    placement = SingleDeviceSharding(device(index))
    placed = [jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=placement) for s in inputs]
    present = [jax.ShapeDtypeStruct(p.shape, p.dtype, sharding=placement) for p in parameters if p is not None]

    def flat(*args: jax.Array) -> list[jax.Array]:
        given = iter(args[len(placed) :])
        return fn(list(args[: len(placed)]), *(None if p is None else next(given) for p in parameters))

    with jax.enable_x64(True), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
        jitted = jax.jit(flat, donate_argnums=tuple(donate), keep_unused=True, out_shardings=placement)
        lowered = jitted.lower(*placed, *present)
        compiled = lowered.compile(compiler_options={**_OPTIONS, **(options or {})})
    took = time.perf_counter() - started
    METRICS.executables_compiled += 1
    METRICS.compile_seconds += took
    if took > _LONG_COMPILE:
        _return_compiler_memory()
    takes = tuple(p is not None for p in parameters)
    return Executable(compiled, (takes[0], takes[1], takes[2])), lowered


# Seconds of compiling from which on its memory is worth the milliseconds of giving it back.
_LONG_COMPILE = 0.5


def _return_compiler_memory() -> None:
    """Give the memory that LLVM freed back to the system: glibc keeps it, on top of which the arrays would come.

    Measured on a ResNet-18 training step: a peak of 1,175 MB instead of 1,494 MB.
    """
    libc = _libc()
    if libc is not None:
        libc.malloc_trim(0)


@functools.cache
def _libc() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "malloc_trim") else None
