"""The operations that models spend their time in, each as PyTorch has it and as JAX has it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import torch
import torch.nn.functional as F
from jax import lax
from torch import Tensor

Shape = tuple[int, ...]
# A batch of 8 sequences of 256 tokens of width 512; 16 images of 64 channels; a table of 8,192 rows.
TOKENS, IMAGES, ROWS = (8, 256, 512), (16, 64, 32, 32), 8192


@dataclass(frozen=True)
class Case:
    """One operation.

    Attributes:
        name: of the ATen op or the function of torch.nn.functional.
        torch: of float32 tensors of `shapes`, then `others`.
        jax: the same of arrays.
        shapes: of the operands that have a gradient.
        others: makes the further operands (indices, masks, targets), for a CPU generator with the seed 0.
        gradient: whether a backward pass is measured.
    """

    name: str
    torch: Callable[..., Tensor]
    jax: Callable[..., Any]
    shapes: Sequence[Shape]
    others: Callable[[], Sequence[Tensor]] = tuple
    gradient: bool = True


def _unary(name: str, torch_fn: Callable[..., Tensor], jax_fn: Callable[..., Any], *, gradient: bool = True) -> Case:
    return Case(name, torch_fn, jax_fn, [TOKENS], gradient=gradient)


def _binary(name: str, torch_fn: Callable[..., Tensor], jax_fn: Callable[..., Any]) -> Case:
    return Case(name, torch_fn, jax_fn, [TOKENS, TOKENS])


def _conv(dims: int, stride: int = 1, groups: int = 1) -> Callable[..., Any]:
    order = ("NCH", "OIH", "NCH") if dims == 1 else ("NCHW", "OIHW", "NCHW")

    def conv(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(
            x, w, [stride] * dims, [(1, 1)] * dims, dimension_numbers=order, feature_group_count=groups
        )

    return conv


def _conv_transpose(x: Any, w: Any) -> Any:
    flipped = jnp.flip(w, (2, 3)).swapaxes(0, 1)
    order = ("NCHW", "OIHW", "NCHW")
    return lax.conv_general_dilated(x, flipped, (1, 1), [(1, 1)] * 2, lhs_dilation=(2, 2), dimension_numbers=order)


def _pool(kind: str) -> Callable[..., Any]:
    def pool(x: Any) -> Any:
        window = (1, 1, 2, 2)
        if kind == "max":
            return lax.reduce_window(x, -jnp.inf, lax.max, window, window, "VALID")
        return lax.reduce_window(x, 0.0, lax.add, window, window, "VALID") / 4

    return pool


def _normalized(x: Any, axes: Any, eps: float = 1e-5) -> Any:
    mean = x.mean(axes, keepdims=True)
    return (x - mean) * lax.rsqrt(jnp.square(x - mean).mean(axes, keepdims=True) + eps)


def _group_norm(x: Any, w: Any, b: Any) -> Any:
    y = _normalized(x.reshape(x.shape[0], 8, -1), 2).reshape(x.shape)
    return y * w[:, None, None] + b[:, None, None]


def _attention(causal: bool) -> Callable[..., Any]:
    def attend(q: Any, k: Any, v: Any) -> Any:
        scores = jnp.einsum("bhld,bhsd->bhls", q, k) / q.shape[-1] ** 0.5
        if causal:
            scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -jnp.inf)
        return jnp.einsum("bhls,bhsd->bhld", jax.nn.softmax(scores, -1), v)

    return attend


def _cross_entropy(x: Any, target: Any) -> Any:
    return -jnp.take_along_axis(jax.nn.log_softmax(x, -1), target[:, None], 1).mean()


def _indices(*shape: int) -> Callable[[], list[Tensor]]:
    return lambda: [torch.randint(0, ROWS, shape, generator=torch.Generator().manual_seed(0))]


def _mask() -> list[Tensor]:
    return [torch.rand(TOKENS, generator=torch.Generator().manual_seed(0)) > 0.5]


HEADS, TABLE, LOGITS = (8, 8, 256, 64), (ROWS, 512), (1024, ROWS)

CASES = (
    # Products
    Case("mm", torch.mm, jnp.matmul, [(1024, 512), (512, 1024)]),
    Case("bmm", torch.bmm, jnp.matmul, [(32, 256, 64), (32, 64, 256)]),
    Case("linear", F.linear, lambda x, w, b: x @ w.T + b, [TOKENS, (1024, 512), (1024,)]),
    Case("einsum", lambda x, y: torch.einsum("bld,bsd->bls", x, y), lambda x, y: jnp.einsum("bld,bsd->bls", x, y),
         [TOKENS, TOKENS]),
    Case("baddbmm", torch.baddbmm, lambda c, x, y: c + x @ y, [(32, 256, 256), (32, 256, 64), (32, 64, 256)]),
    Case("scaled_dot_product_attention", F.scaled_dot_product_attention, _attention(False), [HEADS] * 3),
    Case("the same, causal", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), _attention(True),
         [HEADS] * 3),
    # Convolutions and pools
    Case("conv2d", lambda x, w: F.conv2d(x, w, padding=1), _conv(2), [IMAGES, (64, 64, 3, 3)]),
    Case("conv2d, stride 2", lambda x, w: F.conv2d(x, w, padding=1, stride=2), _conv(2, stride=2),
         [IMAGES, (64, 64, 3, 3)]),
    Case("conv2d, depthwise", lambda x, w: F.conv2d(x, w, padding=1, groups=64), _conv(2, groups=64),
         [IMAGES, (64, 1, 3, 3)]),
    Case("conv1d", lambda x, w: F.conv1d(x, w, padding=1), _conv(1), [(8, 256, 512), (256, 256, 3)]),
    Case("conv_transpose2d", lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1), _conv_transpose,
         [(16, 64, 16, 16), (64, 64, 3, 3)]),
    Case("max_pool2d", lambda x: F.max_pool2d(x, 2), _pool("max"), [IMAGES]),
    Case("avg_pool2d", lambda x: F.avg_pool2d(x, 2), _pool("avg"), [IMAGES]),
    Case("adaptive_avg_pool2d", lambda x: F.adaptive_avg_pool2d(x, 1), lambda x: x.mean((2, 3), keepdims=True),
         [IMAGES]),
    Case("interpolate, nearest", lambda x: F.interpolate(x, scale_factor=2),
         lambda x: jnp.repeat(jnp.repeat(x, 2, 2), 2, 3), [IMAGES]),
    # Norms
    Case("layer_norm", lambda x, w, b: F.layer_norm(x, (512,), w, b), lambda x, w, b: _normalized(x, -1) * w + b,
         [TOKENS, (512,), (512,)]),
    Case("rms_norm", lambda x, w: F.rms_norm(x, (512,), w, 1e-6),
         lambda x, w: x * lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6) * w, [TOKENS, (512,)]),
    Case("batch_norm", lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
         lambda x, w, b: _normalized(x, (0, 2, 3)) * w[:, None, None] + b[:, None, None], [IMAGES, (64,), (64,)]),
    Case("group_norm", lambda x, w, b: F.group_norm(x, 8, w, b), _group_norm, [IMAGES, (64,), (64,)]),
    # Activations
    _unary("relu", F.relu, jax.nn.relu),
    _unary("gelu", F.gelu, lambda x: jax.nn.gelu(x, approximate=False)),
    _unary("gelu, tanh", lambda x: F.gelu(x, approximate="tanh"), jax.nn.gelu),
    _unary("silu", F.silu, jax.nn.silu),
    _unary("sigmoid", torch.sigmoid, jax.nn.sigmoid),
    _unary("tanh", torch.tanh, jnp.tanh),
    _unary("softplus", F.softplus, jax.nn.softplus),
    _unary("hardswish", F.hardswish, jax.nn.hard_swish),
    _unary("softmax", lambda x: x.softmax(-1), lambda x: jax.nn.softmax(x, -1)),
    _unary("log_softmax", lambda x: x.log_softmax(-1), lambda x: jax.nn.log_softmax(x, -1)),
    # Pointwise
    _binary("add", torch.add, jnp.add),
    _binary("mul", torch.mul, jnp.multiply),
    _binary("div", torch.div, jnp.divide),
    _binary("maximum", torch.maximum, jnp.maximum),
    _unary("exp", torch.exp, jnp.exp),
    _unary("log", lambda x: torch.log(x.abs() + 1), lambda x: jnp.log(jnp.abs(x) + 1)),
    _unary("sqrt", lambda x: torch.sqrt(x.abs() + 1), lambda x: jnp.sqrt(jnp.abs(x) + 1)),
    _unary("rsqrt", lambda x: torch.rsqrt(x.abs() + 1), lambda x: lax.rsqrt(jnp.abs(x) + 1)),
    _unary("pow", lambda x: x**3, lambda x: x**3),
    _unary("sin", torch.sin, jnp.sin),
    _unary("erf", torch.erf, lax.erf),
    _unary("clamp", lambda x: x.clamp(-1, 1), lambda x: jnp.clip(x, -1, 1)),
    Case("where", lambda x, y, m: torch.where(m, x, y), lambda x, y, m: jnp.where(m, x, y), [TOKENS, TOKENS], _mask),
    Case("masked_fill", lambda x, m: x.masked_fill(m, -1), lambda x, m: jnp.where(m, -1, x), [TOKENS], _mask),
    # Reductions
    _unary("sum", lambda x: x.sum(-1), lambda x: x.sum(-1)),
    _unary("sum, of all", lambda x: x.sum(), lambda x: x.sum()),
    _unary("mean", lambda x: x.mean(1), lambda x: x.mean(1)),
    _unary("amax", lambda x: x.amax(-1), lambda x: x.max(-1)),
    _unary("var", lambda x: x.var(-1), lambda x: x.var(-1, ddof=1)),
    _unary("norm", lambda x: torch.linalg.vector_norm(x), lambda x: jnp.sqrt(jnp.square(x).sum())),
    _unary("logsumexp", lambda x: x.logsumexp(-1), lambda x: jax.nn.logsumexp(x, -1)),
    _unary("cumsum", lambda x: x.cumsum(1), lambda x: x.cumsum(1)),
    _unary("argmax", lambda x: x.argmax(-1), lambda x: x.argmax(-1), gradient=False),
    _unary("sort", lambda x: x.sort(-1).values, lambda x: jnp.sort(x, -1), gradient=False),
    _unary("topk", lambda x: x.topk(8).values, lambda x: lax.top_k(x, 8)[0], gradient=False),
    # Losses
    Case("cross_entropy", F.cross_entropy, _cross_entropy, [LOGITS], _indices(1024)),
    Case("mse_loss", F.mse_loss, lambda x, y: jnp.square(x - y).mean(), [TOKENS, TOKENS]),
    Case("binary_cross_entropy_with_logits", lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid()),
         lambda x, y: (jax.nn.softplus(x) - x * jax.nn.sigmoid(y)).mean(), [TOKENS, TOKENS]),
    # Moving
    Case("embedding", lambda w, i: F.embedding(i, w), lambda w, i: w[i], [TABLE], _indices(8, 256)),
    Case("index_select", lambda w, i: w.index_select(0, i), lambda w, i: w[i], [TABLE], _indices(2048)),
    Case("gather", lambda x, i: x.gather(1, i), lambda x, i: jnp.take_along_axis(x, i, 1), [LOGITS],
         _indices(1024, 256)),
    Case("scatter_add", lambda x, y, i: x.scatter_add(0, i[:, None].expand_as(y), y), lambda x, y, i: x.at[i].add(y),
         [TABLE, (2048, 512)], _indices(2048)),
    Case("cat", lambda x, y: torch.cat([x, y], -1), lambda x, y: jnp.concatenate([x, y], -1), [TOKENS, TOKENS]),
    Case("stack", lambda x, y: torch.stack([x, y]), lambda x, y: jnp.stack([x, y]), [TOKENS, TOKENS]),
    _unary("transpose, contiguous", lambda x: x.transpose(1, 2).contiguous(), lambda x: x.swapaxes(1, 2) + 0),
    _unary("permute of heads, contiguous", lambda x: x.view(8, 256, 8, 64).permute(0, 2, 1, 3).contiguous(),
           lambda x: x.reshape(8, 256, 8, 64).transpose(0, 2, 1, 3) + 0),
    _unary("pad", lambda x: F.pad(x, (8, 8)), lambda x: jnp.pad(x, ((0, 0), (0, 0), (8, 8)))),
    _unary("roll", lambda x: x.roll(3, 1), lambda x: jnp.roll(x, 3, 1)),
    _unary("tril", lambda x: x.tril(), lambda x: jnp.tril(x)),
)  # fmt: skip
