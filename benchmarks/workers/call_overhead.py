"""What a compiled call costs beyond its program: `call_overhead.py pjrt`, then `ARGUMENTS ROUNDS` a line.

One sum of small tensors, called in four ways that take turns: compiled by this backend; as JAX's executable of the same
function on the same arrays; compiled by a backend that computes nothing, which is what Dynamo's guards and AOTAutograd
take; and nothing at all, the loop itself.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import jax
import torch
from torch._dynamo.backends.common import aot_autograd

from .channel import Channel

CALLS = 200


def main(device: str) -> None:
    channel = Channel()
    module = getattr(torch, device)
    channel.send(ready=True)
    for arguments, rounds in channel.commands():
        channel.send(**measure(module, device, int(arguments), int(rounds)))


def measure(module: Any, device: str, count: int, rounds: int) -> dict[str, float]:
    """Medians of microseconds per call: `compiled`, `executable`, `pytorch`, and `overhead`, of the differences."""
    torch._dynamo.reset()  # type: ignore[attr-defined]
    tensors = [torch.rand(8).to(device) for _ in range(count)]
    module.synchronize()
    arrays = [module.to_jax(t) for t in tensors]

    def total(*xs: Any) -> Any:
        sums = xs[0] * 2
        for x in xs[1:]:
            sums = sums + x
        return sums

    # Dynamo keeps what it compiled on the code object, and looks through all of it.
    alone = FunctionType(total.__code__.replace(co_name="alone"), globals())
    executable = jax.jit(total).lower(*arrays).compile()
    ways: dict[str, tuple[Callable[..., Any], Sequence[Any]]] = {
        "compiled": (torch.compile(total, backend=device, fullgraph=True), tensors),
        "executable": (executable, arrays),
        "pytorch": (torch.compile(alone, backend=computes_nothing(tensors[0]), fullgraph=True), tensors),
        "loop": (lambda *xs: None, tensors),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    with torch.no_grad():
        for fn, given in ways.values():
            block(fn, given, module)
        for _ in range(rounds):
            for name, (fn, given) in ways.items():
                times[name].append(block(fn, given, module))
    told = {name: statistics.median(times[name]) for name in ("compiled", "executable")}
    told["overhead"] = statistics.median(a - b for a, b in zip(times["compiled"], times["executable"], strict=True))
    told["pytorch"] = statistics.median(a - b for a, b in zip(times["pytorch"], times["loop"], strict=True))
    return told


def computes_nothing(result: torch.Tensor) -> Callable[..., Any]:
    """A backend whose graphs return `result` and do nothing."""

    def compiler(graph: Any, inputs: Any) -> Callable[[list[Any]], list[Any]]:
        def call(args: list[Any]) -> list[Any]:
            args.clear()
            return [result]

        call._boxed_call = True  # type: ignore[attr-defined]
        return call

    return aot_autograd(fw_compiler=compiler)


def block(fn: Callable[..., Any], given: Sequence[Any], module: Any) -> float:
    """Microseconds of the calling thread's CPU time per call of `CALLS` calls, whose results nobody waits for."""
    gc.collect()
    gc.disable()
    begin = time.thread_time()
    for _ in range(CALLS):
        result = fn(*given)
    spent = time.thread_time() - begin
    gc.enable()
    del result
    module.synchronize()
    return spent / CALLS * 1e6


if __name__ == "__main__":
    main(sys.argv[1])
