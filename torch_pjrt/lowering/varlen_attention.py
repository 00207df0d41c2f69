"""Attention of packed sequences: `_flash_attention_forward` of (tokens, heads, width) with where each sequence begins.

It is what the attention of jagged tensors and `torch.nn.attention.varlen` are made of. The sequences are padded to the
longest, attended to with a mask (`attention.py`), and packed again: tokens of no sequence give zeros. As in flash
attention, a causal mask of sequences of unequal lengths lets the last query see the last key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from . import jagged
from .attention import attend, fused_attention_backward
from .check import require
from .registry import lower


@lower("_flash_attention_forward", random=True)
def flash_attention_forward(
    query: Array,
    key_: Array,
    value: Array,
    cum_seq_q: Array | None,
    cum_seq_k: Array | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
    seqused_k: Array | None = None,
    alibi_slopes: Array | None = None,
    block_table: Array | None = None,
    num_splits: int | None = None,
    *,
    key: Array | None,
) -> list[Array]:
    """[output, logsumexp, rng state, two that are unused].

    Args:
        query: (tokens, heads, width), or (batch, length, heads, width) if there are no `cum_seq_q`; `key_` and `value`
            likewise, of which the heads may be fewer.
        cum_seq_q: (sequences + 1,), the first token of each sequence and the end.
        max_q: the longest sequence.
        window_size_left: how many keys before its own a query sees; None or -1: all.
        seqused_k: (sequences,), how many keys of each sequence are there.

    `alibi_slopes`, `block_table` and the debug mask are refused before (`eager/checks/`).
    """
    if alibi_slopes is not None or block_table is not None or return_debug_mask:
        raise NotImplementedError("aten::_flash_attention_forward with alibi_slopes, block_table or return_debug_mask")
    _require_sequences("query", query, cum_seq_q, max_q)
    _require_sequences("key", key_, cum_seq_k, max_k)
    padded_q, lengths_q, pack = _padded(query, cum_seq_q, max_q)
    padded_k, lengths_k, _ = _padded(key_, cum_seq_k, max_k)
    padded_v, _, _ = _padded(value, cum_seq_k, max_k)
    used = lengths_k if seqused_k is None else jnp.minimum(lengths_k, seqused_k)
    mask = _mask(lengths_q, used, padded_q.shape[2], padded_k.shape[2], is_causal, window_size_left, window_size_right)
    out, logsumexp = attend(padded_q, padded_k, padded_v, mask, False, scale, dropout_p, key)
    halves = jnp.zeros(2, np.uint64) if key is None else lax.bitcast_convert_type(key.reshape(2, 2), np.uint64)
    nothing = jnp.zeros((), np.uint64)
    logsumexp = logsumexp.astype(np.float32)
    if cum_seq_q is not None:
        logsumexp = pack(logsumexp[..., None])[..., 0].T
    return [pack(out), logsumexp, halves, nothing, jnp.zeros(0, query.dtype)]


@lower("_flash_attention_forward_no_dropout_inplace")
def flash_attention_forward_into(out: Array, *arguments: Any, **options: Any) -> list[Array]:
    """[what `out` becomes, logsumexp] of the same arguments."""
    return flash_attention_forward(*arguments, **options, key=None)[:2]


@lower("_flash_attention_backward")
def flash_attention_backward(
    grad_out: Array,
    query: Array,
    key: Array,
    value: Array,
    out: Array,
    logsumexp: Array,
    cum_seq_q: Array | None,
    cum_seq_k: Array | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    rng_state: Array,
    unused: Array,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
) -> list[Array]:
    """Gradients of query, key and value."""
    (padded_q, lengths_q, pack_q), (padded_k, lengths_k, pack_k) = (
        _padded(t, cumulative, longest)
        for t, cumulative, longest in ((query, cum_seq_q, max_q), (key, cum_seq_k, max_k))
    )
    padded_v, _, pack_v = _padded(value, cum_seq_k, max_k)
    padded_grad, padded_out = (_padded(t, cum_seq_q, max_q)[0] for t in (grad_out, out))
    mask = _mask(lengths_q, lengths_k, padded_q.shape[2], padded_k.shape[2], is_causal, window_size_left,
                 window_size_right)  # fmt: skip
    if query.dtype == np.float64:  # for which that of the forward pass, a float32, is too coarse
        padded_sum = attend(padded_q, padded_k, padded_v, mask, False, scale, 0.0, None)[1]
    elif cum_seq_q is not None and cum_seq_q.size:
        padded_sum = _padded(logsumexp.T[..., None], cum_seq_q, max_q)[0][..., 0]
    else:
        padded_sum = logsumexp
    seed = lax.bitcast_convert_type(rng_state, np.int64)
    grads = fused_attention_backward(
        padded_grad, padded_q, padded_k, padded_v, mask, (True, True, True, False), padded_out, padded_sum, None, None,
        0, 0, dropout_p, False, seed[0], seed[1], scale,
    )  # fmt: skip
    return [pack(grad) for pack, grad in zip((pack_q, pack_k, pack_v), grads[:3], strict=True)]


def _require_sequences(name: str, x: Array, cumulative: Array | None, longest: int) -> None:
    if cumulative is None or not cumulative.size:
        return
    what = f"_flash_attention_forward(): the {name} has"
    require(cumulative[-1] <= x.shape[0], f"{what} {x.shape[0]} tokens, fewer than its sequences end at")
    require(
        jnp.diff(cumulative) <= longest, f"{what} a sequence longer than {longest}, which is said to be the longest"
    )


def _padded(x: Array, cumulative: Array | None, longest: int) -> tuple[Array, Array, Callable[[Array], Array]]:
    """(batch, heads, length, width), the lengths (batch,), and what packs an array of that shape again."""
    if cumulative is None or not cumulative.size:
        lengths = jnp.full(x.shape[0], x.shape[1], np.int32)
        return x.swapaxes(1, 2), lengths, lambda back: back.swapaxes(1, 2)
    spread = jagged.padded(x, cumulative, longest).swapaxes(1, 2)
    return spread, jnp.diff(cumulative), lambda back: jagged.packed(back.swapaxes(1, 2), cumulative, x.shape[0])


def _mask(
    lengths_q: Array, lengths_k: Array, longest_q: int, longest_k: int, is_causal: bool, left: int | None,
    right: int | None,
) -> Array:  # fmt: skip
    """(batch, 1, query, key): which keys each query sees."""
    row = jnp.arange(longest_q)[None, None, :, None]
    column = jnp.arange(longest_k)[None, None, None, :]
    own = row + (lengths_k - lengths_q)[:, None, None, None]  # the key that lies beside a query
    seen = (column < lengths_k[:, None, None, None]) & (row < lengths_q[:, None, None, None])
    if is_causal:
        right = 0
    if right is not None and right >= 0:
        seen &= column <= own + right
    if left is not None and left >= 0:
        seen &= column >= own - left
    return seen
