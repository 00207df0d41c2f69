"""How DTensor placements shard a tensor."""

from __future__ import annotations

import sys
from typing import Any

import torch


def placements_of(tensor: torch.Tensor) -> tuple[torch.Tensor, tuple[tuple[str, int], ...]]:
    """The tensor itself (of a DTensor, the local one) and (mesh axis, dimension) of each `Shard`."""
    module: Any = sys.modules.get("torch.distributed.tensor")  # no DTensor without it, and it takes long to import
    if module is None or not isinstance(tensor, module.DTensor):
        return tensor, ()
    axes = tensor.device_mesh.mesh_dim_names or [f"dim{d}" for d in range(tensor.device_mesh.ndim)]
    sharded = [
        (axis, placement.dim)
        for axis, placement in zip(axes, tensor.placements, strict=True)
        if isinstance(placement, (module.Shard, module.placement_types._StridedShard))  # FSDP2's, of what tp has cut
    ]
    return tensor.to_local(), tuple(sharded)
