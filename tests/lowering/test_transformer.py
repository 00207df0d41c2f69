"""PyTorch's transformer layers in inference, which take one fused op per layer, agree with CPU PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from ..conftest import DEVICE
from .check import check

aten = torch.ops.aten
module = getattr(torch, DEVICE)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("mask", ["none", "padding", "causal"])
def test_an_encoder_layer_agrees(mask: str, activation: str, norm_first: bool) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, activation=activation, norm_first=norm_first, batch_first=True).eval()
    x = torch.randn(3, 5, 16)
    options: dict[str, Any] = {}
    if mask == "padding":
        options["src_key_padding_mask"] = torch.arange(5) >= torch.tensor([[5], [3], [4]])
    if mask == "causal":
        options["src_mask"] = torch.ones(5, 5, dtype=torch.bool).triu(1)
    with torch.no_grad():
        expected = layer(x, **options)
        got = layer.to(DEVICE)(x.to(DEVICE), **{k: v.to(DEVICE) for k, v in options.items()})
    torch.testing.assert_close(got.cpu(), expected, rtol=1e-4, atol=1e-5)
    assert module.metrics()["fallbacks"] == {}


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("need_weights", [False, True])
def test_attention_and_its_weights_agree(need_weights: bool, average: bool) -> None:
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    x = torch.randn(2, 5, 16)
    with torch.no_grad():
        expected = attention(x, x, x, need_weights=need_weights, average_attn_weights=average)
        given = x.to(DEVICE)
        got = attention.to(DEVICE)(given, given, given, need_weights=need_weights, average_attn_weights=average)
    torch.testing.assert_close(got[0].cpu(), expected[0], rtol=1e-4, atol=1e-5)
    assert (got[1] is None) == (expected[1] is None)
    if need_weights:
        torch.testing.assert_close(got[1].cpu(), expected[1], rtol=1e-4, atol=1e-5)
    assert module.metrics()["fallbacks"] == {}


def test_masked_softmax_and_its_gradient_agree() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 4, 4)
    keep_one = torch.rand(2, 3, 4, 4) > 0.5
    keep_one[..., 0] = False
    check(aten._masked_softmax.default, x, keep_one, 3, 2)
    check(aten._masked_softmax.default, x, keep_one, 1, 2)
    check(aten._masked_softmax.default, x, torch.ones(4, 4, dtype=torch.bool).triu(1), 3, 0)
    check(aten._masked_softmax.default, x, torch.tensor([[False, True, False, False]] * 2), 3, 1)
    everything = torch.zeros(2, 3, 4, 4, dtype=torch.bool)
    everything[0, 0, 0] = True
    check(aten._masked_softmax.default, x, everything, 3, 2)
    y = aten._masked_softmax.default(x, keep_one, 3, 2)
    check(aten._masked_softmax_backward.default, torch.randn(2, 3, 4, 4), y, keep_one, 3)


def test_the_projections_of_all_heads_agree() -> None:
    check(aten._transform_bias_rescale_qkv.default, torch.randn(2, 3, 24), torch.randn(24), 4)
