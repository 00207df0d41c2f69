"""ResNet-18 for 32 x 32 images in JAX, BatchNorm with its running statistics.

Inside, images are NHWC and kernels HWIO, the layout a JAX user picks; `BENCH_JAX_LAYOUT=NCHW` keeps PyTorch's, so that
the faster one can be named (README.md has the figures).
"""

from __future__ import annotations

import os
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from . import Model, Params, State, Weights
from .mlp import linear

CHANNELS_LAST = os.environ.get("BENCH_JAX_LAYOUT", "NHWC") == "NHWC"
DIMENSIONS = ("NHWC", "HWIO", "NHWC") if CHANNELS_LAST else ("NCHW", "OIHW", "NCHW")
SPATIAL = (1, 2) if CHANNELS_LAST else (2, 3)
OTHER_THAN_CHANNEL = (0, *SPATIAL)
MOMENTUM, EPS = 0.1, 1e-5
# (stride, whether the shortcut is a convolution)
BLOCKS = ((1, False), (1, False), (2, True), (1, False), (2, True), (1, False), (2, True), (1, False))


def init(weights: Weights) -> tuple[Params, State]:
    params: Params = {}
    state: State = {}
    for name, value in weights.items():
        if name.endswith("num_batches_tracked"):
            continue  # counts for momentum=None only
        if name.endswith(("running_mean", "running_var")):
            state[name] = jnp.asarray(value)
        elif value.ndim == 4 and CHANNELS_LAST:
            params[name] = jnp.asarray(np.transpose(value, (2, 3, 1, 0)))
        else:
            params[name] = jnp.asarray(value)
    return params, state


def train(params: Params, state: State, x: Array) -> tuple[Array, State]:
    new_state: State = {}

    def norm(bn: str, x: Array) -> Array:
        mean, variance = x.mean(OTHER_THAN_CHANNEL), x.var(OTHER_THAN_CHANNEL)
        count = x.size // mean.size
        unbiased = variance * (count / (count - 1))  # what PyTorch's running average takes
        for statistic, value in (("mean", mean), ("var", unbiased)):
            name = f"{bn}.running_{statistic}"
            new_state[name] = (1 - MOMENTUM) * state[name] + MOMENTUM * jax.lax.stop_gradient(value)
        return normalized(params, bn, x, mean, variance)

    return network(params, x, norm), new_state


def infer(params: Params, state: State, x: Array) -> Array:
    def norm(bn: str, x: Array) -> Array:
        return normalized(params, bn, x, state[f"{bn}.running_mean"], state[f"{bn}.running_var"])

    return network(params, x, norm)


def network(params: Params, x: Array, norm: Callable[[str, Array], Array]) -> Array:
    """The logits; `norm` is batch normalization by its name."""

    def conv_bn(conv: str, bn: str, x: Array, stride: int) -> Array:
        kernel = params[f"{conv}.weight"]
        padding = "SAME" if kernel.shape[DIMENSIONS[1].index("H")] == 1 else ((1, 1), (1, 1))
        return norm(
            bn, jax.lax.conv_general_dilated(x, kernel, (stride, stride), padding, dimension_numbers=DIMENSIONS)
        )

    x = jnp.transpose(x, (0, 2, 3, 1)) if CHANNELS_LAST else x
    x = jax.nn.relu(conv_bn("conv1", "bn1", x, 1))
    for i, (stride, projected) in enumerate(BLOCKS):
        name = f"blocks.{i}"
        y = jax.nn.relu(conv_bn(f"{name}.conv1", f"{name}.bn1", x, stride))
        y = conv_bn(f"{name}.conv2", f"{name}.bn2", y, 1)
        shortcut = conv_bn(f"{name}.shortcut.0", f"{name}.shortcut.1", x, stride) if projected else x
        x = jax.nn.relu(y + shortcut)
    return linear(params, "fc", x.mean(SPATIAL))


def normalized(params: Params, name: str, x: Array, mean: Array, variance: Array) -> Array:
    shape = (1, 1, 1, -1) if CHANNELS_LAST else (1, -1, 1, 1)
    scale = params[f"{name}.weight"] * jax.lax.rsqrt(variance + EPS)
    return (x - mean.reshape(shape)) * scale.reshape(shape) + params[f"{name}.bias"].reshape(shape)


MODEL = Model(init, train, infer)
