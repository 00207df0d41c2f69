"""A multilayer perceptron, 784-2048-2048-10: 5.8 M parameters, nearly all of its time in three matmuls and AdamW."""

from __future__ import annotations

import torch
from torch import nn


class MLP(nn.Module):
    """float32[N, 784] -> logits float32[N, 10]."""

    def __init__(self, width: int = 2048) -> None:
        super().__init__()
        self.fc1 = nn.Linear(784, width)
        self.fc2 = nn.Linear(width, width)
        self.fc3 = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.fc1(x))
        x = torch.relu(self.fc2(x))
        return self.fc3(x)
