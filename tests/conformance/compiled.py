"""Ops under torch.compile: a graph of the op alone (several, where Dynamo breaks it), its result and its gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from .case import Case
from .place import DEVICE, tensors
from .units import Unit
from .variants import Make, arguments, call, gradients, needs_backward, samples, undefined


def compiled_forward(unit: Unit, limit: int | None) -> Iterator[Case]:
    """The op's result."""
    for i, sample in samples(unit, limit):
        yield Case(
            str(i), arguments(unit, sample), call(unit, sample, _compiled(unit)), undefined=undefined(unit),
            also=call(unit, sample, _compiled(unit, "aot_eager")),
        )  # fmt: skip


def compiled_backward(unit: Unit, limit: int | None) -> Iterator[Case]:
    """Gradients of every differentiable argument, through the compiled op."""
    needs_backward(unit)
    for i, sample in samples(unit, limit, gradients=True):
        yield Case(
            str(i), arguments(unit, sample), gradients(unit, sample, _compiled(unit)),
            also=gradients(unit, sample, _compiled(unit, "aot_eager")),
        )  # fmt: skip


def _compiled(unit: Unit, on_cpu: str = "") -> Callable[..., Any]:
    """The op: on the device as a graph that is traced at the first call, on the CPU as it is or by backend `on_cpu`."""
    op = unit.info
    graphs: list[Callable[..., Any]] = []

    def program(x: Any, args: Any, kwargs: Any) -> Any:
        return op.op(x, *args, **kwargs)

    def called(x: Any, *args: Any, **kwargs: Any) -> Any:
        backend = "pjrt" if _on_device((x, args, kwargs)) else on_cpu
        if not backend:
            return op(x, *args, **kwargs)
        if not graphs:
            torch.compiler.reset()  # every case shares one code object, and Dynamo keeps few graphs of each
            graphs.append(torch.compile(program, backend=backend))
        return graphs[0](x, args, kwargs)

    return called


def _on_device(given: Any) -> bool:
    there = any(t.device.type == DEVICE for t in tensors(given))
    return there or torch.device(given[2].get("device", "cpu")).type == DEVICE


COMPILED_VARIANTS: dict[str, Make] = {"compiled": compiled_forward, "compiled_backward": compiled_backward}
