"""segment_reduce: reductions over consecutive runs of one dimension, and its gradient."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .check import require
from .registry import lower
from .widen import widen

_ALIASES = {"amax": "max", "amin": "min"}
_START = {"max": -math.inf, "min": math.inf, "sum": 0.0, "mean": 0.0, "prod": 1.0}


@lower("segment_reduce")
def segment_reduce(
    data: Array,
    reduce: str,
    *,
    lengths: Array | None = None,
    indices: Array | None = None,
    offsets: Array | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: Array | float | None = None,
) -> Array:
    """data (*batch, n, *rest) with lengths (*batch, s), or offsets (*batch, s + 1), to (*batch, s, *rest)."""
    reduce, axis = _ALIASES.get(reduce, reduce), axis % data.ndim
    if lengths is not None and not unsafe:
        require(lengths >= 0, "lengths contains negative value!")
        require(
            lengths.sum(axis) == data.shape[axis],
            f"segment_reduce(): Expected all rows of lengths along axis to sum to {data.shape[axis]} when !unsafe.",
        )
    rows, segment, sizes = _located(data, lengths, offsets, axis)
    start = _START[reduce] if initial is None else initial
    out = jnp.full((rows.shape[0], sizes.shape[1] + 1, rows.shape[2]), start, rows.dtype)
    at = (lax.broadcasted_iota(np.int32, segment.shape, 0), segment)
    name = {"sum": "add", "mean": "add", "prod": "multiply"}.get(reduce, reduce)
    out = getattr(out.at[at], name)(rows)[:, :-1]
    if reduce == "mean":
        count = sizes[..., None].astype(out.dtype)
        empty = jnp.nan if initial is None else out
        out = jnp.where(count == 0, empty, out / jnp.maximum(count, 1))
    return out.reshape(*data.shape[:axis], sizes.shape[1], *data.shape[axis + 1 :])


@lower("_segment_reduce_backward")
def segment_reduce_backward(
    grad: Array,
    output: Array,
    data: Array,
    reduce: str,
    *,
    lengths: Array | None = None,
    offsets: Array | None = None,
    axis: int = 0,
    initial: Array | float | None = None,
) -> Array:
    """Extremes that tie share a positive gradient and each get a negative one, as on the CPU.

    A product's is the product of all the others, zeros among them or not.
    """
    reduce, axis = _ALIASES.get(reduce, reduce), axis % data.ndim
    rows, segment, sizes = _located(data, lengths, offsets, axis)
    at = (lax.broadcasted_iota(np.int32, segment.shape, 0), segment)

    def spread(x: Array) -> Array:
        x = widen(x).reshape(rows.shape[0], sizes.shape[1], rows.shape[2])
        return jnp.pad(x, ((0, 0), (0, 1), (0, 0)))[at]

    def total(x: Array) -> Array:
        return jnp.zeros((rows.shape[0], sizes.shape[1] + 1, rows.shape[2]), rows.dtype).at[at].add(x)[at]

    each = spread(grad)
    if reduce == "mean":
        each = each / jnp.maximum(jnp.pad(sizes, ((0, 0), (0, 1)))[at], 1)[..., None].astype(each.dtype)
    elif reduce in ("max", "min"):
        won = jnp.where((rows == spread(output)) | jnp.isnan(rows), 1, 0).astype(rows.dtype)
        each = each * won
        each = jnp.where(each > 0, each / jnp.maximum(total(won), 1), each)
    elif reduce == "prod":
        zero = rows == 0
        start = jnp.full((rows.shape[0], sizes.shape[1] + 1, rows.shape[2]), 1 if initial is None else initial)
        others = start.astype(rows.dtype).at[at].multiply(jnp.where(zero, 1, rows))[at]
        zeros = total(zero.astype(rows.dtype))
        each = each * jnp.where(zero, jnp.where(zeros == 1, others, 0), jnp.where(zeros == 0, others / rows, 0))
    inside = segment < sizes.shape[1]
    return jnp.where(inside[..., None], each, 0).reshape(data.shape)


def _located(data: Array, lengths: Array | None, offsets: Array | None, axis: int) -> tuple[Array, Array, Array]:
    """(data as (batch, n, rest), the segment of each of the n, or their number for none, the segments' sizes)."""
    batch, n = math.prod(data.shape[:axis]), data.shape[axis]
    rows = widen(data).reshape(batch, n, math.prod(data.shape[axis + 1 :]))
    if offsets is None:
        assert lengths is not None
        sizes = lengths.reshape(batch, -1)
        offsets = jnp.pad(jnp.cumsum(sizes, 1), ((0, 0), (1, 0)))
    else:
        offsets = offsets.reshape(batch, -1)
        sizes = jnp.diff(offsets, axis=1)
    place = lax.iota(offsets.dtype, n)
    segment = jnp.sum(offsets[:, None, :] <= place[:, None], axis=2) - 1 if n else jnp.zeros((batch, 0), np.int64)
    return rows, jnp.where(segment < 0, sizes.shape[1], segment).astype(np.int32), sizes
