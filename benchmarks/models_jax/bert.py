"""BERT-base with its masked-language head in JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from ..models import bert_shape
from . import Model, Params, State, Weights, stateless
from .gpt import layer_norm
from .mlp import linear


def init(weights: Weights) -> tuple[Params, State]:
    return {name: jnp.asarray(value) for name, value in weights.items()}, {}


def apply(params: Params, ids: Array) -> Array:
    x = params["tokens.weight"][ids] + params["positions.weight"][: ids.shape[1]] + params["segments.weight"][0]
    x = layer_norm(params, "ln", x, bert_shape.EPS)
    for i in range(bert_shape.LAYERS):
        x = layer(params, f"layers.{i}", x)
    hidden = jax.nn.gelu(linear(params, "transform", x), approximate=False)
    return layer_norm(params, "head_ln", hidden, bert_shape.EPS) @ params["tokens.weight"].T + params["head_bias"]


def layer(params: Params, name: str, x: Array) -> Array:
    n, t, width = x.shape
    heads = bert_shape.HEADS
    q, k, v = (
        linear(params, f"{name}.{part}", x).reshape(n, t, heads, width // heads) for part in ("query", "key", "value")
    )
    y = jax.nn.dot_product_attention(q, k, v).reshape(n, t, width)
    x = layer_norm(params, f"{name}.ln1", x + linear(params, f"{name}.proj", y), bert_shape.EPS)
    hidden = jax.nn.gelu(linear(params, f"{name}.up", x), approximate=False)
    return layer_norm(params, f"{name}.ln2", x + linear(params, f"{name}.down", hidden), bert_shape.EPS)


MODEL = Model(init, *stateless(apply))
