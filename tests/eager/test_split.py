"""A trace that shares most of its nodes with an earlier one runs as pieces, and gives the same values."""

from __future__ import annotations

import torch

DEVICE = torch._C._get_privateuse1_backend_name()


def loop(device: str, turns: int) -> list[list[float]]:
    """A long chain with run-time scalars, a storage that grows in the middle, and one tensor longer at each turn."""
    h, grown = torch.ones(4, device=device), torch.zeros(1, device=device)
    seen = []
    for _ in range(turns):
        for i in range(60):
            h = h * 0.5 + 0.25 * (i % 3)
        buffer = torch.ones(2, device=device)
        buffer.add_(0.5).resize_(3).mul_(2.0)
        for i in range(60):
            h = h * 0.5 + 0.125 * (i % 5)
        grown = torch.cat([grown, h[:1]])
        seen.append([*h.tolist(), *grown.tolist(), *buffer[:2].tolist()])
    return seen


def test_a_loop_whose_tensors_grow_gives_the_values_of_the_cpu() -> None:
    for got, want in zip(loop(DEVICE, 4), loop("cpu", 4), strict=True):
        torch.testing.assert_close(torch.tensor(got), torch.tensor(want))
