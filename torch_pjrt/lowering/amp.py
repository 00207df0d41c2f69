"""What torch.amp.GradScaler runs: unscale the gradients and look for infinities, then move the scale."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array

from .dtypes import opmath, to_numpy, to_torch
from .registry import lower


@lower("_amp_foreach_non_finite_check_and_unscale_", "_amp_foreach_non_finite_check_and_unscale")
def non_finite_check_and_unscale(
    self: Sequence[Array], found_inf: Array, inv_scale: Array
) -> tuple[list[Array], Array]:
    """(the gradients times `inv_scale`, 1 if any gradient was not finite, else `found_inf` as it was)."""
    bad = jnp.zeros((), jnp.bool_)
    for grad in self:
        bad |= ~jnp.all(jnp.isfinite(grad))
    unscaled = []
    for grad in self:
        dtype = to_numpy(opmath(to_torch(grad.dtype)))
        unscaled.append((grad.astype(dtype) * inv_scale.reshape(()).astype(dtype)).astype(grad.dtype))
    return unscaled, jnp.where(bad, jnp.ones((), found_inf.dtype), found_inf)


@lower("_amp_update_scale_", "_amp_update_scale")
def update_scale(
    self: Array,
    growth_tracker: Array,
    found_inf: Array,
    scale_growth_factor: float,
    scale_backoff_factor: float,
    growth_interval: int,
) -> tuple[Array, Array]:
    """(new scale, new growth tracker): back off after an infinity, grow after `growth_interval` steps without one."""
    overflow = found_inf.reshape(self.shape) > 0
    steps = growth_tracker + 1
    due = steps.reshape(self.shape) == growth_interval
    grown = self * scale_growth_factor
    grown = jnp.where(jnp.isfinite(grown), grown, self)
    scale = jnp.where(overflow, self * scale_backoff_factor, jnp.where(due, grown, self))
    restart = (overflow | due).reshape(growth_tracker.shape)
    return scale, jnp.where(restart, 0, steps).astype(growth_tracker.dtype)
