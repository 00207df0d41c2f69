"""`flex_attention` and its gradient, whole: every score is computed, then masked.

`score_mod` and `mask_mod` are graphs over one score and its four indices, mapped over all of them. What of a block mask
says which blocks are empty is not read: `mask_mod` says the same. Formulas: PyTorch's `math_attention` and
`sdpa_dense_backward` (torch/_higher_order_ops/flex_attention.py). Statistics are in base 2, as PyTorch's kernels have
them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from torch.fx import GraphModule, Node

from ..lowering.apply import held_to
from ..lowering.matmul import precision

if TYPE_CHECKING:
    from .evaluate import Evaluation


def flex_attention(
    run: Evaluation,
    node: Node,
    key_: None,
    query: Array,
    key: Array,
    value: Array,
    score_mod: GraphModule,
    block_mask: Sequence[Any],
    scale: float,
    kernel_options: dict[str, Any],
    score_buffers: Sequence[Any] = (),
    mask_buffers: Sequence[Any] = (),
) -> list[Any]:
    """[output (B, Hq, L, Ev), logsumexp (B, Hq, L), the largest score of each row (B, Hq, L)].

    query (B, Hq, L, E); key, value (B or 1, Hkv, S, E or Ev), Hq a multiple of Hkv.
    """
    scores = _scores(query, key, scale)
    changed = _changed(run, score_mod, scores, score_buffers)
    masked = jnp.where(_mask(run, block_mask[-1], scores.shape, mask_buffers), changed, -jnp.inf)
    out = _by_query("bkgls,bkse->bkgle", _softmax(masked).astype(query.dtype), value.astype(query.dtype))
    total = jax.nn.logsumexp(masked, axis=-1)
    largest = masked.max(-1, initial=-jnp.inf)
    made = [out, total / math.log(2), largest / math.log(2)]
    specs = run.promised(node)
    return [held_to("flex_attention", i, x, s) for i, (x, s) in enumerate(zip(made, specs, strict=True)) if s]


def flex_attention_backward(
    run: Evaluation,
    node: Node,
    key_: None,
    query: Array,
    key: Array,
    value: Array,
    out: Array,
    logsumexp: Array,
    grad_out: Array | None,
    grad_logsumexp: Array | None,
    score_mod: GraphModule,
    joint: GraphModule,
    block_mask: Sequence[Any],
    scale: float,
    kernel_options: dict[str, Any],
    score_buffers: Sequence[Any] = (),
    mask_buffers: Sequence[Any] = (),
) -> list[Any]:
    """Gradients of query, key, value, and a list of those of what `score_mod` captures.

    The gradient of a score through `score_mod` is PyTorch's graph (`joint`). Those of captured tensors are JAX's:
    PyTorch's are one scatter for each score.
    """
    scores = _scores(query, key, scale)
    work = scores.dtype
    mask = _mask(run, block_mask[-1], scores.shape, mask_buffers)
    changed, back = _with_gradient(run, score_mod, scores, score_buffers)
    probabilities = _softmax(jnp.where(mask, changed, -jnp.inf))
    grad = (jnp.zeros(out.shape, work) if grad_out is None else grad_out).astype(work)
    rows = (out.astype(work) * grad).sum(-1)
    if grad_logsumexp is not None:
        rows -= grad_logsumexp.astype(work) / math.log(2)
    grad_changed = probabilities * (_by_query("bkgle,bkse->bkgls", grad, value.astype(work)) - rows[..., None])

    def through(score: Array, b: Array, h: Array, q: Array, kv: Array, g: Array) -> Array:
        return jnp.asarray(run.body(joint, [score, b, h, q, kv, g, *score_buffers], None, wide=True, only=1)[0])

    grad_scores = _over_indices(through, scores.shape, scores, grad_changed)
    grad_scores = jnp.where(mask, grad_scores * scale, 0).astype(query.dtype)
    grad_query = _by_query("bkgls,bkse->bkgle", grad_scores, key.astype(query.dtype))
    made = [
        grad_query,
        _by_key("bkgls,bkgle->bkse", grad_scores, query, key),
        _by_key("bkgls,bkgle->bkse", probabilities.astype(query.dtype), grad.astype(query.dtype), value),
        *back(jnp.where(mask, grad_changed, 0)),
    ]
    specs = run.promised(node)
    held = [
        None if s is None else held_to("flex_attention_backward", i, x, s)
        for i, (x, s) in enumerate(zip(made, specs, strict=True))
    ]
    return [*held[:3], held[3:]]


def _scores(query: Array, key: Array, scale: float) -> Array:
    """(B, Hq, L, S), in float32 or float64."""
    work = np.dtype(np.float64 if query.dtype == np.float64 else np.float32)
    return _by_query("bkgle,bkse->bkgls", query, key.astype(query.dtype), work) * scale


def _by_query(equation: str, x: Array, y: Array, dtype: np.dtype | None = None) -> Array:
    """A product of something with query heads, (B, Hq, ., .), and something with key heads, (B or 1, Hkv, ., .)."""
    batch, heads, groups = x.shape[0], x.shape[1], y.shape[1]
    grouped = x.reshape(batch, groups, heads // groups, *x.shape[2:])
    y = jnp.broadcast_to(y, (batch, *y.shape[1:]))
    made = jnp.einsum(equation, grouped, y, precision=precision(), preferred_element_type=dtype)
    return made.reshape(batch, heads, *made.shape[3:])


def _by_key(equation: str, x: Array, y: Array, like: Array) -> Array:
    """The product of two things with query heads, summed over those that share a head of `like`, and over its batch."""
    groups = like.shape[1]
    x, y = (z.reshape(z.shape[0], groups, z.shape[1] // groups, *z.shape[2:]) for z in (x, y))
    made = jnp.einsum(equation, x, y, precision=precision())
    return made.sum(0, keepdims=True) if like.shape[0] == 1 else made


def _softmax(scores: Array) -> Array:
    """Along the last dimension; a row of nothing but -inf gives zeros."""
    top = scores.max(-1, keepdims=True, initial=-jnp.inf)
    shares = jnp.exp(scores - lax.stop_gradient(jnp.where(top == -jnp.inf, 0, top)))
    total = shares.sum(-1, keepdims=True)
    return shares / jnp.where(total == 0, 1, total)


def _changed(run: Evaluation, score_mod: GraphModule, scores: Array, buffers: Sequence[Any]) -> Array:
    def one(score: Array, b: Array, h: Array, q: Array, kv: Array) -> Array:
        (made,) = run.body(score_mod, [score, b, h, q, kv, *buffers], None, wide=True)
        return jnp.asarray(made).astype(scores.dtype)

    return _over_indices(one, scores.shape, scores)


def _with_gradient(
    run: Evaluation, score_mod: GraphModule, scores: Array, buffers: Sequence[Any]
) -> tuple[Array, Callable[[Array], list[Array | None]]]:
    """The changed scores, and from their gradient that of each captured tensor: None where it has none."""
    which = [i for i, b in enumerate(buffers) if isinstance(b, Array) and jnp.issubdtype(b.dtype, jnp.floating)]

    def changed(captured: Sequence[Array]) -> Array:
        given = dict(zip(which, captured, strict=True))
        return _changed(run, score_mod, scores, [given.get(i, b) for i, b in enumerate(buffers)])

    if not which:
        return changed([]), lambda grad: [None] * len(buffers)
    made, pull = jax.vjp(changed, [buffers[i] for i in which])

    def back(grad: Array) -> list[Array | None]:
        found = dict(zip(which, pull(grad)[0], strict=True))
        return [found.get(i) for i in range(len(buffers))]

    return made, back


def _mask(run: Evaluation, mask_mod: GraphModule, shape: Sequence[int], buffers: Sequence[Any]) -> Array:
    def one(b: Array, h: Array, q: Array, kv: Array) -> Array:
        (made,) = run.body(mask_mod, [b, h, q, kv, *buffers], None)
        return jnp.asarray(made) != 0

    return _over_indices(one, shape)


def _over_indices(one: Callable[..., Array], shape: Sequence[int], *arrays: Array) -> Array:
    """`one` of an element of the first array, batch, head, query, key, elements of the others; for all of them."""
    for dim in reversed(range(4)):
        axes: list[int | None] = [0 if i == dim else None for i in range(4)]
        one = jax.vmap(one, in_axes=tuple([*(0 for _ in arrays[:1]), *axes, *(0 for _ in arrays[1:])]))
    indices = [jnp.arange(n, dtype=np.int32) for n in shape]
    return one(*arrays[:1], *indices, *arrays[1:])
