"""Embedding tables: lookup, its gradient, renormalization, and bags (lookup and reduction in one)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import PartitionSpec

from .check import require
from .dtypes import opmath, to_numpy, to_torch
from .index import add_at, position, read, write
from .registry import lower
from .target import target

_SUM, _MEAN, _MAX = 0, 1, 2


@lower("embedding")
def embedding(
    weight: Array, indices: Array, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Array:
    return read(weight, (position(indices, weight.shape[0], wrap=False),))


@lower("embedding_dense_backward")
def embedding_dense_backward(
    grad_output: Array, indices: Array, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> Array:
    """The sum of the gradients of each row's occurrences, in float32 for the half types."""

    def table(grad_output: Array, indices: Array) -> Array:
        rows = position(indices.reshape(-1), num_weights, wrap=False)
        grad = grad_output.reshape(rows.shape + grad_output.shape[indices.ndim :])
        return _summed_rows(grad, rows, num_weights, padding_idx, scale_grad_by_freq)

    on = target()
    if on is None or on.mesh is None or not on.batch or scale_grad_by_freq:
        return table(grad_output, indices)
    if not indices.ndim or indices.shape[0] % on.size(on.batch):
        return table(grad_output, indices)
    # Each device has a table of its own examples. XLA's partitioner, where the table is split by rows, would gather all
    # gradients on all devices: of 64 x 4,096 tokens 4 GiB on each.
    axes = on.batch
    whole: Array = jax.shard_map(
        lambda *own: lax.psum(table(*own), axes), mesh=on.mesh, in_specs=PartitionSpec(axes),
        out_specs=PartitionSpec(), check_vma=False,
    )(grad_output, indices)  # fmt: skip
    return whole


@lower("embedding_renorm")
def embedding_renorm(self: Array, indices: Array, max_norm: float, norm_type: float) -> Array:
    """Scale each row that is looked up down to `max_norm`; a row that occurs twice is written twice the same."""
    rows = position(indices.reshape(-1), self.shape[0], wrap=False)
    values = read(self, (rows,)).astype(to_numpy(opmath(to_torch(self.dtype))))
    norm = jnp.linalg.norm(values, ord=norm_type, axis=1, keepdims=True)
    return write(self, (rows,), jnp.where(norm > max_norm, values * (max_norm / (norm + 1e-7)), values))


@lower("_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(
    weight: Array,
    indices: Array,
    offsets: Array,
    scale_grad_by_freq: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    per_sample_weights: Array | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Array, Array, Array, Array]:
    """(output [bags, width], bag of each index, indices per bag, row that won each maximum).

    The last three are for the backward only; their shapes are those of PyTorch's kernels off the CPU.
    """
    bags, n = offsets.shape[0] - include_last_offset, indices.shape[0]
    if offsets.size:
        require(offsets[0] == 0, "offsets[0] has to be 0, i.e., the first sequence has to start from position 0")
        require(offsets[-1] <= n, f"offsets[-1] can not be greater than input's length {n}")
        require(jnp.diff(offsets) >= 0, "offsets must not decrease")
    starts = offsets[:bags].astype(jnp.int32)
    samples = lax.iota(jnp.int32, n)
    bag = jnp.searchsorted(starts, samples, side="right").astype(jnp.int32) - 1
    rows = position(indices, weight.shape[0], wrap=False)
    counted = rows != padding_idx
    values = read(weight, (rows,)).astype(to_numpy(opmath(to_torch(weight.dtype))))
    size = jnp.zeros((bags,), jnp.int32).at[bag].add(counted.astype(jnp.int32))
    winners = jnp.zeros((0,), jnp.int32)
    if mode == _MAX:
        output, winners = _largest(values, rows, bag, counted, size)
    else:
        if per_sample_weights is not None:
            values = values * per_sample_weights[:, None].astype(values.dtype)
        values = jnp.where(counted[:, None], values, 0)
        output = jnp.zeros((bags, weight.shape[1]), values.dtype).at[bag].add(values)
        if mode == _MEAN:
            output = output / jnp.maximum(size, 1)[:, None].astype(values.dtype)
    return output, bag, jnp.pad(size, (0, offsets.shape[0] - bags)), winners


@lower("_embedding_bag_dense_backward")
def embedding_bag_dense_backward(
    grad: Array,
    indices: Array,
    offset2bag: Array,
    bag_size: Array,
    maximum_indices: Array,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: Array | None,
    padding_idx: int = -1,
) -> Array:
    wide = grad.astype(to_numpy(opmath(to_torch(grad.dtype))))
    if mode == _MAX:
        # A bag of padding alone (or of nothing) has no winner.
        wide = jnp.where(bag_size[: grad.shape[0], None] > 0, wide, 0)
        columns = lax.broadcasted_iota(jnp.int32, grad.shape, 1)
        return add_at(jnp.zeros((num_weights, grad.shape[1]), wide.dtype), (maximum_indices, columns), wide)
    rows = position(indices, num_weights, wrap=False)
    each = read(wide, (offset2bag,))
    if mode == _MEAN:
        each = each / jnp.maximum(read(bag_size, (offset2bag,)), 1)[:, None].astype(wide.dtype)
    if per_sample_weights is not None:
        each = each * per_sample_weights[:, None].astype(wide.dtype)
    return _summed_rows(each, rows, num_weights, padding_idx, scale_grad_by_freq)


@lower("_embedding_bag_backward")
def embedding_bag_backward(
    grad: Array,
    indices: Array,
    offsets: Array,
    offset2bag: Array,
    bag_size: Array,
    maximum_indices: Array,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Array | None,
    padding_idx: int = -1,
) -> Array:
    if sparse:
        raise NotImplementedError("embedding_bag(sparse=True): a sparse gradient has no form in a compiled program")
    return embedding_bag_dense_backward(
        grad, indices, offset2bag, bag_size, maximum_indices, num_weights, scale_grad_by_freq, mode, per_sample_weights,
        padding_idx,
    )  # fmt: skip


@lower("_embedding_bag_per_sample_weights_backward")
def embedding_bag_per_sample_weights_backward(
    grad: Array,
    weight: Array,
    indices: Array,
    offsets: Array,
    offset2bag: Array,
    mode: int,
    padding_idx: int = -1,
) -> Array:
    dtype = to_numpy(opmath(to_torch(grad.dtype)))
    rows = position(indices, weight.shape[0], wrap=False)
    products = read(grad, (offset2bag,)).astype(dtype) * read(weight, (rows,)).astype(dtype)
    return jnp.where(rows != padding_idx, jnp.sum(products, axis=1), 0)


def _summed_rows(grad: Array, rows: Array, num_weights: int, padding_idx: int, by_frequency: bool) -> Array:
    wide = grad.astype(to_numpy(opmath(to_torch(grad.dtype))))
    shape = (-1,) + (1,) * (grad.ndim - 1)
    if padding_idx >= 0:
        wide = jnp.where((rows != padding_idx).reshape(shape), wide, 0)
    if by_frequency:
        count = add_at(jnp.zeros((num_weights,), jnp.int32), (rows,), jnp.ones(rows.shape, jnp.int32))
        wide = wide / read(count, (rows,)).reshape(shape).astype(wide.dtype)
    return add_at(jnp.zeros((num_weights, *grad.shape[1:]), wide.dtype), (rows,), wide)


def _largest(values: Array, rows: Array, bag: Array, counted: Array, size: Array) -> tuple[Array, Array]:
    """(maximum of each bag and column, the first row of the table that reaches it); 0 for a bag without samples."""
    shape = (size.shape[0], values.shape[1])
    hidden = jnp.where(counted[:, None], values, -jnp.inf)
    top = jnp.full(shape, -jnp.inf, values.dtype).at[bag].max(hidden)
    n = rows.shape[0]
    wins = counted[:, None] & (values == read(top, (bag,)))
    sample = jnp.where(wins, lax.broadcasted_iota(jnp.int32, values.shape, 0), n)
    first = jnp.full(shape, n, jnp.int32).at[bag].min(sample)
    filled = size[:, None] > 0
    if n == 0:
        return jnp.zeros(shape, values.dtype), jnp.zeros(shape, rows.dtype)
    winners = jnp.where(filled, read(rows, (jnp.minimum(first, n - 1),)), 0)
    return jnp.where(filled, top, 0), winners
