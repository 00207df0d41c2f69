"""The fused LSTM and GRU cells that PyTorch runs on a PrivateUse1 device, and their gradients.

Equations and gate order as in torch.nn.LSTM and torch.nn.GRU. The workspaces are ours alone: only the gradient here
reads them.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array
from jax.nn import sigmoid

from .registry import lower
from .widen import widen


@lower("_thnn_fused_lstm_cell")
def fused_lstm_cell(
    input_gates: Array,
    hidden_gates: Array,
    cx: Array,
    input_bias: Array | None = None,
    hidden_bias: Array | None = None,
) -> tuple[Any, ...]:
    """(hy, cy, workspace: the four activated gates). Gates are (N, 4 * hidden): input, forget, cell, output."""
    sums = _biased(input_gates, input_bias) + _biased(hidden_gates, hidden_bias)
    i, f, g, o = jnp.split(sums, 4, 1)
    i, f, g, o = sigmoid(i), sigmoid(f), jnp.tanh(g), sigmoid(o)
    cy = f * widen(cx) + i * g
    return _narrowed(cx, o * jnp.tanh(cy), cy, jnp.concatenate([i, f, g, o], 1))


@lower("_thnn_fused_lstm_cell_backward_impl")
def fused_lstm_cell_backward(
    grad_hy: Array | None, grad_cy: Array | None, cx: Array, cy: Array, workspace: Array, has_bias: bool
) -> list[Any]:
    """[gradient of the gates, of cx, and of the bias if there is one]; both biases share theirs."""
    i, f, g, o = jnp.split(widen(workspace), 4, 1)
    peak = jnp.tanh(widen(cy))
    grad_h = jnp.zeros_like(peak) if grad_hy is None else widen(grad_hy)
    grad_c = grad_h * o * (1 - peak * peak)
    if grad_cy is not None:
        grad_c = grad_c + widen(grad_cy)
    gates = jnp.concatenate(
        [
            grad_c * g * i * (1 - i),
            grad_c * widen(cx) * f * (1 - f),
            grad_c * i * (1 - g * g),
            grad_h * peak * o * (1 - o),
        ],
        1,
    )
    return list(_narrowed(cx, gates, grad_c * f, gates.sum(0) if has_bias else None))


@lower("_thnn_fused_gru_cell")
def fused_gru_cell(
    input_gates: Array,
    hidden_gates: Array,
    hx: Array,
    input_bias: Array | None = None,
    hidden_bias: Array | None = None,
) -> tuple[Any, ...]:
    """(hy, workspace (N, 5 * hidden)). Gates are (N, 3 * hidden): reset, update, new."""
    ir, iz, in_ = jnp.split(_biased(input_gates, input_bias), 3, 1)
    hr, hz, hn = jnp.split(_biased(hidden_gates, hidden_bias), 3, 1)
    r, z = sigmoid(ir + hr), sigmoid(iz + hz)
    n = jnp.tanh(in_ + r * hn)
    h = widen(hx)
    return _narrowed(hx, n + z * (h - n), jnp.concatenate([r, z, n, h, hn], 1))


@lower("_thnn_fused_gru_cell_backward")
def fused_gru_cell_backward(grad_hy: Array, workspace: Array, has_bias: bool) -> list[Any]:
    """[gradients of input gates, hidden gates, hx, and of both biases if there are any]."""
    r, z, n, h, hn = jnp.split(widen(workspace), 5, 1)
    grad = widen(grad_hy)
    new = grad * (1 - z) * (1 - n * n)
    reset = new * hn * r * (1 - r)
    update = grad * (h - n) * z * (1 - z)
    input_gates = jnp.concatenate([reset, update, new], 1)
    hidden_gates = jnp.concatenate([reset, update, new * r], 1)
    biases = [input_gates.sum(0), hidden_gates.sum(0)] if has_bias else [None, None]
    return list(_narrowed(grad_hy, input_gates, hidden_gates, grad * z, *biases))


def _narrowed(like: Array, *results: Array | None) -> tuple[Any, ...]:
    """The results, computed in float32 for the half types, in the dtype of the arguments; None where there is none."""
    return tuple(None if r is None else r.astype(like.dtype) for r in results)


def _biased(gates: Array, bias: Array | None) -> Array:
    return widen(gates) if bias is None else widen(gates) + widen(bias)
