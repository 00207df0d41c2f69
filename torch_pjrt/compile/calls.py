"""From what the C++ core passes to what a program takes, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from ..eager.infer import dtype_of
from ..lowering.dtypes import to_numpy
from ..runtime.executable import Executable
from .function import Argument
from .padded import PaddedProgram
from .padding.arrays import Extents
from .resize import Resize, cut_from, pad_to, read_view
from .sizes import Sizes

# The arrays of the arguments, then starts if there are any, then keys if there are any.
Caller = Callable[..., list[jax.Array]]


@dataclass(frozen=True, slots=True)
class Incoming:
    """What happens to an argument's array on its way into the program.

    Attributes:
        starts: how many numbers say where the view starts that it is called with.
        convert: makes another array of it and of its starts, which then go no further; None: both are passed on.
    """

    starts: int
    convert: Callable[[jax.Array, np.ndarray], jax.Array] | None = None


def exact_caller(executable: Executable, constants: Sequence[jax.Array], incoming: Sequence[Incoming]) -> Caller:
    """A call of a program of the arguments' own sizes."""
    starts, keys = executable.takes[1:]
    if not constants and not starts and not any(i.convert for i in incoming):
        return executable.compiled

    def run(arrays: list[jax.Array], where: np.ndarray, key: Any) -> list[jax.Array]:
        results: list[jax.Array] = executable.compiled(*arrays, *constants, *([where] if starts else ()), *key)
        return results

    return _caller(run, incoming, keys)


def padded_caller(
    program: PaddedProgram,
    constants: Sequence[jax.Array],
    incoming: Sequence[Incoming],
    sizes: Sizes,
    kept: Sequence[bool],
    index: int,
) -> Caller:
    """A call of a bucket's program.

    Args:
        sizes: the real sizes.
        kept: which of the results are to stay padded.
        index: of the device.
    """
    whole, real = program.numbers(sizes)
    executable = program.executable
    outgoing = [
        None if keep or not any(extents) else cut_from(shape, extents, sizes, dtype, index)
        for keep, (shape, dtype, extents) in zip(kept, program.results, strict=True)
    ]
    floats = (real,) if executable.takes[0] else ()

    def run(arrays: list[jax.Array], where: np.ndarray, key: Any) -> list[jax.Array]:
        ints = np.concatenate([where, whole])
        results = list(executable.compiled(*arrays, *constants, *floats, ints, *key))
        for i, cut in enumerate(outgoing):
            if cut is not None:
                results[i] = cut(results[i])
        return results

    return _caller(run, incoming, executable.takes[2])


def into_bucket(
    arguments: Sequence[Argument], program: PaddedProgram, arrived: Mapping[int, Extents], sizes: Sizes, index: int
) -> list[Incoming]:
    """How the arguments of a call get the sizes of a bucket."""
    found = []
    for a, there, extents in zip(arguments, program.arguments, program.extents, strict=True):
        if a.index in arrived or not any(extents):
            found.append(Incoming(a.starts))
            continue
        found.append(_converted(a, pad_to(there.base[1], extents, sizes, _dtype(a), index), index))
    return found


def out_of_bucket(
    arguments: Sequence[Argument], arrived: Mapping[int, Extents], sizes: Sizes, index: int
) -> list[Incoming]:
    """How the arguments of a call that came padded get their own sizes."""
    return [
        _converted(a, cut_from(a.own[1], arrived[a.index], sizes, _dtype(a), index), index)
        if a.index in arrived
        else Incoming(a.starts)
        for a in arguments
    ]


def _converted(a: Argument, change: Resize, index: int) -> Incoming:
    if a.structure is None:
        return Incoming(a.starts, lambda array, where: change(array))
    read = read_view(a.base[1], a.structure, a.starts, _dtype(a), index)
    return Incoming(a.starts, lambda array, where: change(read(array, where)))


def _dtype(a: Argument) -> np.dtype:
    return to_numpy(dtype_of(a.own[0]))


def _caller(
    run: Callable[[list[jax.Array], np.ndarray, Any], list[jax.Array]], incoming: Sequence[Incoming], keys: bool
) -> Caller:
    count, total = len(incoming), sum(i.starts for i in incoming)
    nothing = np.empty(0, np.int64)

    def call(*given: Any) -> list[jax.Array]:
        starts = given[count] if total else nothing
        arrays: list[jax.Array] = []
        passed: list[np.ndarray] = []
        place = 0
        # 64-bit numbers come from numpy, which JAX would cut to 32 bits.
        with jax.enable_x64(True):
            for i, array in zip(incoming, given, strict=False):
                mine = starts[place : place + i.starts]
                place += i.starts
                if i.convert is None:
                    arrays.append(array)
                    passed.append(mine)
                else:
                    arrays.append(i.convert(array, mine))
            return run(arrays, np.concatenate([nothing, *passed]), given[-1:] if keys else ())

    return call
