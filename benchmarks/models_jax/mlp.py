"""784-2048-2048-10 perceptron in JAX; weights stay as PyTorch stores them, [out, in]."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from . import Model, Params, State, Weights, stateless


def init(weights: Weights) -> tuple[Params, State]:
    return {name: jnp.asarray(value) for name, value in weights.items()}, {}


def apply(params: Params, x: Array) -> Array:
    x = jax.nn.relu(linear(params, "fc1", x))
    x = jax.nn.relu(linear(params, "fc2", x))
    return linear(params, "fc3", x)


def linear(params: Params, name: str, x: Array) -> Array:
    """x @ W.T + b over the last dimension."""
    return x @ params[f"{name}.weight"].T + params[f"{name}.bias"]


MODEL = Model(init, *stateless(apply))
