"""A small net in training on the device, to be compared with itself where forward, backward and update are programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ..conftest import DEVICE

module = getattr(torch, DEVICE)
WHOLE, PARTS = {"whole_step": True}, {"whole_step": False}


class Net(nn.Module):
    """Draws, has statistics, looks rows up."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(12, 16)
        self.body = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Dropout(0.25), nn.BatchNorm1d(16), nn.Linear(16, 3))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.body(self.table(rows))
        return made


@dataclass
class Training:
    """A net in training on the device, compiled with `options`."""

    options: dict[str, Any]
    optimizer: str = "AdamW"
    settings: dict[str, Any] = field(default_factory=dict)
    losses: list[torch.Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        self.net = Net().to(DEVICE)
        self.forward = torch.compile(self.net, backend="pjrt", options=self.options)
        self.optim = getattr(torch.optim, self.optimizer)(self.net.parameters(), lr=1e-2, **self.settings)
        self.rows = (torch.arange(24) * 7 % 12).to(DEVICE)
        self.target = (torch.arange(24) % 3).to(DEVICE)

    def loss(self) -> torch.Tensor:
        return nn.functional.cross_entropy(self.forward(self.rows), self.target)

    def step(self) -> None:
        self.optim.zero_grad()
        loss = self.loss()
        loss.backward()
        self.optim.step()
        self.losses.append(loss.detach())

    def state(self) -> dict[str, torch.Tensor]:
        """All that training changes, on the CPU."""
        found = {f"loss {i}": loss for i, loss in enumerate(self.losses)} | self.net.state_dict()
        for name, parameter in self.net.named_parameters():
            found |= {f"{name} {key}": t for key, t in self.optim.state[parameter].items()}
            if parameter.grad is not None:
                found[f"{name} grad"] = parameter.grad
        return {name: t.detach().cpu() for name, t in found.items() if isinstance(t, torch.Tensor)}


def equal(whole: Training, parts: Training, rtol: float = 1e-4, atol: float = 1e-6) -> None:
    ours, theirs = whole.state(), parts.state()
    assert ours.keys() == theirs.keys()
    for name, t in theirs.items():
        torch.testing.assert_close(ours[name], t, rtol=rtol, atol=atol, msg=lambda m, n=name: f"{n}: {m}")


def both(train: Callable[[Training], None], **settings: Any) -> Training:
    """The training as one program a step, once it is the same as in parts."""
    parts = Training(PARTS, **settings)
    train(parts)
    torch._dynamo.reset()
    assert not module.compiler.report().steps
    whole = Training(WHOLE, **settings)
    train(whole)
    equal(whole, parts)
    return whole


def steps() -> list[tuple[list[str], int]]:
    """Of each program of several graphs, or of a graph and ops: the graphs' kinds, and how many ops."""
    return [([g.kind for g in s.graphs], s.ops) for s in module.compiler.report().steps]


def compiled() -> int:
    return int(module.metrics()["executables_compiled"])


def plain(training: Training) -> None:
    for _ in range(4):
        training.step()
