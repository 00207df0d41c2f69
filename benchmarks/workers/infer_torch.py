"""Run a compiled PyTorch model forward, on CPU, torch-pjrt or torch_xla: `infer_torch.py pjrt --model bert`."""

from __future__ import annotations

import torch

from ..models import Batch, build
from .torch_devices import TorchDevice, serve_on_device
from .training import Program, Weights


def program(name: str, weights: Weights, target: TorchDevice) -> Program:
    """A request at a time: the batch goes to the device, the logits are waited for there."""
    model = build(name).eval()
    model.load_state_dict({key: torch.from_numpy(value) for key, value in weights.items()})
    compiled = torch.compile(model.to(target.device), backend=target.compiler)

    @torch.no_grad()
    def step(batch: Batch) -> torch.Tensor:
        logits: torch.Tensor = compiled(torch.from_numpy(batch[0]).to(target.device))
        target.wait()
        return logits

    def read(logits: object) -> float:
        assert isinstance(logits, torch.Tensor)
        return logits.square().mean().item()

    return Program(step, read, target.wait, target.counters)


if __name__ == "__main__":
    serve_on_device(program)
