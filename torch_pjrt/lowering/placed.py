"""How a tensor lies over a mesh of the process's devices (`torch_pjrt::placed`)."""

from __future__ import annotations

from collections.abc import Sequence

import jax
from jax import Array

from ..runtime.meshes import mesh_of
from .registry import lower


@lower("torch_pjrt::placed")
def placed(self: Array, mesh: int, axes: Sequence[str]) -> Array:
    found = mesh_of(mesh)
    if found is None:
        raise ValueError(f"device {mesh} is no mesh of devices")
    return jax.lax.with_sharding_constraint(self, found.sharding(axes, self.shape))
