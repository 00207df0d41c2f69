"""One rank's collectives through torch.distributed: `collectives_torch.py pjrt|cpu`, then `OP BYTES COUNT WAIT` a line.

The answer is microseconds a call. BYTES are those of the whole: what is reduced, what is gathered, what is exchanged.
WAIT is "each", for a wait after every call, or "end", for one wait after all of them.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable

import torch
import torch.distributed as dist

from .channel import Channel

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def main(backend: str) -> None:
    channel = Channel()
    warnings.simplefilter("ignore", FutureWarning)  # names that only torch 2.13 calls old
    wait = start(backend)
    device = f"{backend}:{RANK}" if backend != "cpu" else "cpu"
    for op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        check(op, device)
    channel.send(ready=True)
    for op, nbytes, count, when in channel.commands():
        call, _ = collective(op, int(nbytes) // 4, device)
        for _ in range(2):
            call()
        wait()
        dist.barrier(device_ids=None if backend == "cpu" else [RANK])
        begin = time.perf_counter()
        for _ in range(int(count)):
            call()
            if when == "each":
                wait()
        wait()
        channel.send(us=(time.perf_counter() - begin) / int(count) * 1e6)


def start(backend: str) -> Callable[[], None]:
    """Join the group; returns what waits for the device."""
    if backend == "cpu":
        dist.init_process_group("gloo")
        return lambda: None
    torch.accelerator.set_device_index(RANK)
    dist.init_process_group(backend)
    wait: Callable[[], None] = torch.get_device_module(backend).synchronize
    return wait


def collective(op: str, n: int, device: str) -> tuple[Callable[[], object], torch.Tensor]:
    """A call of it on float32 tensors, the whole having n elements of the value 0; and where its result goes."""
    whole, part = torch.zeros(n, device=device), torch.zeros(n // SIZE, device=device)
    other = torch.zeros(n, device=device)
    if op == "all_reduce":
        return lambda: dist.all_reduce(whole), whole
    if op == "all_gather":
        return lambda: dist.all_gather_into_tensor(whole, part), whole
    if op == "reduce_scatter":
        return lambda: dist.reduce_scatter_tensor(part, whole), part
    return lambda: dist.all_to_all_single(other, whole), other


def check(op: str, device: str) -> None:
    """Raise unless it gives what it should of numbers that differ between ranks."""
    n = 4 * SIZE
    mine = torch.arange(n, dtype=torch.float32) + 100 * RANK
    all_of_them = [torch.arange(n, dtype=torch.float32) + 100 * r for r in range(SIZE)]
    given = mine.to(device)
    if op == "all_reduce":
        dist.all_reduce(given)
        got, wanted = given, sum(all_of_them)
    elif op == "all_gather":
        got = torch.empty(SIZE * n, device=device)
        dist.all_gather_into_tensor(got, given)
        wanted = torch.cat(all_of_them)
    elif op == "reduce_scatter":
        got = torch.empty(4, device=device)
        dist.reduce_scatter_tensor(got, given)
        wanted = sum(t.chunk(SIZE)[RANK] for t in all_of_them)
    else:
        got = torch.empty(n, device=device)
        dist.all_to_all_single(got, given)
        wanted = torch.cat([t.chunk(SIZE)[RANK] for t in all_of_them])
    assert torch.equal(got.cpu(), torch.as_tensor(wanted)), (op, got.cpu(), wanted)


if __name__ == "__main__":
    main(sys.argv[1])
