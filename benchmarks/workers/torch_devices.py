"""What differs between the backends that run an unmodified PyTorch program: the device string and how to wait."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from .training import Program, Weights, arguments, serve


@dataclass(frozen=True)
class TorchDevice:
    """A device under test.

    Attributes:
        device: its string.
        end_step: what a program on it must call after each step.
        wait: for all work.
        compiler: the backend of `torch.compile` for it.
        counters: the backend's own counts.
    """

    device: str
    end_step: Callable[[], None]
    wait: Callable[[], None]
    compiler: str = "inductor"
    counters: Callable[[], dict[str, object]] = field(default=dict)


def open_device(backend: str) -> TorchDevice:
    """Start `cpu`, `pjrt` (torch-pjrt, fused eager) or `xla` (torch_xla, lazy)."""
    # Every PyTorch optimizer imports it (1.5 s): an import like the others, not a part of the first step.
    importlib.import_module("torch._dynamo")
    if backend == "cpu":
        return TorchDevice("cpu", _nothing, _nothing)
    if backend == "pjrt":
        device = torch.pjrt  # type: ignore[attr-defined]
        torch.ones(1, device="pjrt").cpu()
        return TorchDevice("pjrt", _nothing, device.synchronize, "pjrt", device.metrics)
    if backend == "xla":
        return _open_torch_xla()
    raise ValueError(f"backend is cpu, pjrt or xla, not {backend!r}")


def _open_torch_xla() -> TorchDevice:
    # Only the peer's own environment has these.
    import torch_xla  # type: ignore[import-not-found]
    import torch_xla.core.xla_model as xm  # type: ignore[import-not-found]
    import torch_xla.debug.metrics as metrics  # type: ignore[import-not-found]

    def counters() -> dict[str, object]:
        compiled = metrics.metric_data("CompileTime")
        fallbacks = {name: metrics.counter_value(name) for name in metrics.counter_names() if name.startswith("aten::")}
        return {"executables_compiled": compiled[0] if compiled else 0, "fallbacks": fallbacks}

    torch.ones(1, device=torch_xla.device()).cpu()
    return TorchDevice("xla", torch_xla.sync, xm.wait_device_ops, "openxla", counters)


def serve_on_device(build: Callable[[str, Weights, TorchDevice], Program]) -> None:
    """`training.serve` for a program that `build` makes of a model's name, its weights and the device."""
    options = arguments()
    if options.backend == "xla":
        importlib.import_module("torch_xla")
    devices: list[TorchDevice] = []
    serve(
        lambda: devices.append(open_device(options.backend)),
        lambda model, weights: build(model, weights, devices[0]),
        options,
    )


def _nothing() -> None:
    """The CPU is always done."""
