"""What every worker with a model does around its own step: the first steps, then timed blocks on demand."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..models import MODELS, Batch, batches
from . import STARTED
from .channel import Channel, Memory


@dataclass(frozen=True)
class Program:
    """A program under test, that trains or infers.

    Attributes:
        step: takes a host batch and returns what it gives, still on its device: a loss, without waiting for it, or
            logits that are there.
        read: waits for that and returns it as a number: the loss, or the mean square of the logits.
        wait: waits until all that was asked of the device is done.
        counters: the backend's own counts, if it has any (compilations, fallbacks).
    """

    step: Callable[[Batch], object]
    read: Callable[[Any], float]
    wait: Callable[[], None]
    counters: Callable[[], dict[str, object]] = field(default=dict)


Weights = dict[str, npt.NDArray[np.generic]]


def arguments() -> argparse.Namespace:
    return argument_parser().parse_args()


def argument_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("backend")
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--weights", required=True, help="the initial state_dict as .npz")
    return parser


def serve(start: Callable[[], None], build: Callable[[str, Weights], Program], options: argparse.Namespace) -> None:
    """Start the device, build the program, take 3 steps, report; then a block of N steps for each `steps N` received.

    The first step's time begins when the imports are done and the device is started, as its memory's baseline does;
    it covers building the model, moving it over, tracing, compiling, and ends with what the step gives on the host.
    """
    channel = Channel()
    imported = time.perf_counter()
    start()
    memory = Memory()
    started = time.perf_counter()
    with np.load(options.weights) as file:
        program = build(options.model, dict(file))
    data = batches(options.model)
    given = [program.read(program.step(data[0]))]
    program.wait()
    first = time.perf_counter()
    given += [program.read(program.step(data[i])) for i in (1, 2)]
    channel.send(
        import_s=imported - STARTED,
        start_s=started - imported,
        first_step_s=first - started,
        after_first_s=time.perf_counter() - first,
        given=given,
    )
    program.step(data[3])
    program.wait()
    peak = memory.peak()
    memory.reset()
    for command, *rest in channel.commands():
        if command == "steps":
            channel.send(ms=timed_block(program, data, int(rest[0])))
        elif command == "memory":
            steady = memory.peak()
            channel.send(peak_mb=max(peak, steady), steady_mb=steady, counters=program.counters())
        else:
            raise ValueError(f"a worker knows 'steps N' and 'memory', not {command!r}")


def timed_block(program: Program, data: list[Batch], count: int) -> float:
    """Milliseconds per step of `count` steps as a loop runs them: one wait, at the end."""
    begin = time.perf_counter()
    for i in range(count):
        program.step(data[i % len(data)])
    program.wait()
    return (time.perf_counter() - begin) / count * 1e3
