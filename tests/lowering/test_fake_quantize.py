"""Fake quantization and its gradients agree with CPU PyTorch."""

from __future__ import annotations

import pytest
import torch

from .check import check

aten = torch.ops.aten
X = torch.linspace(-3.3, 4.1, 24).reshape(2, 3, 4)
SCALES, ZEROS = torch.tensor([0.1, 0.02, 0.03]), torch.tensor([3, -2, 0], dtype=torch.int32)


def test_per_tensor_and_per_channel_grids_agree() -> None:
    check(aten.fake_quantize_per_tensor_affine_cachemask.default, X, 0.02, 3, -128, 127)
    check(aten.fake_quantize_per_channel_affine_cachemask.default, X, SCALES, ZEROS, 1, -128, 127)
    check(aten.fake_quantize_per_channel_affine_cachemask.default, X, SCALES, ZEROS.float(), 1, 0, 255)


@pytest.mark.parametrize("enabled", [0, 1])
def test_a_grid_given_by_tensors_can_be_switched_off(enabled: int) -> None:
    op = aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default
    check(op, X, SCALES[:1], ZEROS[:1], torch.tensor([enabled]), -128, 127)


def test_a_learnable_grid_and_its_gradients_agree() -> None:
    grad, zeros = torch.randn(X.shape), ZEROS.float() + 0.4
    check(aten._fake_quantize_learnable_per_tensor_affine.default, X, SCALES[:1], zeros[:1], -128, 127, 0.5)
    check(aten._fake_quantize_learnable_per_channel_affine.default, X, SCALES, zeros, 1, -128, 127, 0.5)
    check(
        aten._fake_quantize_learnable_per_tensor_affine_backward.default,
        grad, X, SCALES[:1], zeros[:1], -128, 127, 0.5, rtol=1e-4, atol=1e-4,
    )  # fmt: skip
    check(
        aten._fake_quantize_learnable_per_channel_affine_backward.default,
        grad, X, SCALES, zeros, 1, -128, 127, 0.5, rtol=1e-4, atol=1e-4,
    )  # fmt: skip
