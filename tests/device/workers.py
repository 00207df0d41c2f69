"""What spawned processes of the tests run: it must be importable by name."""

from __future__ import annotations

from typing import Any

import torch


def double_on_device(device: str, x: torch.Tensor, results: Any) -> None:
    """Put twice `x`, computed on the device, on a queue: as numbers, which outlive this process."""
    results.put((x.to(device) * 2).tolist())


class Rows(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Two rows; `what`: "returns" them on the device, "touches" the device for them, or neither."""

    def __init__(self, device: str, what: str) -> None:
        self.device = device
        self.what = what

    def __len__(self) -> int:
        return 2

    def __getitem__(self, i: int) -> torch.Tensor:
        row = torch.full((3,), float(i))
        if self.what == "returns":
            return row.to(self.device)
        return (row.to(self.device) + 1).cpu() if self.what == "touches" else row


def to_device(rows: list[torch.Tensor]) -> dict[str, list[torch.Tensor]]:
    """A collate function that moves the batch, as programs for one process do."""
    name = torch._C._get_privateuse1_backend_name()
    return {"rows": [r.to(name) for r in rows]}
