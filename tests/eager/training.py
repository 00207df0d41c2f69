"""A small training loop on either device: the loss of each step, and the executables that each step compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

STEPS = 6
OptimizerMaker = Callable[[nn.Module], Optimizer]


@dataclass
class Run:
    """What a run of a loop left: the loss of each step, and how many executables each step compiled."""

    losses: list[float] = field(default_factory=list)
    compiled: list[int] = field(default_factory=list)


def mlp(device: str) -> nn.Module:
    """8 → 16 → 4, the same weights on every device; no biases, since Muon takes matrices only."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16, bias=False), nn.Tanh(), nn.Linear(16, 4, bias=False)).to(device)


def batches(device: str, steps: int = STEPS) -> Iterator[tuple[Tensor, Tensor]]:
    """A different batch of 4 for every step, the same on every device."""
    data = torch.Generator().manual_seed(1)
    for _ in range(steps):
        x = torch.randn(4, 8, generator=data)
        y = torch.randint(4, (4,), generator=data)
        yield x.to(device), y.to(device)


def follow(device: str, step: Callable[[Tensor, Tensor], Tensor], steps: int = STEPS) -> Run:
    """Call `step(x, y)`, which returns the loss, once a batch."""
    run = Run()
    module = getattr(torch, torch._C._get_privateuse1_backend_name())
    for x, y in batches(device, steps):
        before = module.metrics()["executables_compiled"]
        run.losses.append(step(x, y).item())
        run.compiled.append(module.metrics()["executables_compiled"] - before)
    return run


def check_steady(on_cpu: Run, on_device: Run, rtol: float = 1e-5) -> None:
    """The losses agree step by step, and nothing is compiled from step 3 on."""
    torch.testing.assert_close(torch.tensor(on_device.losses), torch.tensor(on_cpu.losses), rtol=rtol, atol=1e-6)
    assert on_device.losses[-1] != on_device.losses[0]
    assert on_device.compiled[2:] == [0] * (len(on_device.compiled) - 2), on_device.compiled
