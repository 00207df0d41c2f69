"""`torch.<name>.compiler`: what torch.compile did for the device. PyTorch's own questions are in `torch.compiler`."""

from __future__ import annotations

from ..compile.report import Report, report, reset

__all__ = ["Report", "report", "reset"]
