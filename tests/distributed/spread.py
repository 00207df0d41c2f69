"""What the devices hold of a tensor that lies over four of them."""

from __future__ import annotations

from torch import Tensor
from torch.distributed.tensor import DTensor

from torch_pjrt import _C


def parts(t: Tensor) -> set[tuple[int, ...]]:
    """The shapes of what the devices hold."""
    local = t.to_local() if isinstance(t, DTensor) else t
    array = _C.array(local.detach())
    assert len(array.sharding.device_set) == 4
    return {shard.data.shape for shard in array.addressable_shards}


def whole(t: Tensor) -> Tensor:
    return (t.full_tensor() if isinstance(t, DTensor) else t).detach().cpu()
