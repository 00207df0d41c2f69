"""What is run for long: training steps, and tensors made and freed in every way that a program has."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch
from torch import nn

from .leak import DEVICE

TENSORS_A_TURN = 100


def training() -> Callable[[], None]:
    """One step of a small MLP with AdamW on a fresh batch from the host; every tenth reads its loss."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Dropout(0.1), nn.Linear(64, 10)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10_000)
    done = 0

    def step() -> None:
        nonlocal done
        x, y = torch.randn(16, 32).to(DEVICE), torch.randint(10, (16,)).to(DEVICE)
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        done += 1
        if done % 10 == 0 and not loss.item() < 100:
            raise AssertionError(f"the loss is {loss.item()} after {done} steps")

    return step


def churn() -> Callable[[], None]:
    """`TENSORS_A_TURN` tensors: uploaded, drawn, computed, viewed, read. 32 live at a time, so a turn frees as many."""
    kept: deque[torch.Tensor] = deque(maxlen=32)

    def turn() -> None:
        for i in range(TENSORS_A_TURN // 5):
            n = 1 + i % 4
            uploaded = torch.full((n, 8), float(n)).to(DEVICE)
            drawn = torch.randn(n, 8, device=DEVICE)
            computed = uploaded + drawn
            view = computed[:, 2:]
            written = torch.zeros(n, 8, device=DEVICE)
            written[:, :6] = view
            kept.extend([uploaded, drawn, computed, view, written])
        if not kept[-1].isfinite().all().item():
            raise AssertionError("a tensor has what was never put there")

    return turn
