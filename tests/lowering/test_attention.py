from typing import Any

import jax
import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from torch_pjrt.lowering import Spec, apply

from ..conftest import DEVICE
from .check import check, to_cpu, to_jax

aten = torch.ops.aten
FORWARD = aten._scaled_dot_product_fused_attention_overrideable.default
BACKWARD = aten._scaled_dot_product_fused_attention_overrideable_backward.default
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def operands(kv_heads: int = 4, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [
        torch.randn(2, 4, 5, 8, dtype=dtype),
        torch.randn(2, kv_heads, 7, 8, dtype=dtype),
        torch.randn(2, kv_heads, 7, 6, dtype=dtype),
    ]


def bias_of(kind: str | None) -> torch.Tensor | None:
    if kind == "bool":
        mask = torch.rand(2, 1, 5, 7) > 0.4
        mask[0, 0, 2] = False
        return mask
    return torch.randn(4, 5, 7) if kind == "float" else None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("kind", [None, "bool", "float"])
def test_attention_agrees_with_cpu(dtype: torch.dtype, kind: str | None) -> None:
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else CLOSE
    bias = bias_of(kind)
    if kind == "float":
        bias = bias.to(dtype)
    check(aten.scaled_dot_product_attention.default, *operands(dtype=dtype), bias, **tolerance)


@pytest.mark.parametrize("options", [{"is_causal": True}, {"scale": 0.3}, {"enable_gqa": True}])
def test_attention_options_agree_with_cpu(options: dict[str, Any]) -> None:
    args = operands(2 if "enable_gqa" in options else 4)
    check(aten.scaled_dot_product_attention.default, *args, **options, **CLOSE)
    check(aten.scaled_dot_product_attention.default, *(t[0, 0] for t in operands()), **CLOSE)


def run(args: list[Any], shapes: list[tuple[tuple[int, ...], torch.dtype]], op: Any, **kwargs: Any) -> list[Any]:
    key = jax.numpy.arange(1, 5, dtype=np.uint32)
    with jax.enable_x64(True):
        arrays = [to_jax(a) if isinstance(a, torch.Tensor) else a for a in args]
        return [to_cpu(t) for t in apply(op, arrays, kwargs, [Spec(*s) for s in shapes], key)]


def forward(args: list[Any], dropout_p: float = 0.0, is_causal: bool = False) -> list[torch.Tensor]:
    scalar = ((), torch.int64)
    shapes = [((2, 4, 5, 6), torch.float32), ((2, 4, 5), torch.float32), scalar, scalar]
    return run([*args, dropout_p, is_causal], shapes, FORWARD)


@pytest.mark.parametrize(("kind", "causal", "kv_heads"), [(None, True, 4), ("float", False, 4), (None, False, 2)])
def test_fused_attention_and_its_gradient_are_autograd_of_attention(
    kind: str | None, causal: bool, kv_heads: int
) -> None:
    bias = bias_of(kind)
    leaves = [t.requires_grad_() for t in [*operands(kv_heads), *([bias] if bias is not None else [])]]
    want = scaled_dot_product_attention(*leaves[:3], bias, is_causal=causal, enable_gqa=True)
    out, logsumexp, seed, offset = forward([*leaves[:3], bias], is_causal=causal)
    torch.testing.assert_close(out, want.detach(), **CLOSE)
    grad = torch.randn_like(out)
    expected = torch.autograd.grad(want, leaves, grad)
    rest = [bias, [True] * 4, out, logsumexp, None, None, 5, 7, 0.0, causal, seed, offset]
    got = run([grad, *leaves[:3], *rest], [(tuple(g.shape), g.dtype) for g in expected], BACKWARD)
    for g, w in zip(got, expected, strict=True):
        torch.testing.assert_close(g, w, **CLOSE)


def test_logsumexp_is_that_of_the_scores() -> None:
    q, k, v = operands()
    _, logsumexp, _, _ = forward([q, k, v, None])
    torch.testing.assert_close(logsumexp, (q @ k.mT / 8**0.5).logsumexp(-1), **CLOSE)


def test_attention_dropout_keeps_its_rate_and_its_gradient_draws_the_same_mask() -> None:
    q, k = torch.zeros(2, 4, 64, 8), torch.zeros(2, 4, 64, 8)
    v = torch.eye(64).expand(2, 4, 64, 64)  # the output is then the dropped-out probabilities themselves
    scalar = ((), torch.int64)
    shapes = [((2, 4, 64, 64), torch.float32), ((2, 4, 64), torch.float32), scalar, scalar]
    out, logsumexp, seed, offset = run([q, k, v, None, 0.25, False], shapes, FORWARD)
    kept = out != 0
    torch.testing.assert_close(out[kept], torch.full_like(out[kept], 1 / 64 / 0.75))
    assert abs(kept.double().mean() - 0.75) < 0.01
    rest = [None, [True] * 4, out, logsumexp, None, None, 64, 64, 0.25, False, seed, offset]
    grad = torch.randn_like(out)
    shapes = [(tuple(t.shape), torch.float32) for t in (q, k, v)]
    _, _, grad_v = run([grad, q, k, v, *rest], shapes, BACKWARD)
    torch.testing.assert_close(grad_v, out.mT @ grad, **CLOSE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("bias", [None, "float", "bool"])
def test_efficient_attention_and_its_gradients_are_those_of_the_formula(dtype: torch.dtype, bias: str | None) -> None:
    drawn = torch.Generator().manual_seed(0)
    shapes = [(2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 6), (2, 4, 5, 6)]
    query, key, value, grad = (torch.randn(s, generator=drawn, dtype=torch.float64).to(dtype) for s in shapes)
    mask = torch.randn(2, 1, 5, 7, generator=drawn, dtype=torch.float64) if bias else None
    if bias == "bool" and mask is not None:
        mask = mask > -1
    exact = [t.double().requires_grad_() for t in (query, key, value)]
    given = mask.double().requires_grad_() if bias == "float" and mask is not None else mask
    wanted = torch.nn.functional.scaled_dot_product_attention(*exact, attn_mask=given, scale=0.3)
    leaves = [*exact, given] if bias == "float" else exact
    wanted_grads = torch.autograd.grad(wanted, leaves, grad.double())
    there = [t.to(DEVICE) for t in (query, key, value)]
    added = None if mask is None else mask.to(DEVICE, dtype if bias == "float" else torch.bool)
    op = torch.ops.aten._scaled_dot_product_efficient_attention
    out, logsumexp, seed, offset = op(*there, added, True, 0.0, False, scale=0.3)
    assert logsumexp.shape == (2, 4, 5)
    got = torch.ops.aten._scaled_dot_product_efficient_attention_backward(
        grad.to(DEVICE),
        *there,
        added,
        out,
        logsumexp,
        seed,
        offset,
        0.0,
        [True, True, True, bias == "float"],
        scale=0.3,
    )
    tolerance = 5e-2 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(out.cpu().double(), wanted.detach(), rtol=tolerance, atol=tolerance)
    for g, w in zip(got, wanted_grads, strict=False):
        torch.testing.assert_close(g.cpu().double(), w, rtol=tolerance, atol=tolerance)
