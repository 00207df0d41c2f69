"""Connectionist temporal classification loss and its gradient.

Graves et al., 2006: Connectionist Temporal Classification. Probabilities are kept as logarithms. A target of S labels
has 2 S + 1 states: blanks around and between the labels.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .registry import lower
from .widen import widen


@lower("_ctc_loss.Tensor")
def ctc_loss(
    log_probs: Array,
    targets: Array,
    input_lengths: Array,
    target_lengths: Array,
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[Array, Array]:
    """log_probs (T, N, C), targets (N, S), lengths (N,) to (loss (N,), log forward variables (N, T, 2 S + 1))."""
    labels, skips, emitted = _states(widen(log_probs), targets, blank)
    begins = lax.broadcasted_iota(np.int32, labels.shape, 1) <= jnp.where(target_lengths > 0, 1, 0)[:, None]
    first = jnp.where(begins, emitted[0], -jnp.inf)

    def step(alpha: Array, now: Array) -> tuple[Array, Array]:
        alpha = _sum_of_three(alpha, skips, _from_before) + now
        return alpha, alpha

    _, rest = lax.scan(step, first, emitted[1:])
    alphas = jnp.concatenate([first[None], rest])
    last = jnp.maximum(input_lengths - 1, 0)
    at_end = jnp.take_along_axis(alphas, last[None, :, None], 0, mode="clip")[0]
    loss = -jnp.logaddexp(*_final(at_end, target_lengths))
    nothing = jnp.where(target_lengths == 0, 0, jnp.inf)
    return jnp.where(input_lengths == 0, nothing, loss), jnp.swapaxes(alphas, 0, 1)


@lower("_ctc_loss_backward.Tensor")
def ctc_loss_backward(
    grad: Array,
    log_probs: Array,
    targets: Array,
    input_lengths: Array,
    target_lengths: Array,
    neg_log_likelihood: Array,
    log_alpha: Array,
    blank: int,
    zero_infinity: bool = False,
) -> Array:
    """The gradient with respect to what log_softmax was taken of: probability minus expected share of each label."""
    x = widen(log_probs)
    labels, skips, emitted = _states(x, targets, blank)
    steps, batch, _ = x.shape
    state = lax.broadcasted_iota(np.int32, labels.shape, 1)
    ends = (state == 2 * target_lengths[:, None]) | (state == 2 * target_lengths[:, None] - 1)

    def step(beta: Array, given: tuple[Array, Array]) -> tuple[Array, Array]:
        now, time = given
        beta = jnp.where(
            (time == input_lengths - 1)[:, None],
            jnp.where(ends, 0, -jnp.inf),
            _sum_of_three(beta, skips, _from_behind),
        )
        beta = jnp.where((time < input_lengths)[:, None], beta + now, -jnp.inf)
        return beta, beta

    none = jnp.full(labels.shape, -jnp.inf, x.dtype)
    _, betas = lax.scan(step, none, (emitted, lax.iota(np.int32, steps)), reverse=True)
    loss = neg_log_likelihood.astype(x.dtype)
    share = jnp.exp(jnp.swapaxes(log_alpha, 0, 1).astype(x.dtype) + betas - emitted + loss[:, None])
    share = jnp.where(jnp.isneginf(betas), 0, share)
    rows = lax.broadcasted_iota(np.int32, labels.shape, 0)
    expected = jnp.zeros_like(x).at[:, rows, labels].add(share)
    result = (jnp.exp(x) - expected) * grad.astype(x.dtype)[:, None]
    infinite = jnp.isposinf(loss)[:, None]
    result = jnp.where(infinite, 0 if zero_infinity else jnp.nan, result)
    counted = lax.broadcasted_iota(np.int32, (steps, batch, 1), 0) < input_lengths[:, None]
    return jnp.where(counted, result, 0)


@lower("_ctc_loss")
def ctc_loss_of_numbers(
    log_probs: Array,
    targets: Array,
    input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[Array, Array]:
    """Lengths that a compiled graph holds as constants; targets as rows or all in one."""
    rows, inputs, lengths = _as_arrays(targets, input_lengths, target_lengths)
    return ctc_loss(log_probs, rows, inputs, lengths, blank, zero_infinity)


@lower("_ctc_loss_backward")
def ctc_loss_of_numbers_backward(
    grad: Array,
    log_probs: Array,
    targets: Array,
    input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    neg_log_likelihood: Array,
    log_alpha: Array,
    blank: int,
    zero_infinity: bool = False,
) -> Array:
    rows, inputs, lengths = _as_arrays(targets, input_lengths, target_lengths)
    return ctc_loss_backward(
        grad, log_probs, rows, inputs, lengths, neg_log_likelihood, log_alpha, blank, zero_infinity
    )


def _as_arrays(
    targets: Array, input_lengths: Sequence[int], target_lengths: Sequence[int]
) -> tuple[Array, Array, Array]:
    """(targets as rows of the longest one's width, input lengths, target lengths)."""
    ends, longest = np.cumsum(target_lengths), max(target_lengths, default=0)
    if targets.ndim == 1:
        places = (ends - target_lengths)[:, None] + np.arange(longest)
        rows = jnp.pad(targets, (0, longest))[places] if longest else jnp.zeros((len(ends), 0), targets.dtype)
    else:
        rows = targets[:, :longest]
    return rows, jnp.asarray(input_lengths, np.int64), jnp.asarray(target_lengths, np.int64)


def _states(x: Array, targets: Array, blank: int) -> tuple[Array, Array, Array]:
    """(label of each state (N, L), whether it may follow the state two before, its log probabilities (T, N, L))."""
    batch, length = targets.shape
    labels = jnp.full((batch, 2 * length + 1), blank, np.int32).at[:, 1::2].set(targets.astype(np.int32))
    labels = jnp.clip(labels, 0, x.shape[-1] - 1)  # the padding of short targets may be anything
    before = jnp.pad(labels, ((0, 0), (2, 0)), constant_values=blank)[:, : labels.shape[1]]
    emitted = jnp.take_along_axis(x, jnp.broadcast_to(labels, (x.shape[0], *labels.shape)), 2, mode="clip")
    return labels, (labels != blank) & (labels != before), emitted


def _from_before(x: Array, by: int) -> Array:
    return jnp.pad(x, ((0, 0), (by, 0)), constant_values=-np.inf)[:, : x.shape[1]]


def _from_behind(x: Array, by: int) -> Array:
    return jnp.pad(x, ((0, 0), (0, by)), constant_values=-np.inf)[:, by:]


def _sum_of_three(x: Array, skips: Array, shifted: object) -> Array:
    """log of the sum over the state itself, its neighbour, and the one beyond where a blank may be skipped."""
    assert callable(shifted)
    if shifted is _from_before:
        far = jnp.where(skips, shifted(x, 2), -jnp.inf)
    else:
        far = shifted(jnp.where(skips, x, -jnp.inf), 2)
    parts = jnp.stack([x, shifted(x, 1), far])
    top = parts.max(0)
    safe = jnp.where(jnp.isneginf(top), 0, top)
    return jnp.log(jnp.exp(parts - safe).sum(0)) + safe


def _final(alpha: Array, target_lengths: Array) -> tuple[Array, Array]:
    """The two states that a path may end in: the last blank and, if there is any, the last label."""
    blank = jnp.take_along_axis(alpha, 2 * target_lengths[:, None], 1, mode="clip")[:, 0]
    label = jnp.take_along_axis(alpha, jnp.maximum(2 * target_lengths - 1, 0)[:, None], 1, mode="clip")[:, 0]
    return blank, jnp.where(target_lengths > 0, label, -jnp.inf)
