"""What spawned processes of the tests run: it must be importable by name."""

from __future__ import annotations

from typing import Any

import torch


def double_on_device(device: str, x: torch.Tensor, results: Any) -> None:
    """Put twice `x`, computed on the device, on a queue: as numbers, which outlive this process."""
    results.put((x.to(device) * 2).tolist())
