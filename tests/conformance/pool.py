"""Worker processes: one that crashes or hangs costs a row, and its remaining work goes to a fresh one."""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from .units import Unit

# A worker's compiled programs stay with it; beyond this resident size a fresh one takes over.
MEMORY_LIMIT = 3 << 30


@dataclass(slots=True)
class Job:
    """A unit with the variants still to be tried, and how many samples of each."""

    unit: Unit
    variants: list[tuple[str, int | None]]


@dataclass(slots=True)
class _Worker:
    process: BaseProcess
    pipe: Connection
    job: Job | None = None
    since: float = field(default_factory=time.monotonic)


def run(jobs: list[Job], workers: int, timeout: float, done: Callable[[dict[str, Any]], None]) -> None:
    """Work through the jobs; `done` gets each row as it comes.

    Args:
        jobs: what to do, in order.
        workers: processes at once.
        timeout: seconds that one variant of a unit may take.
        done: called in this process.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.conformance.batch", "tests.conformance.preload"])
    waiting = list(reversed(jobs))
    alive: list[_Worker] = []
    try:
        while waiting or any(w.job for w in alive):
            while waiting and len(alive) < workers:
                alive.append(_start(context))
            for worker in alive:
                if worker.job is None and waiting:
                    _give(worker, waiting.pop())
            ready = wait([w.pipe for w in alive], timeout=1)
            for worker in list(alive):
                if worker.pipe in ready:
                    if not _receive(worker, done):
                        alive.remove(worker)
                        _lost(worker, "the process died", waiting, done)
                elif worker.job is not None and time.monotonic() - worker.since > timeout:
                    worker.process.kill()
                    alive.remove(worker)
                    _lost(worker, f"no result within {timeout:.0f} s", waiting, done)
    finally:
        for worker in alive:
            worker.process.kill()
            worker.process.join()


def _start(context: Any) -> _Worker:
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    return _Worker(process, ours)


def _give(worker: _Worker, job: Job) -> None:
    worker.job, worker.since = job, time.monotonic()
    worker.pipe.send((job.unit, job.variants))


def _receive(worker: _Worker, done: Callable[[dict[str, Any]], None]) -> bool:
    """Take one message; False if the process is gone."""
    try:
        row = worker.pipe.recv()
    except (EOFError, ConnectionResetError):
        return False
    worker.since = time.monotonic()
    if row is None:
        worker.job = None
    elif row == "full":
        worker.job = None
        return False
    else:
        assert worker.job is not None
        worker.job.variants.pop(0)
        done(row)
    return True


def _lost(worker: _Worker, why: str, waiting: list[Job], done: Callable[[dict[str, Any]], None]) -> None:
    worker.process.join(5)
    if worker.job is None:
        return
    code = worker.process.exitcode
    (variant, _), *rest = worker.job.variants
    unit = worker.job.unit
    message = f"{why} (exit status {code})"
    done(
        {
            "database": unit.database, "op": unit.op, "dtype": unit.dtype, "variant": variant,
            "counts": {"raises": 1}, "reasons": {}, "fallbacks": {}, "closer": 0, "seconds": 0,
            "failures": [{"status": "raises", "sample": "?", "message": message}],
        }
    )  # fmt: skip
    if rest:
        waiting.append(Job(unit, rest))


def _serve(pipe: Connection) -> None:
    """A worker's life: units come in, one row per variant goes out, then None."""
    os.environ["TORCH_PJRT_FALLBACK"] = "silent"
    faulthandler.enable()  # a crash says on the terminal where it was
    import torch

    from . import batch

    torch.set_num_threads(1)
    while True:
        with contextlib.suppress(EOFError):
            unit, variants = pipe.recv()
            for variant, limit in variants:
                pipe.send(_row(batch, unit, variant, limit))
            if _resident() > MEMORY_LIMIT:
                pipe.send("full")
                return
            pipe.send(None)
            continue
        return


def _row(batch: Any, unit: Unit, variant: str, limit: int | None) -> dict[str, Any]:
    try:
        row: dict[str, Any] = batch.run(unit, variant, limit).as_json()
        return row
    except Exception as error:
        row = batch.Row(unit, variant)
        row.add("raises", "?", f"outside of any case: {type(error).__name__}: {error}")
        made: dict[str, Any] = row.as_json()
        return made


def _resident() -> int:
    with open("/proc/self/statm") as stream:
        return int(stream.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
