"""What a device is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .devices import index_of


@dataclass(frozen=True, slots=True)
class DeviceProperties:
    """Facts about one device.

    Attributes:
        name: the chip's kind as its plugin says ("cpu", "TPU v6 lite", "NVIDIA H200").
        platform: the PJRT platform ("cpu", "tpu", "cuda").
        total_memory: bytes.
        process_index, local_hardware_id: where the device sits.
    """

    name: str
    platform: str
    total_memory: int
    process_index: int
    local_hardware_id: int | None


def get_device_properties(device: Any = None) -> DeviceProperties:
    """The properties of a device (index, string, torch.device or None for the current one)."""
    from ..runtime.memory import memory_info
    from ..runtime.meshes import devices_of

    index = index_of(device)
    d = devices_of(index)[0]  # a mesh's are of one kind
    return DeviceProperties(d.device_kind, d.platform, memory_info(index)[1], d.process_index, d.local_hardware_id)


def get_device_name(device: Any = None) -> str:
    """The chip's kind, e.g. "TPU v6 lite"."""
    return get_device_properties(device).name


def get_device_capability(device: Any = None) -> dict[str, Any]:
    """The dtypes the device can hold, as `{"supported_dtypes": set}`."""
    from ..lowering.dtypes import SUPPORTED

    return {"supported_dtypes": set(SUPPORTED)}


def can_device_access_peer(device: Any, peer_device: Any) -> bool:
    """Whether tensors can be copied from one device to the other without the host: between any two different ones."""
    from ..runtime.meshes import devices_of

    index, peer = index_of(device), index_of(peer_device)
    for i in (index, peer):
        devices_of(i)
    return index != peer


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes that torch.autocast may compute in."""
    return [torch.bfloat16, torch.float16]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether bfloat16 tensors compute: everywhere, since XLA has the type on all platforms."""
    return True
