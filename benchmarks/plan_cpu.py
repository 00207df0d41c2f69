"""What `torch-pjrt plan` says of steps on this machine's CPU, beside what they do here: `docs/plan-accuracy.md`.

    python -m benchmarks.plan_cpu [--repeat 20] [--only NAME]

Memory is what XLA plans for the step as one program, against the device's highest figure while the step runs. XLA:CPU
estimates no time; the time that is planned is the roofline, with this machine's own speeds: those of one product of two
2048 x 2048 matrices and of one addition over 256 MiB, measured in the same run, before and after.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch
from torch import nn

import torch_pjrt  # noqa: F401
from torch_pjrt.plan import plan

DEVICE = torch._C._get_privateuse1_backend_name()
Made = tuple[Callable[..., Any], Sequence[torch.Tensor]]


def training(model: nn.Module, x: torch.Tensor) -> Made:
    """A step of AdamW on the mean square of what the model returns."""
    model.to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())

    def step(x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step, [x.to(DEVICE)]


def wide() -> Made:
    """Two large layers: products are most of it."""
    return training(nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)), torch.randn(1024, 1024))


def transformer() -> Made:
    """Four encoder layers of width 256 over 8 x 256 tokens."""
    layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
    return training(nn.TransformerEncoder(layer, 4), torch.randn(8, 256, 256))


def pointwise() -> Made:
    """One pass over 64 MiB, and its sum."""

    def step(x: torch.Tensor) -> torch.Tensor:
        return (x * 2 + 1).relu()

    return step, [torch.randn(4096, 4096).to(DEVICE)]


STEPS: dict[str, Callable[[], Made]] = {"wide": wide, "transformer": transformer, "pointwise": pointwise}


def seconds_of(step: Callable[..., Any], inputs: Sequence[torch.Tensor], repeat: int) -> float:
    """The median time of a step, with a wait after each."""
    accelerator = getattr(torch, DEVICE)
    taken = []
    for _ in range(repeat + 3):
        began = time.perf_counter()
        held = step(*inputs)  # what nobody holds is not computed
        accelerator.synchronize()
        taken.append(time.perf_counter() - began)
        del held
    return median(taken[3:])


def speeds(repeat: int) -> tuple[float, float]:
    """(floating-point operations a second of a product, bytes a second of an addition)."""
    a = torch.randn(2048, 2048).to(DEVICE)
    x = torch.randn(64 << 20).to(DEVICE)
    product = seconds_of(lambda: a @ a, [], repeat)
    addition = seconds_of(lambda: x + 1, [], repeat)
    return 2 * 2048**3 / product, 2 * x.nbytes / addition


def main() -> None:
    """Plan and run each step, and print them side by side."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--only", action="append", default=[])
    asked = parser.parse_args()
    accelerator = getattr(torch, DEVICE)
    before = speeds(asked.repeat)
    rows = []
    for name, make in STEPS.items():
        if asked.only and name not in asked.only:
            continue
        step, inputs = make()
        row = plan(step, inputs, topology="cpu").rows[0]
        assert row.memory is not None, row.failure
        step(*inputs)
        accelerator.synchronize()
        accelerator.reset_peak_memory_stats()
        seconds = seconds_of(step, inputs, asked.repeat)
        rows.append((name, row, seconds, accelerator.max_memory_allocated()))
        del step, inputs
    after = speeds(asked.repeat)
    flops, bandwidth = (max(a, b) for a, b in zip(before, after, strict=True))
    print(f"{flops / 1e9:.0f} GFLOP/s, {bandwidth / 1e9:.1f} GB/s; before and after {before}, {after}")
    for name, row, seconds, peak in rows:
        roofline = max(row.flops / flops, row.nbytes / bandwidth)
        print(
            f"{name:12} memory planned {row.memory.total / 2**20:8.1f} MiB, measured {peak / 2**20:8.1f} MiB; "
            f"time planned {roofline * 1e3:7.1f} ms ({'products' if roofline * flops == row.flops else 'memory'}), "
            f"measured {seconds * 1e3:7.1f} ms"
        )


if __name__ == "__main__":
    main()
