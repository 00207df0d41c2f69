"""The 10.7 M-parameter GPT in JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from ..models import gpt_shape
from . import Model, Params, State, Weights, stateless
from .mlp import linear


def init(weights: Weights) -> tuple[Params, State]:
    return {name: jnp.asarray(value) for name, value in weights.items()}, {}


def apply(params: Params, ids: Array) -> Array:
    x = params["tokens.weight"][ids] + params["positions.weight"][: ids.shape[1]]
    for i in range(gpt_shape.LAYERS):
        x = layer(params, f"layers.{i}", x)
    return layer_norm(params, "ln", x) @ params["head.weight"].T


def layer(params: Params, name: str, x: Array) -> Array:
    n, t, width = x.shape
    heads = gpt_shape.HEADS
    qkv = linear(params, f"{name}.qkv", layer_norm(params, f"{name}.ln1", x))
    q, k, v = jnp.moveaxis(qkv.reshape(n, t, 3, heads, width // heads), 2, 0)
    y = jax.nn.dot_product_attention(q, k, v, is_causal=True)
    x = x + linear(params, f"{name}.proj", y.reshape(n, t, width))
    hidden = jax.nn.gelu(linear(params, f"{name}.up", layer_norm(params, f"{name}.ln2", x)), approximate=False)
    return x + linear(params, f"{name}.down", hidden)


def layer_norm(params: Params, name: str, x: Array, eps: float = 1e-5) -> Array:
    """PyTorch's: over the last dimension, biased variance."""
    mean = x.mean(-1, keepdims=True)
    variance = x.var(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + eps) * params[f"{name}.weight"] + params[f"{name}.bias"]


MODEL = Model(init, *stateless(apply))
