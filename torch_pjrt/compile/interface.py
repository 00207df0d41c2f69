"""What Dynamo asks of a device."""

from __future__ import annotations

from typing import Any

import torch
from torch._dynamo.device_interface import DeviceInterface

from .. import _C
from ..device import devices, memory, properties


class Interface(DeviceInterface):
    """The device as Dynamo and Inductor see devices."""

    device = devices.device

    class Worker:
        """The same questions, asked from a compile worker: it has no device of its own to ask."""

        @staticmethod
        def set_device(device: int) -> None:
            _C.set_device(device)

        @staticmethod
        def current_device() -> int:
            return _C.current_device()

        @staticmethod
        def get_device_properties(device: torch.types.Device = None) -> Any:
            return properties.get_device_properties(device)

    @staticmethod
    def current_device() -> int:
        return _C.current_device()

    @staticmethod
    def set_device(device: torch.types.Device) -> None:
        devices.set_device(device)

    @staticmethod
    def exchange_device(device: int) -> int:
        before = _C.current_device()
        if device >= 0:
            _C.set_device(device)
        return before

    maybe_exchange_device = exchange_device

    @staticmethod
    def device_count() -> int:
        return devices.device_count()

    @staticmethod
    def is_available() -> bool:
        return devices.is_available()

    @staticmethod
    def synchronize(device: torch.types.Device = None) -> None:
        devices.synchronize(device)

    @staticmethod
    def get_compute_capability(device: torch.types.Device = None) -> str:
        return ""

    @staticmethod
    def is_bf16_supported(including_emulation: bool = False) -> bool:
        return True

    @staticmethod
    def memory_allocated(device: torch.types.Device = None) -> int:
        return memory.memory_allocated(device)
