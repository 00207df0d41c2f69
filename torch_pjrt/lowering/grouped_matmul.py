"""Products of groups of rows, as a mixture of experts needs them, and the second form of the scaled 8-bit product."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import torch
from jax import Array, lax

from .matmul import precision, product
from .registry import lower
from .widen import widen


@lower("_grouped_mm")
def grouped_mm(
    self: Array,
    mat2: Array,
    offs: Array | None = None,
    bias: Array | None = None,
    out_dtype: torch.dtype | None = None,
) -> Array:
    """Group g ends at offs[g] of the dimension that is ragged.

    (M, K) x (G, K, N): rows are ragged. (G, M, K) x (K, N): columns are. (M, K) x (K, N) to (G, M, N): what is summed
    over is. (G, M, K) x (G, K, N): nothing is, a batched product.
    """
    if self.ndim == 3 and mat2.ndim == 3:
        return product(self, mat2, (2, 1), batch=1)
    assert offs is not None
    sizes = jnp.diff(offs.astype(jnp.int32), prepend=0)
    if self.ndim == 2 and mat2.ndim == 3:
        return _by_rows(self, mat2, sizes)
    if self.ndim == 3:
        return _by_rows(mat2.T, self.swapaxes(1, 2), sizes).T
    numbers = lax.RaggedDotDimensionNumbers(
        dot_dimension_numbers=(((1,), (0,)), ((), ())), lhs_ragged_dimensions=[1], rhs_group_dimensions=[]
    )
    return _ragged(self, mat2, sizes, numbers)


def _by_rows(rows: Array, matrices: Array, sizes: Array) -> Array:
    numbers = lax.RaggedDotDimensionNumbers(
        dot_dimension_numbers=(((1,), (1,)), ((), ())), lhs_ragged_dimensions=[0], rhs_group_dimensions=[0]
    )
    return _ragged(rows, matrices, sizes, numbers)


def _ragged(a: Array, b: Array, sizes: Array, numbers: lax.RaggedDotDimensionNumbers) -> Array:
    """Accumulated in float32; half operands stay half but on XLA:CPU, which has no such ragged product."""

    def dot(a: Array, b: Array) -> Array:
        wide = widen(a[:0]).dtype
        return lax.ragged_dot_general(a, b, sizes, numbers, precision=precision(), preferred_element_type=wide)

    return lax.platform_dependent(a, b, cpu=lambda a, b: dot(widen(a), widen(b)), default=dot)


_TENSORWISE, _ROWWISE = 0, 1


@lower("_scaled_mm_v2")
def scaled_mm_v2(
    self: Array,
    mat2: Array,
    scale_a: Sequence[Array],
    recipe_a: Sequence[int],
    swizzle_a: Sequence[int],
    scale_b: Sequence[Array],
    recipe_b: Sequence[int],
    swizzle_b: Sequence[int],
    bias: Array | None,
    out_dtype: torch.dtype | None,
    contraction_dim: Sequence[int] = (),
    use_fast_accum: bool = False,
) -> Array:
    """One scale per tensor, or per row of `self` and per column of `mat2`; blockwise recipes are not lowered."""
    if not set(recipe_a) | set(recipe_b) <= {_TENSORWISE, _ROWWISE}:
        raise NotImplementedError(
            f"_scaled_mm_v2: recipes {list(recipe_a)} and {list(recipe_b)}: only one scale per tensor (0) or per row "
            "(1) is supported"
        )
    a, b = scale_a[0], scale_b[0]
    out = product(self, mat2, (1, 0))
    out = out * (a.reshape(()) if a.size == 1 else a.reshape(-1, 1))
    out = out * (b.reshape(()) if b.size == 1 else b.reshape(1, -1))
    return out if bias is None else out + widen(bias)
