"""BERT-base (Devlin et al. 2018) with its masked-language head: 110 M parameters, 12 post-norm layers, no dropout."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from .bert_shape import CONTEXT, EPS, HEADS, LAYERS, SEGMENTS, VOCABULARY, WIDTH


class Layer(nn.Module):
    """Self-attention over the whole sequence and a GELU MLP, a layer norm after each residual."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH)
        self.value = nn.Linear(WIDTH, WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)
        self.ln1 = nn.LayerNorm(WIDTH, EPS)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)
        self.ln2 = nn.LayerNorm(WIDTH, EPS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, t, _ = x.shape
        q, k, v = (
            part(x).view(n, t, HEADS, WIDTH // HEADS).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        y = F.scaled_dot_product_attention(q, k, v)
        x = self.ln1(x + self.proj(y.transpose(1, 2).reshape(n, t, WIDTH)))
        return self.ln2(x + self.down(F.gelu(self.up(x))))


class BERT(nn.Module):
    """int64[N, T] token ids -> logits float32[N, T, 30522]; one segment, and the head's matrix is the embedding's."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        self.segments = nn.Embedding(SEGMENTS, WIDTH)
        self.ln = nn.LayerNorm(WIDTH, EPS)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.transform = nn.Linear(WIDTH, WIDTH)
        self.head_ln = nn.LayerNorm(WIDTH, EPS)
        self.head_bias = nn.Parameter(torch.zeros(VOCABULARY))
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)
        x = self.ln(self.tokens(ids) + self.positions(places) + self.segments.weight[0])
        for layer in self.layers:
            x = layer(x)
        return F.linear(self.head_ln(F.gelu(self.transform(x))), self.tokens.weight, self.head_bias)
