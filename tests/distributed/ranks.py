"""Starting a script as several ranks, as torchrun does, and collecting what each says."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@dataclass(frozen=True)
class Ended:
    """How a rank ended."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Running:
    """Ranks that run, and the port by which they and all that they start are known."""

    processes: list[subprocess.Popen[str]]
    port: int


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def store_elsewhere() -> Iterator[dict[str, str]]:
    """PyTorch's store in this process, as torchrun has it in its own; gives the environment of ranks that use it."""
    port = free_port()
    store = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    yield {"MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    del store


def run_ranks(
    script: str, *arguments: str, size: int = 2, timeout: float = 600, environment: dict[str, str] | None = None
) -> list[Ended]:
    """Run `tests/distributed/SCRIPT.py` as `size` processes on this machine and wait for all.

    Raises AssertionError, with what was printed, if they take longer than `timeout` seconds, or if something that they
    have started outlives them.
    """
    ranks = started(script, *arguments, size=size, environment=environment)
    late, found = _wait(ranks, timeout)
    assert not late, f"not done after {timeout} s:\n" + said(found)
    return found


def started(script: str, *arguments: str, size: int = 2, environment: dict[str, str] | None = None) -> Running:
    """The ranks of `run_ranks`, running. They have to be given to `ended`."""
    common = os.environ | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "JAX_PLATFORMS": "cpu",
        "OMP_NUM_THREADS": "1",
        **(environment or {}),
    }
    command = [sys.executable, "-m", f"tests.distributed.{script}", *arguments]
    processes = [
        subprocess.Popen(
            command,
            cwd=ROOT,
            env=common | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        for rank in range(size)
    ]
    return Running(processes, int(common["MASTER_PORT"]))


def ended(ranks: Running, timeout: float) -> list[Ended]:
    """How they end, those by force that take longer than `timeout` seconds. Raises AssertionError as `run_ranks`."""
    return _wait(ranks, timeout)[1]


def left_behind(port: int, seconds: float) -> dict[int, str]:
    """Processes, by their ids, that ranks have started and that are there yet so many seconds after the ranks' end."""
    until = time.monotonic() + seconds
    while True:
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if f"MASTER_PORT={port}".encode() in (process / "environ").read_bytes().split(b"\0"):
                    found[int(process.name)] = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:  # it has ended meanwhile, or is someone else's
                continue
        if not found or time.monotonic() > until:
            return found
        time.sleep(0.05)


def _wait(running: Running, timeout: float) -> tuple[bool, list[Ended]]:
    ranks = running.processes
    until = time.monotonic() + timeout
    late = False
    found = []
    try:
        for process in ranks:
            try:
                out, err = process.communicate(timeout=max(1.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                late = True
                os.killpg(process.pid, signal.SIGKILL)
                out, err = process.communicate()
            found.append(Ended(process.returncode, out, err))
    finally:
        for process in ranks:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        left = left_behind(running.port, 5)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
    assert not left, f"still there 5 s after the ranks had ended: {left}\n" + said(found)
    return late, found


def succeed(script: str, *arguments: str, size: int = 2, environment: dict[str, str] | None = None) -> list[str]:
    """What each rank printed; fails if one of them does not end well."""
    ended = run_ranks(script, *arguments, size=size, environment=environment)
    assert all(e.code == 0 for e in ended), said(ended)
    return [e.out for e in ended]


def said(ended: list[Ended]) -> str:
    return "\n".join(f"rank {rank}: exit {e.code}\n{e.out}{e.err}" for rank, e in enumerate(ended))
