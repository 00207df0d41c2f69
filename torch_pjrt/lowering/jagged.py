"""Packed sequences, one after the other along dimension 0, and padded ones: what jagged tensors are converted by."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array

from .check import require
from .registry import lower


@lower("_jagged_to_padded_dense_forward")
def jagged_to_padded_dense(
    values: Array, offsets: Sequence[Array], max_lengths: Sequence[int], padding_value: float = 0.0
) -> Array:
    """values (tokens, ...) and offsets [(sequences + 1,)] to (sequences, longest, ...)."""
    (cumulative,), (longest,) = offsets, max_lengths
    return padded(values, cumulative, longest, padding_value)


@lower("_padded_dense_to_jagged_forward")
def padded_dense_to_jagged(dense: Array, offsets: Sequence[Array], total_L: int | None = None) -> Array:
    """dense (sequences, longest, ...) and offsets [(sequences + 1,)] to (total_L, ...).

    Without `total_L`, which the offsets tell: `eager/host_ops/nested.py`.
    """
    (cumulative,) = offsets
    if total_L is None:
        raise NotImplementedError("aten::_padded_dense_to_jagged_forward without total_L")
    what = "_padded_dense_to_jagged_forward():"
    require(cumulative[-1] == total_L, f"{what} final offset should match total_L value {total_L}")
    longer = "found batch item longer than max length specified by padded input, which is"
    require(jnp.diff(cumulative) <= dense.shape[1], f"{what} {longer} {dense.shape[1]}")
    return packed(dense, cumulative, total_L)


def padded(x: Array, cumulative: Array, longest: int, fill: float = 0) -> Array:
    """(tokens, ...) as (sequences, longest, ...), of the sequences that begin and end where `cumulative` says."""
    rows = cumulative[:-1, None] + jnp.arange(longest, dtype=cumulative.dtype)
    there = rows < cumulative[1:, None]
    return x.at[jnp.where(there, rows, x.shape[0])].get(mode="fill", fill_value=_as(fill, x.dtype))


def _as(fill: float, dtype: np.dtype) -> float | int | bool:
    """The number in a dtype; infinities are the ends of integers and bools, which a maximum begins with."""
    if jnp.issubdtype(dtype, jnp.inexact):
        return fill
    if math.isinf(fill):
        ends = (False, True) if dtype == np.bool_ else (jnp.iinfo(dtype).min, jnp.iinfo(dtype).max)
        return ends[fill > 0]
    return bool(fill) if dtype == np.bool_ or math.isnan(fill) else int(fill)


def packed(x: Array, cumulative: Array, tokens: int) -> Array:
    """The reverse of `padded`; tokens of no sequence, or beyond the longest, are zeros."""
    sequences, longest = x.shape[:2]
    if not sequences or not longest:
        return jnp.zeros((tokens, *x.shape[2:]), x.dtype)
    first, end = cumulative[:-1], cumulative[1:]
    token = jnp.arange(tokens, dtype=cumulative.dtype)
    sequence = jnp.clip(jnp.searchsorted(end, token, side="right"), 0, sequences - 1)
    within = token - first[sequence]
    there = (within >= 0) & (token < end[sequence]) & (within < longest)
    rows = x[sequence, jnp.clip(within, 0, longest - 1)]
    return jnp.where(there.reshape(-1, *[1] * (x.ndim - 2)), rows, jnp.zeros((), x.dtype))
