"""How a tensor lies over several devices of the process (`torch_pjrt::placed`)."""

from __future__ import annotations

from collections.abc import Sequence

import jax
from jax import Array

from ..runtime.meshes import together_at
from .registry import lower


@lower("torch_pjrt::placed")
def placed(self: Array, index: int, grid: Sequence[int], axes: Sequence[str]) -> Array:
    found = together_at(index)
    if found is None:
        raise ValueError(f"device {index} is no mesh of devices")
    return jax.lax.with_sharding_constraint(self, found.sharding(grid, axes, self.shape))
