"""Random bits: an element of a padded array is drawn as the same element of the real one is."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .aligned import NotPaddable
from .arrays import Padded
from .rules import Call, rule


@rule("rng_bit_generator", may_differ=["shape", "out_sharding"])
def rng_bit_generator(call: Call) -> list[Padded]:
    """Philox gives the i-th element of the flattened array whatever the array's size: each row is found where it is.

    The generator's new state would be that of the padded size: a program that uses it has no rule.
    """
    if call.params["algorithm"] != lax.RandomAlgorithm.RNG_PHILOX or call.step.results[0] is not None:
        raise NotPaddable("only Philox bits that are drawn once can be found again")
    (key,) = call.operands
    shape, extents = call.step.shapes[1], call.fresh(1)
    new_key, flat = call.step.primitive.bind(key.array, **{**call.params, "shape": (math.prod(shape),)})
    # Rows begin at the last dimension that has others with more than one element before it.
    padded = [a for a, e in enumerate(extents) if e is not None]
    last = padded[-1]
    one_row = math.prod(shape[:last]) == 1
    bits = flat.reshape(shape) if one_row else _rows(call, flat, shape, last)
    return [Padded(new_key, (None,)), Padded(bits, extents)]


def _rows(call: Call, flat: Array, shape: tuple[int, ...], last: int) -> Array:
    """Rows of dimension `last` and what lies within it, each from where it begins in an array of the real size."""
    extents = call.fresh(1)
    real = [n if e is None else call.numbers.size(e) for n, e in zip(shape, extents, strict=True)]
    step = jnp.asarray(1, np.int64)
    for n in real[last:]:
        step = step * n
    start = jnp.zeros(shape[:last], np.int64)
    for axis in reversed(range(last)):
        start = start + lax.broadcasted_iota(np.int64, shape[:last], axis) * step
        step = step * real[axis]
    length = math.prod(shape[last:])
    spare = jnp.concatenate([flat, jnp.zeros(length, flat.dtype)])  # rows of padding may begin near the end
    rows = lax.gather(
        spare,
        start.reshape(-1, 1),
        lax.GatherDimensionNumbers(offset_dims=(1,), collapsed_slice_dims=(), start_index_map=(0,)),
        (length,),
        mode=lax.GatherScatterMode.CLIP,
    )
    return rows.reshape(shape)
