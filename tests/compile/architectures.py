"""Architectures of `transformers` with small random weights: outputs and gradients of the compiled model are the CPU's.

Minutes; `make architectures` runs it. Not collected by `make test`, which has no transformers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as hf

from ..conftest import DEVICE
from .check import check_architecture, same, same_gradients

WORDS = {"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
WIDE = {**WORDS, "intermediate_size": 32, "max_position_embeddings": 64}
GROUPED = {**WIDE, "num_key_value_heads": 1}
TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
PICTURE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
           "image_size": 16, "patch_size": 4}  # fmt: skip
BOTH = {f"{side}_{what}": n for side in ("encoder", "decoder")
        for what, n in (("layers", 2), ("attention_heads", 2), ("ffn_dim", 32))}  # fmt: skip


def text() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(3, 60, (2, 11))}


def pair() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(3, 60, (2, 11)), "decoder_input_ids": torch.randint(3, 60, (2, 7))}


def picture(size: int = 16) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(2, 3, size, size)}


Case = tuple[str, dict[str, Any], Callable[[], dict[str, torch.Tensor]]]
CASES: dict[str, Case] = {
    "GPT2LMHeadModel": (
        "GPT2Config",
        {"vocab_size": 60, "n_positions": 64, "n_embd": 16, "n_layer": 2, "n_head": 2, **TOKENS},
        text,
    ),
    "LlamaForCausalLM": ("LlamaConfig", {**GROUPED, **TOKENS}, text),
    "Qwen3ForCausalLM": ("Qwen3Config", {**GROUPED, "head_dim": 8, **TOKENS}, text),
    "Qwen3MoeForCausalLM": (
        "Qwen3MoeConfig",
        {**GROUPED, "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8, **TOKENS},
        text,
    ),
    "GemmaForCausalLM": ("GemmaConfig", {**GROUPED, "head_dim": 8, **TOKENS}, text),
    "MistralForCausalLM": ("MistralConfig", {**GROUPED, "sliding_window": 8, **TOKENS}, text),
    "PhiForCausalLM": ("PhiConfig", {**WIDE, **TOKENS}, text),
    "GPTNeoXForCausalLM": ("GPTNeoXConfig", {**WIDE, **TOKENS}, text),
    "OPTForCausalLM": (
        "OPTConfig",
        {**WORDS, "ffn_dim": 32, "word_embed_proj_dim": 16, "max_position_embeddings": 64, **TOKENS},
        text,
    ),
    "BloomForCausalLM": (
        "BloomConfig",
        {"vocab_size": 60, "hidden_size": 16, "n_layer": 2, "n_head": 2, **TOKENS},
        text,
    ),
    "FalconForCausalLM": ("FalconConfig", {**WORDS, **TOKENS}, text),
    "MambaForCausalLM": (
        "MambaConfig",
        {"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4, **TOKENS},
        text,
    ),
    "BertForMaskedLM": ("BertConfig", {**WIDE, **TOKENS}, text),
    "RobertaForMaskedLM": ("RobertaConfig", {**WIDE, **TOKENS}, text),
    "AlbertForMaskedLM": ("AlbertConfig", {**WIDE, "embedding_size": 8, **TOKENS}, text),
    "ElectraForMaskedLM": ("ElectraConfig", {**WIDE, "embedding_size": 8, **TOKENS}, text),
    "DistilBertForMaskedLM": (
        "DistilBertConfig",
        {"vocab_size": 60, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32, **TOKENS},
        text,
    ),
    "DebertaV2ForMaskedLM": (
        "DebertaV2Config",
        {**WIDE, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], **TOKENS},
        text,
    ),
    "T5ForConditionalGeneration": (
        "T5Config",
        {"vocab_size": 60, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2},
        pair,
    ),
    "BartForConditionalGeneration": ("BartConfig", {"vocab_size": 60, "d_model": 16, **BOTH, **TOKENS}, pair),
    "WhisperForConditionalGeneration": (
        "WhisperConfig",
        {
            "vocab_size": 60,
            "d_model": 16,
            **BOTH,
            "num_mel_bins": 8,
            "max_source_positions": 10,
            "decoder_start_token_id": 1,
            **TOKENS,
        },
        lambda: {"input_features": torch.randn(2, 8, 20), "decoder_input_ids": torch.randint(3, 60, (2, 7))},
    ),
    "Wav2Vec2ForCTC": (
        "Wav2Vec2Config",
        {
            **WIDE,
            "conv_dim": [8, 8],
            "conv_stride": [4, 2],
            "conv_kernel": [8, 4],
            "num_feat_extract_layers": 2,
            "num_conv_pos_embeddings": 4,
            "num_conv_pos_embedding_groups": 2,
            "apply_spec_augment": False,
        },
        lambda: {"input_values": torch.randn(2, 160)},
    ),
    "ViTForImageClassification": ("ViTConfig", PICTURE, picture),
    "DeiTForImageClassification": ("DeiTConfig", PICTURE, picture),
    "Dinov2ForImageClassification": ("Dinov2Config", PICTURE, picture),
    "CLIPVisionModel": ("CLIPVisionConfig", PICTURE, picture),
    "CLIPTextModel": ("CLIPTextConfig", {**WIDE, **TOKENS}, text),
    "ConvNextForImageClassification": (
        "ConvNextConfig",
        {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2},
        picture,
    ),
    "SwinForImageClassification": (
        "SwinConfig",
        {"image_size": 16, "patch_size": 2, "embed_dim": 8, "depths": [2, 2], "num_heads": [2, 2], "window_size": 4},
        picture,
    ),
    "ResNetForImageClassification": (
        "ResNetConfig",
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]},
        lambda: picture(32),
    ),
    "MobileNetV2ForImageClassification": (
        "MobileNetV2Config",
        {"image_size": 32, "depth_multiplier": 0.25},
        lambda: picture(32),
    ),
    "EfficientNetForImageClassification": (
        "EfficientNetConfig",
        {"image_size": 32, "width_coefficient": 0.25, "depth_coefficient": 0.1, "hidden_dim": 320},
        lambda: picture(32),
    ),
    "SegformerForImageClassification": (
        "SegformerConfig",
        {
            "hidden_sizes": [8, 8, 16, 16],
            "depths": [1, 1, 1, 1],
            "num_attention_heads": [1, 1, 2, 2],
            "decoder_hidden_size": 16,
        },
        lambda: picture(32),
    ),
}


def first(out: Any) -> torch.Tensor:
    """The logits, or the last hidden state of a model without a head."""
    for name in ("logits", "last_hidden_state"):
        if getattr(out, name, None) is not None:
            found: torch.Tensor = getattr(out, name)
            return found
    raise KeyError(f"{type(out).__name__} has neither logits nor a last hidden state")


@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients_are_the_cpus(name: str) -> None:
    torch.manual_seed(0)
    kind, shape, make = CASES[name]
    net = getattr(hf, name)(getattr(hf, kind)(**shape)).eval()
    check_architecture(net, make(), first, fullgraph=False)


# Without Mamba: Dynamo makes a graph for each length, as its scan is a Python loop without the CUDA kernels.
LENGTHS = [name for name in CASES if "CausalLM" in name or name == "GPT2LMHeadModel" or name == "BertForMaskedLM"]
LENGTHS.remove("MambaForCausalLM")


@pytest.mark.parametrize("name", LENGTHS)
def test_outputs_and_gradients_of_lengths_that_vary_are_the_cpus(name: str) -> None:
    torch.manual_seed(0)
    kind, shape, _ = CASES[name]
    net = getattr(hf, name)(getattr(hf, kind)(**shape)).eval()
    there = copy.deepcopy(net).to(DEVICE)
    compiled = torch.compile(there, backend="pjrt", fullgraph=True)
    for length in (21, 18, 23):  # of up to 32: padded to 25, 20 and 25
        ids = torch.randint(3, 60, (2, length))
        given = ids.to(DEVICE)
        # transformers makes another mask for less than a window, so Dynamo allows no range on both sides of that.
        torch._dynamo.mark_dynamic(given, 1, min=int(shape.get("sliding_window", 2)), max=32)
        net.zero_grad()
        there.zero_grad()
        expected, got = first(net(input_ids=ids)), first(compiled(input_ids=given))
        same(got, expected, rtol=1e-3, atol=1e-4)
        expected.square().mean().backward()
        got.square().mean().backward()
        same_gradients(there, net)
    if name == "Qwen3MoeForCausalLM":
        return  # how many tokens an expert gets is known from data only: parts of it run outside of programs
    graphs = getattr(torch, DEVICE).compiler.report().graphs
    assert [(g.kind, len(g.programs), g.not_padded) for g in graphs] == [("forward", 2, None), ("backward", 2, None)]
