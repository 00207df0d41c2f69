"""Time the dispatch of small ops without the wait for their results: `record_ops.py cpu`, then a case per line."""

from __future__ import annotations

import gc
import importlib
import sys
import time
from collections.abc import Callable

import torch

from .channel import Channel
from .torch_devices import TorchDevice, open_device

OPS_PER_CALL = {"add": 1, "chain": 10, "view_prepared": 1, "view_each_time": 1}


def main(backend: str) -> None:
    channel = Channel()
    if backend == "xla":
        importlib.import_module("torch_xla")
    target = open_device(backend)
    cases = make_cases(target.device if backend != "xla" else str(torch.ones(1, device="xla").device))
    for case in cases.values():
        for _ in range(5):  # compile what there is to compile, fill every cache
            block(case, 20, target)
    channel.send(ready=True, torch=torch.__version__)
    for name, count in channel.commands():
        calls = max(1, int(count) // OPS_PER_CALL[name])
        channel.send(us=block(cases[name], calls, target) / OPS_PER_CALL[name])


def make_cases(device: str) -> dict[str, Callable[[], object]]:
    """Name -> one call of the case."""
    a = torch.rand(4, 4).to(device)
    b = torch.rand(4, 4).to(device)
    x = torch.rand(4, 4).to(device)
    view = x[1:3]

    def add() -> torch.Tensor:
        return a + b

    def chain() -> torch.Tensor:
        y = a + b
        y = y * b
        y = torch.relu(y)
        y = y - a
        y = torch.tanh(y)
        y = y * 0.5
        y = -y
        y = torch.exp(y)
        y = y + 1.0
        return y / b

    def view_prepared() -> None:
        view.add_(1.0)

    def view_each_time() -> None:
        x[1:3].add_(1.0)

    return {"add": add, "chain": chain, "view_prepared": view_prepared, "view_each_time": view_each_time}


def block(case: Callable[[], object], calls: int, target: TorchDevice) -> float:
    """Microseconds per call of `calls` calls, whose results are all alive until the end, as a program's are."""
    target.wait()
    results: list[object] = [None] * calls
    gc.collect()
    gc.disable()
    begin = time.perf_counter()
    for i in range(calls):
        results[i] = case()
    spent = time.perf_counter() - begin
    gc.enable()
    target.end_step()
    target.wait()
    return spent / calls * 1e6


if __name__ == "__main__":
    main(sys.argv[1])
