"""Microseconds to record an op on the device, against CPU PyTorch's dispatch and torch_xla's lazy one."""

from __future__ import annotations

import statistics
from contextlib import ExitStack

from .process import Backend, Worker, WorkerError, number
from .report import Verdict, paired_ratio, save, table, turns, verdicts

CASES = {
    "add": "a + b, 4 x 4",
    "chain": "a chain of 10 ops",
    "view_prepared": "view.add_(1.0)",
    "view_each_time": "x[1:3].add_(1.0)",
}
OPS = 200  # few enough that no backend cuts its trace inside a block


def run(backends: list[Backend], rounds: int) -> None:
    """Every backend's worker is alive at once; they take turns, block by block, so that noise falls on all alike."""
    times: dict[str, dict[str, list[float]]] = {case: {} for case in CASES}
    with ExitStack() as stack:
        workers = start(stack, [b for b in backends if b.framework == "torch" and "BENCH_COMPILE" not in b.environment])
        for case in CASES:
            for order in turns(workers, rounds):
                for worker in order:
                    times[case].setdefault(worker.backend.name, []).append(number(worker.ask(f"{case} {OPS}"), "us"))
    names = [worker.backend.name for worker in workers]
    medians = {case: {name: statistics.median(times[case][name]) for name in names} for case in CASES}
    rows = [[CASES[case], *(f"{medians[case][name]:.2f}" for name in names)] for case in CASES]
    table(f"Recording: µs per op, median of {rounds} interleaved blocks of {OPS} ops", ["", *names], rows)
    found: list[Verdict] = []
    for case, text in CASES.items():
        for peer in ("cpu", "xla"):
            if {"pjrt", peer} <= set(names):
                ratio = paired_ratio(times[case]["pjrt"], times[case][peer])
                found.append(Verdict(f"{text}: pjrt / {peer}", ratio, 1.0))
    verdicts(found)
    save("record", {"us_per_op": medians, "rounds": rounds}, found)


def start(stack: ExitStack, backends: list[Backend]) -> list[Worker]:
    """The workers that start; each that doesn't is a printed line."""
    workers: list[Worker] = []
    for backend in backends:
        try:
            worker = stack.enter_context(Worker(backend, "record_ops"))
            worker.ask()
            workers.append(worker)
        except WorkerError as error:
            print(f"  left out: {error}")
    return workers
