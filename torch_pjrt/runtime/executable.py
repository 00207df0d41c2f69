"""Compile a function of arrays for a device (or a mesh of them), and call it with as little as possible in between."""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import jax
import numpy as np

from ..lowering.target import Target, compiling_for, target
from . import cache, stored
from .defaults import default_options
from .in_flight import dispatched
from .members import Members
from .meshes import placement, together_at
from .metrics import METRICS
from .platform import platform
from .spread import Spread

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Executable:
    """A compiled program. Its arguments: the trace's inputs, then the run-time parameters that exist."""

    compiled: Callable[..., list[jax.Array]]
    # The same as the runtime knows it: what it costs, its HLO.
    runtime: Any
    # Which of (floats, ints, keys) the program takes.
    takes: tuple[bool, bool, bool]
    # What `fn` left in `notes` while it was traced.
    notes: Any = None
    # The device it runs on, and the bytes it takes there while it runs: results and what XLA keeps in between.
    index: int = 0
    working_memory: int = 0

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
    content: str | None = None,
    notes: Callable[[], Any] = lambda: None,
    options: Mapping[str, Any] | None = None,
    members: Members | None = None,
) -> tuple[Executable, jax.stages.Lowered | None]:
    """Compile `fn(inputs, floats, ints, keys)` for device `index`, or load it if another process has.

    Args:
        fn: traced by JAX once, with lists of arrays; parameters that don't exist are None.
        inputs: shape and dtype of each input.
        parameters: the same for floats (float64), ints (int64) and keys (uint32), or None.
        donate: inputs whose memory the program may overwrite.
        content: all that `fn`'s mathematics and `donate` depend on, as text; None if the program is not to be kept
            in `TORCH_PJRT_CACHE_DIR`.
        notes: asked once `fn` has been traced: what its caller must know of it beside the program, as JSON has it.
        options: further XLA options, by XLA's names.
        members: who runs the program, `fn` having collectives along `members.AXIS`; None: this device alone. Such a
            program is not kept.

    Returns:
        the executable, and the lowered module for those who want to look at it: None if there was none to make.
    """
    started = time.perf_counter()
    takes = (parameters[0] is not None, parameters[1] is not None, parameters[2] is not None)
    asked = {**default_options(), **(options or {})}
    several = together_at(index)
    kept = content is not None and members is None and several is None and cache.directory() is not None
    key = None if content is None or not kept else cache.key_of(repr(sorted(asked.items())), content)
    if key is not None:
        loaded = _load(key, index)
        if loaded is not None:
            METRICS.executables_loaded += 1
            METRICS.load_seconds += time.perf_counter() - started
            noted, memory = loaded.notes
            return Executable(loaded.call, loaded.runtime, takes, noted, index, memory), None
        started = time.perf_counter()
    placed_at = placement(index) if members is None else members.sharding
    placed = [jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=placed_at) for s in inputs]
    present = [jax.ShapeDtypeStruct(p.shape, p.dtype, sharding=placed_at) for p in parameters if p is not None]

    def flat(*args: jax.Array) -> list[jax.Array]:
        given = iter(args[len(placed) :])
        return fn(list(args[: len(placed)]), *(None if p is None else next(given) for p in parameters))

    on = target() or Target(platform())
    jit = functools.partial(jax.jit, donate_argnums=tuple(donate), keep_unused=True)
    if several is not None:
        on, jitted = replace(on, copies=several.copies()), jit(flat)

        def compile_for(lying: Sequence[jax.ShapeDtypeStruct]) -> jax.stages.Compiled:
            began = time.perf_counter()
            return _compiled(_lower(jitted, lying, on), asked, began)

        lowered = _lower(jitted, [*placed, *present], on)
        spread = Spread([*placed, *present], placed_at, compile_for)
        return Executable(spread, spread, takes, notes(), index), lowered
    jitted = jit(flat if members is None else members.spread(flat), out_shardings=placed_at)
    lowered = _lower(jitted, [*placed, *present, *([] if members is None else [members.after])], on)
    compiled = _compiled(lowered, asked, started)
    memory = working_memory(compiled)
    if key is not None:
        _store(key, compiled, [notes(), memory])
    call = compiled if members is None else members.caller(compiled, content)
    return Executable(call, compiled.runtime_executable(), takes, notes(), index, memory), lowered


def working_memory(compiled: jax.stages.Compiled) -> int:
    """Bytes that a program takes besides its inputs while it runs, as XLA planned it; 0 where a plugin does not say."""
    plan = compiled.memory_analysis()
    if plan is None:
        return 0
    return int(plan.output_size_in_bytes + plan.temp_size_in_bytes - plan.alias_size_in_bytes)


def _load(key: str, index: int) -> stored.Stored | None:
    payload = cache.load(key)
    if payload is None:
        return None
    try:
        return stored.from_bytes(payload, index)
    except Exception as error:  # whatever a runtime says of a program that it won't load: compiling makes another
        cache.discard(key)
        warnings.warn(
            f"a program in TORCH_PJRT_CACHE_DIR could not be loaded ({type(error).__name__}: {error}); compiling it "
            "again",
            cache.CacheWarning,
            stacklevel=2,
        )
        return None


def _store(key: str, compiled: jax.stages.Compiled, notes: Any) -> None:
    try:
        payload = stored.to_bytes(compiled, notes)
    except Exception as error:  # a platform without serialization, or with a program that cannot be serialized
        _warn_of_storing(f"{type(error).__name__}: {error}")
        return
    cache.store(key, payload)


@functools.cache
def _warn_of_storing(reason: str) -> None:
    warnings.warn(
        f"a compiled program cannot be kept in TORCH_PJRT_CACHE_DIR: {reason}", cache.CacheWarning, stacklevel=2
    )


def _lower(jitted: Any, arguments: Sequence[jax.ShapeDtypeStruct], on: Target) -> jax.stages.Lowered:
    """Lower for arguments that lie so. JAX traces the function the first time only."""
    with jax.enable_x64(True), warnings.catch_warnings(), compiling_for(on):
        warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
        lowered: jax.stages.Lowered = jitted.lower(*arguments)
        return lowered


def _compiled(lowered: jax.stages.Lowered, options: dict[str, Any], started: float) -> jax.stages.Compiled:
    """Compile, heard by Ctrl-C, and on the record with the time since `started`."""
    compiled = _interruptible(functools.partial(_compile, lowered, options))
    took = time.perf_counter() - started
    METRICS.executables_compiled += 1
    METRICS.compile_seconds += took
    if took > _LONG_COMPILE:
        _return_compiler_memory()
    return compiled


def _compile(lowered: jax.stages.Lowered, options: dict[str, Any]) -> jax.stages.Compiled:
    with jax.enable_x64(True):  # which is a thread's own
        return lowered.compile(compiler_options=options)


def _interruptible(work: Callable[[], _Result]) -> _Result:
    """What `work()` returns, waited for so that Ctrl-C is heard: XLA compiles for minutes without looking for signals.

    Interrupted, the work goes on in a thread of its own, which the end of the process waits for, and its result is
    dropped.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()  # signals are the main thread's
    done: Future[_Result] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # it is raised where the result is asked for
            done.set_exception(error)

    threading.Thread(target=run, name="torch_pjrt compile").start()
    return done.result()


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
