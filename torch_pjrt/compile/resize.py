"""Arrays from their real sizes to a bucket's and back.

XLA compiles a program for each pair of sizes. On the CPU, where the host reaches the device's memory, numpy copies
instead; elsewhere the copy is a small program for each size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..lowering import view
from ..runtime.executable import compile_function
from ..runtime.meshes import devices_of, placement
from .padding.arrays import Extent, Extents
from .sizes import Sizes

Resize = Callable[[jax.Array], jax.Array]


def pad_to(shape: Sequence[int], extents: Extents, sizes: Sizes, dtype: Any, index: int) -> Resize:
    """A function that brings an array of real sizes to the padded `shape`, its padding zero.

    Args:
        extents: where the padding goes.
        sizes: the real sizes.
        index: of the device.
    """
    real, padded = _split(shape, extents, sizes)
    inside = tuple(slice(0, n) for n in real)

    def on_host(array: jax.Array) -> jax.Array:
        made = np.zeros(padded, dtype)
        made[inside] = np.asarray(array).reshape(real)
        with jax.enable_x64(True):
            placed: jax.Array = jax.device_put(made.reshape(shape), placement(index))
        return placed

    def on_device(array: jax.Array) -> jax.Array:
        return jnp.zeros(padded, dtype).at[inside].set(array.reshape(real)).reshape(shape)

    return _either(on_host, on_device, _joined(shape, extents, real), dtype, index)


def cut_from(shape: Sequence[int], extents: Extents, sizes: Sizes, dtype: Any, index: int) -> Resize:
    """The reverse: a function that takes what is real out of an array of the padded `shape`."""
    real, padded = _split(shape, extents, sizes)
    inside = tuple(slice(0, n) for n in real)
    whole = _joined(shape, extents, real)

    def on_host(array: jax.Array) -> jax.Array:
        made = np.ascontiguousarray(np.asarray(array).reshape(padded)[inside]).reshape(whole)
        with jax.enable_x64(True):
            placed: jax.Array = jax.device_put(made, placement(index))
        return placed

    def on_device(array: jax.Array) -> jax.Array:
        return array.reshape(padded)[inside].reshape(whole)

    return _either(on_host, on_device, tuple(shape), dtype, index)


def read_view(base: Sequence[int], structure: Any, starts: int, dtype: Any, index: int) -> Callable[..., jax.Array]:
    """A function of an array and of run-time starts that reads a view of the array."""
    parameter = jax.ShapeDtypeStruct((starts,), np.int64) if starts else None

    def run(inputs: list[jax.Array], floats: None, where: Any, keys: None) -> list[jax.Array]:
        return [view.read(inputs[0], structure, [where[k].astype(np.int32) for k in range(starts)])]

    executable, _ = compile_function(
        run, [jax.ShapeDtypeStruct(tuple(base), dtype)], [None, parameter, None], (), index
    )
    return lambda array, where: executable([array], np.empty(0), where, np.empty(0))[0]


def _either(on_host: Resize, on_device: Resize, shape: tuple[int, ...], dtype: Any, index: int) -> Resize:
    if devices_of(index)[0].platform == "cpu":
        return on_host
    executable, _ = compile_function(
        lambda inputs, *_: [on_device(inputs[0])], [jax.ShapeDtypeStruct(shape, dtype)], [None, None, None], (), index
    )
    return lambda array: executable([array])[0]


def _split(shape: Sequence[int], extents: Extents, sizes: Sizes) -> tuple[list[int], list[int]]:
    """The real and the padded sizes, merged dimensions taken apart."""
    real: list[int] = []
    padded: list[int] = []
    for n, e in zip(shape, extents, strict=True):
        if e is None:
            real.append(n)
            padded.append(n)
            continue
        for atom in _atoms(e):
            real.append(int(sizes.of_expression(atom[0])))
            padded.append(atom[1])
    return real, padded


def _joined(shape: Sequence[int], extents: Extents, real: Sequence[int]) -> tuple[int, ...]:
    """The real sizes of the array's dimensions, from those of `_split`."""
    supply = iter(real)
    found = []
    for e in extents:
        size = 1
        for _ in range(1 if e is None else len(_atoms(e))):
            size *= next(supply)
        found.append(size)
    return tuple(found)


def _atoms(e: Extent) -> list[tuple[Any, int]]:
    return [(a.real, a.padded) for a in e.atoms] if e.atoms is not None else [(e.real, e.padded)]
