"""Architectures of `timm` with small random weights: the compiled model's outputs, gradients, buffers are the CPU's.

Minutes; `make architectures` runs it. Not collected by `make test`, which has no timm.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from .check import check_architecture
from .torchvision_ops import import_torchvision

import_torchvision()
import timm  # noqa: E402  (torchvision comes before it)

VIT: dict[str, Any] = {"img_size": 32, "embed_dim": 32, "depth": 2, "num_heads": 2}
STAGES: dict[str, Any] = {"embed_dim": 8, "depths": (2, 2), "num_heads": (2, 2), "img_size": 32}

# timm's name of a model -> what makes it small.
CASES: dict[str, dict[str, Any]] = {
    "test_convnext": {},
    "convnextv2_atto": {"depths": (1, 1, 1, 1), "dims": (8, 16, 24, 32)},
    "test_efficientnet": {},
    "test_efficientnet_evos": {},
    "mobilenetv2_050": {},
    "mobilenetv3_small_050": {},
    "mobilenetv4_conv_small_035": {},
    "ghostnet_050": {},
    "test_resnet": {},
    "seresnext26t_32x4d": {"layers": (1, 1, 1, 1), "cardinality": 4, "base_width": 4},
    "resnetv2_50": {"layers": (1, 1, 1, 1), "channels": (16, 16, 32, 32), "stem_chs": 8},
    "test_nfnet": {},
    "test_byobnet": {},
    "regnety_002": {},
    "densenet121": {"growth_rate": 8, "block_config": (1, 1, 2, 1)},
    "swin_tiny_patch4_window7_224": {**STAGES, "patch_size": 2, "window_size": 4},
    "swinv2_tiny_window8_256": {**STAGES, "patch_size": 2, "window_size": 4},
    "vit_tiny_patch16_224": VIT,
    "test_vit3": {"img_size": 32, "depth": 2},
    "test_vit_relpos": {"img_size": 32, "depth": 2},
    "deit_tiny_distilled_patch16_224": VIT,
    "deit3_small_patch16_224": VIT,
    "beit_base_patch16_224": VIT,
    "eva02_tiny_patch14_224": {**VIT, "patch_size": 8},
    "cait_xxs24_224": VIT,
    "xcit_nano_12_p16_224": VIT,
    "test_maxvit": {"img_size": 64},
    "test_coatnet": {"img_size": 64},
    "pvt_v2_b0": {"embed_dims": (8, 16, 16, 16), "depths": (1, 1, 1, 1), "num_heads": (1, 2, 2, 2)},
    "edgenext_xx_small": {"dims": (8, 16, 24, 32), "depths": (1, 2, 2, 2), "heads": (2, 2, 2, 2)},
    "efficientvit_b0": {},
    "levit_128s": {"img_size": 64},
    "test_mambaout": {},
}


def image(shape: dict[str, Any]) -> dict[str, torch.Tensor]:
    size = shape.get("img_size", 64)
    return {"x": torch.randn(2, 3, size, size)}


@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients_are_the_cpus(name: str) -> None:
    torch.manual_seed(0)
    net = timm.create_model(name, num_classes=7, **CASES[name]).eval()
    check_architecture(net, image(CASES[name]), lambda out: out)
