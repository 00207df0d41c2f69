"""The indices of compressed sparse matrices: where each row begins, and which row each entry is on."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array

from .registry import lower


@lower("_convert_indices_from_coo_to_csr")
def coo_to_csr(self: Array, size: int, *, out_int32: bool = False) -> Array:
    """Where each of `size` rows begins among the ascending rows [nnz], and the end: [size + 1]."""
    return jnp.searchsorted(self, jnp.arange(size + 1, dtype=self.dtype)).astype(np.int32 if out_int32 else np.int64)


@lower("_convert_indices_from_csr_to_coo")
def csr_to_coo(crow_indices: Array, col_indices: Array, *, out_int32: bool = False, transpose: bool = False) -> Array:
    """(batch indices, rows, columns) of every entry, [batch dims + 2, batches * nnz]; `transpose` swaps the last."""
    batch, nnz = crow_indices.shape[:-1], col_indices.shape[-1]
    begins = crow_indices.reshape(-1, crow_indices.shape[-1])
    places = jnp.arange(nnz, dtype=begins.dtype)
    rows = jnp.stack([jnp.searchsorted(b, places, side="right") - 1 for b in begins]) if len(begins) else begins[:, :0]
    where = [jnp.repeat(i.reshape(-1), nnz) for i in jnp.indices(batch)] if batch else []
    last = [col_indices.reshape(-1), rows.reshape(-1)] if transpose else [rows.reshape(-1), col_indices.reshape(-1)]
    return jnp.stack([i.astype(np.int32 if out_int32 else np.int64) for i in [*where, *last]])
