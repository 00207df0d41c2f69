"""The devices themselves: how many, which is current, waiting for them."""

from __future__ import annotations

import sys
from typing import Any

import torch

from .. import _C


def index_of(device: Any = None) -> int:
    """The index that a device argument means: None is the current device; "pjrt:1", torch.device and 1 are as usual.

    Raises ValueError for a device of another type.
    """
    if device is None:
        return _C.current_device()
    if isinstance(device, int):
        return device
    device = torch.device(device)
    name = torch._C._get_privateuse1_backend_name()
    if device.type != name:
        raise ValueError(f"expected a {name} device, got {device}")
    return _C.current_device() if device.index is None else device.index


def is_available() -> bool:
    """Whether there is at least one device. Starts no client unless nothing cheaper can tell."""
    return device_count() > 0


def is_initialized() -> bool:
    """Whether this process has used the device."""
    client = _client()
    return client is not None and bool(client.started())


def init() -> None:
    """Start the PJRT client now instead of at first use."""
    from ..runtime.client import devices

    devices()


def device_count() -> int:
    """How many devices of the platform this process sees."""
    return _C.device_count()


def current_device() -> int:
    """The index of the current device of this thread."""
    return _C.current_device()


def set_device(device: Any) -> None:
    """Make `device` (index, string or torch.device) current for this thread."""
    _C.set_device(index_of(device))


class device:
    """Context manager: `device` is current inside the `with` block.

    Example:
        >>> with torch.pjrt.device(1):
        ...     x = torch.empty(3, device="pjrt")  # on pjrt:1
    """

    def __init__(self, device: Any) -> None:
        self.index = index_of(device)
        self.previous = -1

    def __enter__(self) -> None:
        self.previous = _C.current_device()
        if self.index >= 0:
            _C.set_device(self.index)

    def __exit__(self, *exc: object) -> None:
        _C.set_device(self.previous)


class device_of(device):
    """Context manager: the device of a tensor is current; a tensor elsewhere changes nothing."""

    def __init__(self, obj: torch.Tensor) -> None:
        ours = obj.device.type == torch._C._get_privateuse1_backend_name()
        super().__init__(obj.device.index if ours else -1)


def synchronize(device: Any = None) -> None:
    """Run what is recorded for a device and wait until it is done."""
    _C.synchronize(index_of(device))


def ipc_collect() -> None:
    """There is nothing to collect: raises NotImplementedError, since PJRT shares no device memory between processes."""
    raise NotImplementedError(
        "PJRT shares no device memory between processes, so there is none to collect. Send CPU tensors "
        "(tensor.cpu()) to other processes, or let each process make its own"
    )


def in_bad_fork() -> bool:
    """Whether this is a forked child of a process that had started the client: PJRT does not survive a fork."""
    client = _client()
    return client is not None and bool(client.started_before_fork())


def _client() -> Any:
    """The module of the PJRT client if something has imported it: JAX would come with it."""
    return sys.modules.get(f"{__package__.rpartition('.')[0]}.runtime.client")
