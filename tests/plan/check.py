"""A small network, its training step, and a tape's program run on the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from torch_pjrt.plan.program import program, signature
from torch_pjrt.plan.tape import Tape
from torch_pjrt.plan.trace import fake_mode, trace_step

Step = Callable[..., Any]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Layers(nn.Module):
    """Token ids (N, T) to logits (N, T, 11)."""

    def __init__(self, layers: int = 5, remat: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.head = nn.Linear(8, 11)
        self.remat = remat

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.remat else block(x)
        return self.head(x)


def training(model: nn.Module) -> tuple[Step, list[torch.Tensor], torch.optim.Optimizer]:
    """A step of SGD with momentum (its update has no step count), its inputs, its optimizer."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    ids = torch.randint(0, 11, (4, 6))

    def step(ids: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), wanted.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step, [ids, torch.randint(0, 11, (4, 6))], optimizer


def tape_of(step: Step, inputs: Sequence[Any]) -> Tape:
    return trace_step(step, inputs, fake_mode())


def run(tape: Tape, content: dict[str, torch.Tensor], roll: bool = True) -> dict[str, np.ndarray]:
    """Run a tape's program on tensors by the names of its storages: their new content, and "returned 0", ..."""
    called = signature(tape, roll)

    def array(group: tuple[int, ...]) -> np.ndarray:
        found = [content[tape.storages[n].name].detach().numpy() for n in group]
        return found[0] if len(found) == 1 else np.stack(found)

    with jax.enable_x64(True):
        results = jax.jit(lambda arrays: program(tape, called)(arrays, [], None))([array(g) for g in called.inputs])
    named: dict[str, np.ndarray] = {}
    for group, result in zip(called.outputs, results, strict=True):
        for i, number in enumerate(group):
            made = tape.storages[number].role == "made"
            name = f"returned {tape.returned.index(number)}" if made else tape.storages[number].name
            named[name] = np.asarray(result if len(group) == 1 else result[i])
    return named


def contents(model: nn.Module, inputs: Sequence[torch.Tensor], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What a training step works on, by the names that a tape gives it."""
    found: dict[str, Any] = {f"argument {i}": x for i, x in enumerate(inputs)}
    for name, parameter in model.named_parameters():
        found[name] = parameter
        found |= {f"{name} ({k})": v for k, v in optimizer.state[parameter].items()}
    return found
