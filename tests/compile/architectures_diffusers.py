"""Architectures of `diffusers` with small random weights: outputs and gradients of the compiled model are the CPU's.

Minutes; `make architectures` runs it. Not collected by `make test`, which has no diffusers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from .check import check_architecture
from .torchvision_ops import import_torchvision

import_torchvision()
import diffusers  # noqa: E402  (torchvision comes before it)

HEADS = {"num_attention_heads": 2, "attention_head_dim": 8}
PATCHES = {**HEADS, "in_channels": 4, "num_layers": 2, "sample_size": 8, "patch_size": 2}
UNET = {"sample_size": 8, "layers_per_block": 1, "block_out_channels": (8, 16), "norm_num_groups": 4}


def latent(channels: int = 4) -> torch.Tensor:
    return torch.randn(2, channels, 8, 8)


def prompt(width: int = 16) -> torch.Tensor:
    return torch.randn(2, 5, width)


def steps() -> torch.Tensor:
    return torch.tensor([1, 800])


CASES: dict[str, tuple[dict[str, Any], Callable[[], dict[str, Any]]]] = {
    "UNet2DModel": (
        {**UNET, "down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "attention_head_dim": 4,
         "up_block_types": ("AttnUpBlock2D", "UpBlock2D")},
        lambda: {"sample": latent(3), "timestep": steps()},
    ),
    "UNet2DConditionModel": (
        {**UNET, "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"), "attention_head_dim": 4,
         "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"), "cross_attention_dim": 16},
        lambda: {"sample": latent(), "timestep": steps(), "encoder_hidden_states": prompt()},
    ),
    "DiTTransformer2DModel": (
        {**PATCHES, "num_embeds_ada_norm": 1000},
        lambda: {"hidden_states": latent(), "timestep": steps(), "class_labels": torch.tensor([3, 7])},
    ),
    "PixArtTransformer2DModel": (
        {**PATCHES, "caption_channels": 12, "cross_attention_dim": 16, "use_additional_conditions": False},
        lambda: {
            "hidden_states": latent(),
            "encoder_hidden_states": prompt(12),
            "timestep": steps(),
            "encoder_attention_mask": torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]),
        },
    ),
    "SD3Transformer2DModel": (
        {**PATCHES, "joint_attention_dim": 16, "caption_projection_dim": 16, "pooled_projection_dim": 12},
        lambda: {
            "hidden_states": latent(),
            "encoder_hidden_states": prompt(),
            "pooled_projections": torch.randn(2, 12),
            "timestep": steps(),
        },
    ),
    "FluxTransformer2DModel": (
        {"patch_size": 1, "in_channels": 4, "num_layers": 1, "num_single_layers": 1, **HEADS,
         "joint_attention_dim": 16, "pooled_projection_dim": 12, "axes_dims_rope": (2, 2, 4)},
        lambda: {
            "hidden_states": torch.randn(2, 16, 4),
            "encoder_hidden_states": prompt(),
            "pooled_projections": torch.randn(2, 12),
            "timestep": torch.tensor([0.1, 0.8]),
            "img_ids": torch.cartesian_prod(torch.zeros(1), torch.arange(4.0), torch.arange(4.0)),
            "txt_ids": torch.zeros(5, 3),
        },
    ),
    "WanTransformer3DModel": (
        {"patch_size": (1, 2, 2), **HEADS, "in_channels": 4, "out_channels": 4, "text_dim": 16, "freq_dim": 8,
         "ffn_dim": 32, "num_layers": 2, "rope_max_seq_len": 16},
        lambda: {"hidden_states": torch.randn(2, 4, 2, 4, 4), "encoder_hidden_states": prompt(), "timestep": steps()},
    ),
    "AutoencoderKL": (
        {"block_out_channels": (8, 16), "norm_num_groups": 4, "latent_channels": 4,
         "down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2},
        lambda: {"sample": torch.randn(2, 3, 16, 16)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients_are_the_cpus(name: str) -> None:
    torch.manual_seed(0)
    shape, make = CASES[name]
    net = getattr(diffusers, name)(**shape).eval()
    check_architecture(net, make(), lambda out: out.sample)
