"""Small models of many architectures: outputs, gradients and buffers are the CPU's."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from .check import check_module


class Residual(nn.Module):
    """Convolutions, batch norms and pooling with skips: a ResNet's parts."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
        self.block = nn.Sequential(nn.Conv2d(8, 8, 3, 1, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 1))
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = F.relu(x + self.block(x))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class UNet(nn.Module):
    """Down, up, concatenated skips, group norms and SiLU: a diffusion model's parts."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(2, 8, 3, 2, 1)
        self.middle = nn.Sequential(nn.GroupNorm(2, 8), nn.SiLU(), nn.Conv2d(8, 8, 3, 1, 1))
        self.up = nn.ConvTranspose2d(8, 4, 2, 2)
        self.out = nn.Conv2d(6, 2, 3, 1, 1)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        h = self.down(x)
        h = h + self.middle(h) * t.sin()[:, None, None, None]
        h = F.interpolate(h, scale_factor=2, mode="bilinear")[..., ::2, ::2]
        return self.out(torch.cat([self.up(h), x], 1))


class GPT(nn.Module):
    """Learned positions, causal attention in one fused projection, tied head."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(17, 16), nn.Embedding(12, 16)
        self.norm, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)
        self.mlp = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        q, k, v = (t.unflatten(-1, (2, 8)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        x = x + self.mlp(x)
        return F.cross_entropy(F.linear(x, self.tokens.weight)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru = nn.LSTM(5, 6, batch_first=True), nn.GRUCell(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, (h, _) = self.lstm(x)
        return self.gru(y[:, -1] + h[0])


class Mixture(nn.Module):
    """Two of four experts per token, dispatched by a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(8, 4)
        self.up, self.down = nn.Parameter(torch.randn(4, 8, 16) * 0.2), nn.Parameter(torch.randn(4, 16, 8) * 0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.router(x).softmax(-1).topk(2)
        gates = torch.zeros(*x.shape[:-1], 4, device=x.device).scatter(-1, chosen, weights)
        h = F.silu(torch.einsum("bd,edh->beh", x, self.up))
        return torch.einsum("beh,ehd,be->bd", h, self.down, gates)


class Graph(nn.Module):
    """Message passing over an edge list by index_add."""

    def __init__(self) -> None:
        super().__init__()
        self.message = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        sent = self.message(x)[edges[0]].relu()
        return torch.zeros_like(x).index_add(0, edges[1], sent) + x


OWN = {
    "mlp": (lambda: nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)), lambda: (torch.randn(4, 6),)),
    "resnet": (Residual, lambda: (torch.randn(2, 3, 16, 16),)),
    "unet": (UNet, lambda: (torch.randn(2, 2, 8, 8), torch.rand(2))),
    "gpt": (GPT, lambda: (torch.randint(17, (2, 9)),)),
    "lstm and gru": (Recurrent, lambda: (torch.randn(2, 4, 5),)),
    "mixture of experts": (Mixture, lambda: (torch.randn(5, 8),)),
    "graph network": (Graph, lambda: (torch.randn(5, 6), torch.randint(5, (2, 8)))),
    "transformer encoder": (
        lambda: nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True),
        lambda: (torch.randn(2, 5, 16),),
    ),
}


@pytest.mark.parametrize("name", OWN)
def test_own_models_train_as_on_the_cpu(name: str) -> None:
    torch.manual_seed(0)
    make, inputs = OWN[name]
    # Dynamo leaves nn.LSTM to eager, whatever the backend.
    check_module(make(), *inputs(), rtol=1e-3, atol=1e-4, fullgraph="lstm" not in name)


SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 61}
TEXT = "input_ids"
# architecture -> (configuration class, model class, its settings, what it reads)
TRANSFORMERS = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", {**SMALL, "num_key_value_heads": 2}, TEXT),
    "mistral": ("MistralConfig", "MistralForCausalLM", {**SMALL, "num_key_value_heads": 2, "sliding_window": 4}, TEXT),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {**SMALL, "num_key_value_heads": 2, "head_dim": 8}, TEXT),
    "qwen3 moe": (
        "Qwen3MoeConfig",
        "Qwen3MoeForCausalLM",
        {
            **SMALL, "num_key_value_heads": 2, "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
        },
        TEXT,
    ),
    "gemma": ("GemmaConfig", "GemmaForCausalLM", {**SMALL, "num_key_value_heads": 2, "head_dim": 8}, TEXT),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 61}, TEXT),
    "bert": ("BertConfig", "BertForMaskedLM", SMALL, TEXT),
    "t5": (
        "T5Config",
        "T5ForConditionalGeneration",
        {
            "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "vocab_size": 61,
            "decoder_start_token_id": 0,
        },
        "text to text",
    ),
    "mamba": (
        "MambaConfig",
        "MambaForCausalLM",
        {"hidden_size": 16, "num_hidden_layers": 2, "vocab_size": 61, "state_size": 4},
        TEXT,
    ),
    "vit": ("ViTConfig", "ViTForImageClassification", {**SMALL, "image_size": 16, "patch_size": 8}, "pixel_values"),
    "convnext": (
        "ConvNextConfig",
        "ConvNextForImageClassification",
        {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2},
        "pixel_values",
    ),
    "swin": (
        "SwinConfig",
        "SwinForImageClassification",
        {"image_size": 32, "embed_dim": 8, "depths": [2, 1], "num_heads": [2, 2], "window_size": 4},
        "pixel_values",
    ),
    "clip": (
        "CLIPConfig",
        "CLIPModel",
        {
            "text_config": {**SMALL, "max_position_embeddings": 16},
            "vision_config": {**SMALL, "image_size": 16, "patch_size": 8},
            "projection_dim": 16,
        },
        "text and image",
    ),
    "whisper": (
        "WhisperConfig",
        "WhisperForConditionalGeneration",
        {
            "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4,
            "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "vocab_size": 61,
            "num_mel_bins": 8, "max_source_positions": 10, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
            "decoder_start_token_id": 1,
        },
        "sound to text",
    ),
}  # fmt: skip


class Called(nn.Module):
    """A transformers model as a function of tensors: its logits, or its loss."""

    def __init__(self, model: nn.Module, reads: str) -> None:
        super().__init__()
        self.model, self.reads = model, reads
        # A key-value cache is one more output, which the test has no use for.
        self.cacheless = {"use_cache": False} if reads == TEXT and hasattr(model.config, "use_cache") else {}

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        match self.reads:
            case "text to text":
                return self.model(input_ids=inputs[0], labels=inputs[1]).loss
            case "text and image":
                return self.model(input_ids=inputs[0], pixel_values=inputs[1]).logits_per_image
            case "sound to text":
                return self.model(input_features=inputs[0], labels=inputs[1]).loss
        return self.model(inputs[0], **self.cacheless).logits


def inputs_of(reads: str, image: int) -> tuple[torch.Tensor, ...]:
    ids = torch.randint(3, 61, (2, 7))
    pixels = torch.randn(2, 3, image, image)
    return {
        TEXT: (ids,),
        "text to text": (ids, ids[:, :5].contiguous()),
        "pixel_values": (pixels,),
        "text and image": (ids, pixels),
        "sound to text": (torch.randn(2, 8, 20), ids[:, :5].contiguous()),
    }[reads]


@pytest.mark.slow
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_transformers_models_train_as_on_the_cpu(name: str) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers comes with the demo's packages")
    configuration, model, settings, reads = TRANSFORMERS[name]
    torch.manual_seed(0)
    config = getattr(transformers, configuration)(**settings)
    for dropout in [d for d in vars(config) if "drop" in d and isinstance(getattr(config, d), float)]:
        setattr(config, dropout, 0.0)
    net = getattr(transformers, model)(config).train()
    image = settings.get("image_size", 16)
    check_module(Called(net, reads), *inputs_of(reads, image), rtol=2e-3, atol=2e-4)
