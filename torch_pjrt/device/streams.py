"""Streams and events. A device runs in program order, whatever the stream: a stream is a name, and waiting is free.

Work on several streams is therefore right without any events, and with them; it does not overlap. What overlaps is the
host and the device, and transfers that PJRT makes on its own.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch

from .devices import index_of


def _device(device: Any) -> torch.device:
    return torch.device(torch._C._get_privateuse1_backend_name(), index_of(device))


class Stream(torch.Stream):
    """A stream of the device.

    Args:
        device: index, string, torch.device or None for the current one.
        priority: accepted and without effect.

    Example:
        >>> side = torch.pjrt.Stream()
        >>> with torch.pjrt.stream(side):
        ...     y = x + 1
        >>> torch.pjrt.current_stream().wait_stream(side)
    """

    def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> Stream:
        if "stream_id" in kwargs:
            return super().__new__(cls, priority=priority, **kwargs)
        return super().__new__(cls, _device(device), priority=priority)


class _EventsOfTheDevice(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        name = torch._C._get_privateuse1_backend_name()
        return isinstance(instance, torch.Event) and instance.device is not None and instance.device.type == name


class Event(metaclass=_EventsOfTheDevice):
    """A moment in the order of the program.

    Args:
        enable_timing: `elapsed_time` is wanted. Such an event waits, when it is recorded, until the device is done,
            because PJRT has no clock on the device; other events cost next to nothing.
        blocking: accepted; `synchronize` never spins.
        interprocess: not supported.

    Raises:
        NotImplementedError: interprocess is asked for.

    Example:
        >>> start, end = torch.pjrt.Event(enable_timing=True), torch.pjrt.Event(enable_timing=True)
        >>> start.record()
        >>> y = model(x)
        >>> end.record()
        >>> milliseconds = start.elapsed_time(end)
    """

    # A torch.Event itself, not of a class derived from it: elapsed_time takes no other.
    def __new__(  # type: ignore[misc]
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> torch.Event:
        if interprocess:
            raise NotImplementedError("events cannot be shared between processes: PJRT has none that can")
        return torch.Event(_device(None), enable_timing=enable_timing, blocking=blocking)


class StreamContext:
    """Context manager: `stream`, and its device, are current inside the `with` block. None changes nothing."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            self.stream.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.stream is not None:
            self.stream.__exit__(kind, error, traceback)


def stream(stream: torch.Stream | None) -> StreamContext:
    """A context manager that makes a stream current; see `StreamContext`."""
    return StreamContext(stream)


def current_stream(device: Any = None) -> torch.Stream:
    """This thread's stream on a device."""
    return torch.accelerator.current_stream(_device(device))


def default_stream(device: Any = None) -> Stream:
    """The stream that is current before any other was chosen."""
    d = _device(device)
    return Stream(stream_id=0, device_index=d.index, device_type=torch.accelerator.current_stream(d).device_type)


def set_stream(stream: torch.Stream | None) -> None:
    """Make a stream, and its device, current for this thread. None changes nothing."""
    if stream is not None:
        torch.accelerator.set_stream(stream)
