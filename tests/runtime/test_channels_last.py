"""Programs rewritten channels-last compute what they did before, and their images are no longer transposed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array, lax

from torch_pjrt.runtime.channels_last import has_convolutions, rewritten

NCHW = ("NCHW", "OIHW", "NCHW")


def conv(x: Array, w: Array, stride: int = 1, groups: int = 1) -> Array:
    padding = [(1, 1)] * (x.ndim - 2)
    numbers = NCHW if x.ndim == 4 else ("NCDHW", "OIDHW", "NCDHW")
    return lax.conv_general_dilated(
        x, w, [stride] * (x.ndim - 2), padding, dimension_numbers=numbers, feature_group_count=groups
    )


def normalized(x: Array) -> Array:
    axes = (0, *range(2, x.ndim))
    mean = x.mean(axes, keepdims=True)
    variance = ((x - mean) ** 2).mean(axes, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * jnp.arange(1.0, x.shape[1] + 1).reshape(1, -1, *[1] * (x.ndim - 2))


def pooled(x: Array) -> Array:
    window = (1, 1, 2, 2)
    return lax.reduce_window(x, -jnp.inf, lax.max, window, window, "VALID")


PROGRAMS: dict[str, Callable[[Array, Array], Any]] = {
    "convolution": conv,
    "strided": partial(conv, stride=2),
    "normalized and rectified": lambda x, w: jax.nn.relu(normalized(conv(x, w))),
    "residual": lambda x, w: jax.nn.relu(conv(x, w) + x),
    "two convolutions": lambda x, w: conv(jnp.tanh(conv(x, w)), w),
    "pooled": lambda x, w: pooled(conv(x, w)),
    "padded": lambda x, w: jnp.pad(conv(x, w), ((0, 0), (0, 0), (1, 2), (0, 1)), constant_values=3.0),
    "transposed by the program": lambda x, w: conv(x, w).transpose(0, 2, 3, 1) + 1,
    "reduced to vectors": lambda x, w: (conv(x, w).mean((2, 3)), conv(x, w).max((0, 2)), conv(x, w).sum()),
    "argmax, which is left alone": lambda x, w: conv(x, w).argmax(1),
    "sliced and concatenated": lambda x, w: jnp.concatenate([conv(x, w)[:, 1:], x], axis=1),
    "reshaped": lambda x, w: conv(x, w).reshape(x.shape[0], -1) @ jnp.ones((x.size // x.shape[0], 3)),
    "a mask that lies otherwise": lambda x, w: jnp.where(x > 0, conv(x, w), -x),
    "a scalar choice": lambda x, w: lax.select_n(x[0, 0, 0, 0] > 0, conv(x, w), x),
    "a loop over images": lambda x, w: lax.fori_loop(0, 3, lambda i, y: jnp.tanh(conv(y, w)), x),
    "rows added": lambda x, w: conv(x, w) + x[0, 0, :, 0][:, None] + x[0, 0, 0, :],
}


def inputs(dims: int = 2) -> tuple[Array, Array]:
    rng = np.random.default_rng(0)
    image = (2, 4, *[6] * dims)
    return jnp.asarray(rng.standard_normal(image, np.float32)), jnp.asarray(
        rng.standard_normal((4, 4, *[3] * dims), np.float32)
    )


def check(fn: Callable[..., Any], *args: Array) -> jax.stages.Lowered:
    closed = jax.make_jaxpr(fn)(*args)
    lowered = jax.jit(rewritten(closed)).lower(*args)
    made = lowered.compile()(*args)
    for got, wanted in zip(made, jax.tree.leaves(fn(*args)), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-5)
    return lowered


@pytest.mark.parametrize("name", PROGRAMS)
def test_forward(name: str) -> None:
    check(PROGRAMS[name], *inputs())


@pytest.mark.parametrize("name", [n for n in PROGRAMS if not n.startswith(("argmax", "a loop"))])
def test_with_its_gradient(name: str) -> None:
    def loss(x: Array, w: Array) -> Array:
        return sum((leaf**2).sum() for leaf in jax.tree.leaves(PROGRAMS[name](x, w)))

    check(jax.value_and_grad(loss, (0, 1)), *inputs())


def test_volumes_and_groups() -> None:
    check(lambda x, w: jax.nn.relu(normalized(conv(x, w))), *inputs(3))
    x, w = inputs()
    check(partial(conv, groups=2), x, w[:, :2])


def test_what_has_no_images_is_left_alone() -> None:
    assert not has_convolutions(jax.make_jaxpr(lambda x: x @ x)(jnp.ones((2, 2))).jaxpr)
    assert has_convolutions(jax.make_jaxpr(jax.jit(conv))(*inputs()).jaxpr)


def test_images_are_transposed_at_the_ends_only() -> None:
    def net(x: Array, w: Array) -> Array:
        for _ in range(4):
            x = jax.nn.relu(normalized(conv(x, w)) + x)
        return x

    closed = jax.make_jaxpr(net)(*inputs())
    text = jax.jit(rewritten(closed)).lower(*inputs()).as_text()
    # The input once for the convolution and once for the sum, and the result; what has one number per channel is free.
    assert sum("stablehlo.transpose" in line and "2x4x6x6" in line for line in text.splitlines()) == 3
