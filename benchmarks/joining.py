"""Seconds that `init_process_group` of two processes takes, and their whole programs.

    python -m benchmarks.joining [ROUNDS] [CHECKOUT ...]      # of several checkouts, in turns

A program joins, sums one small tensor over the ranks, and ends.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

from .ranks import free_port
from .report import table

RANKS = 2
PROGRAM = """
import os, time
import torch, torch.distributed as dist
rank = int(os.environ["RANK"])
torch.accelerator.set_device_index(rank)
begin = time.perf_counter()
dist.init_process_group()
joined = time.perf_counter()
t = torch.ones(3, device=torch.device(torch.accelerator.current_accelerator().type, rank))
dist.all_reduce(t)
t.sum().item()
print(f"TIMES {joined - begin} {time.perf_counter() - begin}", flush=True)
dist.destroy_process_group()
"""
ROWS = ("init_process_group", "and the first all_reduce", "the whole program")


def run(rounds: int, checkouts: list[Path]) -> None:
    """One after the other, `rounds` times; the slowest rank's times."""
    for checkout in checkouts:
        seconds(checkout)  # the files come from the page cache from here on
    found: dict[Path, list[tuple[float, ...]]] = {checkout: [] for checkout in checkouts}
    for _ in range(rounds):
        for checkout in checkouts:
            found[checkout].append(seconds(checkout))
    medians = {c: [statistics.median(times) for times in zip(*found[c], strict=True)] for c in checkouts}
    rows = [[row, *(f"{medians[c][i]:.2f}" for c in checkouts)] for i, row in enumerate(ROWS)]
    table(f"{RANKS} processes, medians of {rounds} rounds, seconds", ["", *(c.name for c in checkouts)], rows)


def seconds(checkout: Path) -> tuple[float, ...]:
    """To have joined, to have the first sum, and of the whole program."""
    environment = os.environ | {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(RANKS),
        "LOCAL_WORLD_SIZE": str(RANKS), "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(checkout),
    }  # fmt: skip
    begin = time.perf_counter()
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            cwd=checkout,
            env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]
    said = [rank.communicate()[0] for rank in ranks]
    whole = time.perf_counter() - begin
    times = [re.search(r"TIMES (\S+) (\S+)", each) for each in said]
    if not all(times):
        raise RuntimeError("a rank failed: " + "\n".join(said))
    return *(max(float(t[i]) for t in times if t is not None) for i in (1, 2)), whole


if __name__ == "__main__":
    run(int(sys.argv[1]) if sys.argv[1:] else 5, [Path(c).resolve() for c in sys.argv[2:]] or [Path.cwd()])
