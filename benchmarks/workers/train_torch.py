"""Train a model with PyTorch as a user writes it, on CPU, torch-pjrt or torch_xla: `train_torch.py cpu --model mlp`."""

from __future__ import annotations

import os

import torch
import torch.nn.functional as F

from ..models import LEARNING_RATE, Batch, build
from .torch_devices import TorchDevice, serve_on_device
from .training import Program, Weights


def program(name: str, weights: Weights, target: TorchDevice) -> Program:
    """The training loop's body with `torch.optim.AdamW`'s defaults."""
    model = build(name)
    model.load_state_dict({key: torch.from_numpy(value) for key, value in weights.items()})
    model.to(target.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(x).flatten(0, -2), y.flatten())

    forward = loss_of
    if os.environ.get("BENCH_COMPILE") == "whole":
        forward = torch.compile(loss_of, backend=target.compiler, options={"whole_step": True})
    elif os.environ.get("BENCH_COMPILE"):
        forward = torch.compile(loss_of, backend=target.compiler)

    def step(batch: Batch) -> torch.Tensor:
        x, y = (torch.from_numpy(array).to(target.device) for array in batch)
        optimizer.zero_grad()
        loss = forward(x, y)
        loss.backward()
        optimizer.step()
        target.end_step()
        return loss.detach()

    return Program(step, float, target.wait, target.counters)


if __name__ == "__main__":
    serve_on_device(program)
