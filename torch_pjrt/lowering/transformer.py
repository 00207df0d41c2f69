"""The fast path of torch.nn.TransformerEncoderLayer and MultiheadAttention in inference: one op per layer."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax import Array

from .matmul import precision, product
from .norm import native_layer_norm
from .registry import lower
from .widen import widen

_LENGTH_BY_LENGTH, _PADDING = 0, 1


@lower("_masked_softmax")
def masked_softmax(self: Array, mask: Array, dim: int | None = None, mask_type: int | None = None) -> Array:
    """Softmax over what the mask leaves (True hides). A row of which nothing is left is NaN."""
    axis = (self.ndim - 1 if dim is None else dim) % self.ndim
    x = jnp.where(_spread(mask, self.shape, mask_type), -jnp.inf, widen(self))
    return jax.nn.softmax(x, axis)


@lower("_masked_softmax_backward")
def masked_softmax_backward(grad_output: Array, output: Array, mask: Array, dim: int | None = None) -> Array:
    axis = (output.ndim - 1 if dim is None else dim) % output.ndim
    hidden = _spread(mask, output.shape, None)
    y = jnp.where(hidden, 0, widen(output))
    weighted = widen(grad_output) * y
    return jnp.where(hidden, 0, weighted - y * weighted.sum(axis, keepdims=True))


@lower("_transform_bias_rescale_qkv")
def transform_bias_rescale_qkv(qkv: Array, qkv_bias: Array, num_heads: int) -> tuple[Array, Array, Array]:
    """qkv (B, T, 3 D) to query, key, value (B, heads, T, D / heads), the query scaled by 1 / sqrt(D / heads)."""
    batch, length, width = qkv.shape
    biased = widen(qkv) + widen(qkv_bias)
    parts = biased.reshape(batch, length, 3, num_heads, width // 3 // num_heads).transpose(2, 0, 3, 1, 4)
    query, key, value = (part.astype(qkv.dtype) for part in (parts[0] / math.sqrt(parts.shape[-1]), parts[1], parts[2]))
    return query, key, value


@lower("_native_multi_head_attention")
def native_multi_head_attention(
    query: Array,
    key: Array,
    value: Array,
    embed_dim: int,
    num_head: int,
    qkv_weight: Array,
    qkv_bias: Array,
    proj_weight: Array,
    proj_bias: Array,
    mask: Array | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Array, Array | None]:
    """(output (B, T, D), attention weights (B, T, S) averaged over heads or (B, heads, T, S), or None)."""
    projected = [
        _linear(x, weight, bias)
        for x, weight, bias in zip((query, key, value), jnp.split(qkv_weight, 3), jnp.split(qkv_bias, 3), strict=True)
    ]
    q, k, v = (x.reshape(*x.shape[:2], num_head, -1).swapaxes(1, 2) for x in projected)
    scores = jnp.matmul(q / math.sqrt(q.shape[-1]), k.swapaxes(-2, -1), precision=precision())
    scores = scores.astype(query.dtype)
    if mask is None:
        weights = jax.nn.softmax(widen(scores), -1).astype(query.dtype)
    else:
        weights = masked_softmax(scores, mask, -1, mask_type).astype(query.dtype)
    mixed = jnp.matmul(weights, v, precision=precision()).swapaxes(1, 2).reshape(query.shape)
    out = _linear(mixed, proj_weight, proj_bias)
    if not need_weights:
        return out, None
    return out, weights.mean(1) if average_attn_weights else weights


@lower("_transformer_encoder_layer_fwd")
def transformer_encoder_layer(
    src: Array,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Array,
    qkv_bias: Array,
    proj_weight: Array,
    proj_bias: Array,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Array,
    norm_bias_1: Array,
    norm_weight_2: Array,
    norm_bias_2: Array,
    ffn_weight_1: Array,
    ffn_bias_1: Array,
    ffn_weight_2: Array,
    ffn_bias_2: Array,
    mask: Array | None = None,
    mask_type: int | None = None,
) -> Array:
    """Attention, then a feed-forward network, each with a residual and a norm before (`norm_first`) or after it."""

    def attention(x: Array) -> Array:
        return native_multi_head_attention(
            x, x, x, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, False, True, mask_type
        )[0]

    def feed_forward(x: Array) -> Array:
        hidden = widen(_linear(x, ffn_weight_1, ffn_bias_1))
        hidden = jax.nn.gelu(hidden, approximate=False) if use_gelu else jax.nn.relu(hidden)
        return _linear(hidden.astype(x.dtype), ffn_weight_2, ffn_bias_2)

    def norm_1(x: Array) -> Array:
        return _layer_norm(x, norm_weight_1, norm_bias_1, eps)

    def norm_2(x: Array) -> Array:
        return _layer_norm(x, norm_weight_2, norm_bias_2, eps)

    if norm_first:
        x = src + attention(norm_1(src))
        return x + feed_forward(norm_2(x))
    x = norm_1(src + attention(src))
    return norm_2(x + feed_forward(x))


def _spread(mask: Array, shape: tuple[int, ...], mask_type: int | None) -> Array:
    """A mask (L, L) or (batch, L), by its type, so that it broadcasts against scores (batch, heads, L, L)."""
    hidden = mask != 0
    if mask_type == _PADDING and len(shape) == 4 and hidden.ndim == 2:
        hidden = hidden[:, None, None, :]
    return jnp.broadcast_to(hidden, shape)


def _linear(x: Array, weight: Array, bias: Array) -> Array:
    return (product(x, weight, (x.ndim - 1, 1)) + widen(bias)).astype(x.dtype)


def _layer_norm(x: Array, weight: Array, bias: Array, eps: float) -> Array:
    return native_layer_norm(x, weight.shape, weight, bias, eps)[0].astype(x.dtype)
