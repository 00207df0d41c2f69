"""The model that checkpoints.py saves and loads, as the test that asks for it knows it too."""

from __future__ import annotations

import torch
from torch import nn


def model(number: int) -> nn.Sequential:
    """On the CPU. Its first dimensions divide by no number of ranks; it is large enough for a save to be caught at."""
    torch.manual_seed(number)
    return nn.Sequential(nn.Linear(37, 1999), nn.BatchNorm1d(1999), nn.Linear(1999, 1501))
