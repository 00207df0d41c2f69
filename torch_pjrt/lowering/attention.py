"""Scaled dot-product attention, whole, with grouped-query heads, masks, dropout and its gradient.

Scores and softmax are float32 for half inputs; the probabilities go back to the value's dtype for the second product,
as matrix units take them. A row that a mask leaves nothing of gives zeros.

Whole, with all scores in memory; on a TPU as kernels that keep none, where they take the operands (`splash.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from . import splash
from .matmul import precision
from .registry import lower
from .rng import random_bits
from .widen import widen


@lower("scaled_dot_product_attention", random=True)
def scaled_dot_product_attention(
    query: Array,
    key_: Array,
    value: Array,
    attn_mask: Array | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    key: Array | None,
) -> Array:
    """query (..., H, L, E), key (..., Hkv, S, E), value (..., Hkv, S, Ev) to (..., H, L, Ev)."""
    if query.ndim == 2:
        return attend(query[None], key_[None], value[None], attn_mask, is_causal, scale, dropout_p, key)[0][0]
    return attend(query, key_, value, attn_mask, is_causal, scale, dropout_p, key)[0]


@lower("_scaled_dot_product_fused_attention_overrideable", random=True)
def fused_attention(
    query: Array,
    key_: Array,
    value: Array,
    attn_bias: Array | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    scale: float | None = None,
    *,
    key: Array | None,
) -> list[Array]:
    """[output, logsumexp (B, H, L), philox_seed, philox_offset]; the op's other results are undefined or integers.

    Seed and offset are the two halves of the random key, so that the gradient draws the same dropout mask.
    """
    out, logsumexp = attend(query, key_, value, attn_bias, is_causal, scale, dropout_p, key)
    halves = jnp.zeros(2, np.int64) if key is None else lax.bitcast_convert_type(key.reshape(2, 2), np.int64)
    return [out, logsumexp.reshape(-1, *query.shape[-3:-1]), halves[0], halves[1]]


@lower("_scaled_dot_product_fused_attention_overrideable_backward")
def fused_attention_backward(
    grad_out: Array,
    query: Array,
    key: Array,
    value: Array,
    attn_bias: Array | None,
    grad_input_mask: Sequence[bool],
    out: Array,
    logsumexp: Array,
    cum_seq_q: Array | None,
    cum_seq_k: Array | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: Array,
    philox_offset: Array,
    scale: float | None = None,
) -> list[Array]:
    """Gradients of query, key, value and, if there is one, the bias. Probabilities are recomputed from logsumexp."""
    factor = _factor(query, scale)
    if splash.fits(query, key, value, attn_bias, dropout_p):
        return splash.backward(grad_out, query, key, value, out, logsumexp, is_causal, factor)
    scores = _scores(query, key, attn_bias, is_causal, factor)
    total = logsumexp.reshape(*scores.shape[:-1], 1).astype(scores.dtype)
    probabilities = jnp.exp(scores - jnp.where(total == -jnp.inf, 0, total))
    grad_probabilities = _by_key("...ld,...sd->...ls", grad_out, value, key)
    kept = probabilities
    if dropout_p > 0:
        random_key = lax.bitcast_convert_type(jnp.stack([philox_seed, philox_offset]), np.uint32).reshape(4)
        keep = _dropout(random_key, scores.shape, dropout_p)
        kept, grad_probabilities = kept * keep, grad_probabilities * keep
    along = (widen(grad_out) * widen(out)).sum(-1, keepdims=True)
    grad_scores = probabilities * (grad_probabilities - along)
    narrow = grad_scores.astype(query.dtype)
    grads = [
        _by_key("...ls,...se->...le", narrow, key, key) * factor,
        _onto_key("...ls,...le->...se", narrow, query, key) * factor,
        _onto_key("...ls,...ld->...sd", kept.astype(value.dtype), grad_out, key),
    ]
    return grads if attn_bias is None else [*grads, _summed_to(grad_scores, attn_bias.shape)]


@lower("_scaled_dot_product_efficient_attention")
def efficient_attention(
    query: Array,
    key: Array,
    value: Array,
    attn_bias: Array | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> list[Array]:
    """[output, logsumexp (B, H, L), philox_seed, philox_offset]. What a DTensor's attention is (csrc/attention.cpp)."""
    if dropout_p > 0:
        raise NotImplementedError("aten::_scaled_dot_product_efficient_attention with dropout")
    out, logsumexp = attend(query, key, value, attn_bias, is_causal, scale, 0.0, None)
    nothing = jnp.zeros((), np.int64)
    return [out, logsumexp if compute_log_sumexp else logsumexp[..., :0], nothing, nothing]


@lower("_scaled_dot_product_efficient_attention_backward")
def efficient_attention_backward(
    grad_out: Array,
    query: Array,
    key: Array,
    value: Array,
    attn_bias: Array | None,
    out: Array,
    logsumexp: Array,
    philox_seed: Array,
    philox_offset: Array,
    dropout_p: float,
    grad_input_mask: Sequence[bool],
    is_causal: bool = False,
    scale: float | None = None,
) -> list[Array]:
    """Gradients of query, key, value and, if it is asked for, the bias. `logsumexp` may be padded along L."""
    grads = fused_attention_backward(
        grad_out, query, key, value, attn_bias, grad_input_mask, out, logsumexp[..., : query.shape[-2]],
        None, None, 0, 0, dropout_p, is_causal, philox_seed, philox_offset, scale,
    )  # fmt: skip
    return grads[: 3 + grad_input_mask[3]]


def attend(
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None,
    is_causal: bool,
    scale: float | None,
    dropout_p: float,
    random_key: Array | None,
) -> tuple[Array, Array]:
    """(output, logsumexp of the scores), both in the dtype that PyTorch computes in; the output of kernels is half."""
    if splash.fits(query, key, value, bias, dropout_p):
        return splash.forward(query, key, value, is_causal, _factor(query, scale))
    scores = _scores(query, key, bias, is_causal, _factor(query, scale))
    peak = scores.max(-1, keepdims=True, initial=-jnp.inf)
    # exp(-inf - -inf) would be NaN; a NaN score still makes a NaN row.
    powers = jnp.exp(scores - jnp.where(peak == -jnp.inf, 0, peak))
    total = powers.sum(-1, keepdims=True)
    if dropout_p > 0 and random_key is not None:
        powers = powers * _dropout(random_key, powers.shape, dropout_p)
    # Dividing after the product touches L * Ev elements instead of L * S.
    out = _by_key("...ls,...sd->...ld", powers.astype(value.dtype), value, key) / jnp.where(total == 0, 1, total)
    return out, (jnp.where(peak == -jnp.inf, 0, peak) + jnp.log(total))[..., 0]


def _factor(query: Array, scale: float | None) -> float:
    return 1 / math.sqrt(max(query.shape[-1], 1)) if scale is None else scale


def _scores(query: Array, key: Array, bias: Array | None, is_causal: bool, factor: float) -> Array:
    scores = _by_key("...le,...se->...ls", query, key, key) * factor
    if is_causal:
        row = lax.broadcasted_iota(np.int32, scores.shape[-2:], 0)
        column = lax.broadcasted_iota(np.int32, scores.shape[-2:], 1)
        scores = jnp.where(column <= row, scores, -jnp.inf)
    if bias is None:
        return scores
    return jnp.where(bias, scores, -jnp.inf) if bias.dtype == np.bool_ else scores + bias.astype(scores.dtype)


def _by_key(equation: str, x: Array, y: Array, key: Array) -> Array:
    """Contract x (..., H, L, *) with y (..., Hkv, S, *), each of whose heads serves H / Hkv heads of x.

    The heads that share one are laid end to end along L: one plain batched product, nothing repeated.
    """
    heads, length = x.shape[-3:-1]
    shared = key.shape[-3]
    out = _einsum(equation, x.reshape(*x.shape[:-3], shared, heads // shared * length, x.shape[-1]), y)
    return out.reshape(*out.shape[:-3], heads, length, out.shape[-1])


def _onto_key(equation: str, x: Array, y: Array, key: Array) -> Array:
    """Contract x and y, both (..., H, L, *), along L and along the heads that share a key head."""
    shared = key.shape[-3]
    merged = [t.reshape(*t.shape[:-3], shared, t.shape[-3] // shared * t.shape[-2], t.shape[-1]) for t in (x, y)]
    return _einsum(equation, *merged)


def _einsum(equation: str, x: Array, y: Array) -> Array:
    half = x.dtype.itemsize < 4
    wide = np.dtype(np.float32) if half else x.dtype
    return jnp.einsum(
        equation, x, y.astype(x.dtype), precision=None if half else precision(), preferred_element_type=wide
    )


def _dropout(random_key: Array, shape: Sequence[int], p: float) -> Array:
    """What each probability is multiplied by: 0 with probability p, else 1 / (1 - p)."""
    bits = random_bits(random_key, shape)
    if p >= 1:
        return jnp.zeros(shape, np.float32)
    return jnp.where(bits >= np.uint32(min(p * 2**32, 2**32 - 1)), np.float32(1 / (1 - p)), np.float32(0))


def _summed_to(x: Array, shape: Sequence[int]) -> Array:
    """The gradient of a broadcast from `shape`."""
    x = x.sum(tuple(range(x.ndim - len(shape))))
    stretched = tuple(d for d, (have, want) in enumerate(zip(x.shape, shape, strict=True)) if have != want)
    return x.sum(stretched, keepdims=True)
