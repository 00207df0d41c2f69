"""Starting a script as several ranks, as torchrun does, and collecting what each says."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@dataclass(frozen=True)
class Ended:
    """How a rank ended."""

    code: int
    out: str
    err: str


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def run_ranks(
    script: str, *arguments: str, size: int = 2, timeout: float = 240, environment: dict[str, str] | None = None
) -> list[Ended]:
    """Run `tests/distributed/SCRIPT.py` as `size` processes on this machine and wait for all; none is left behind.

    Raises AssertionError, with what was printed, if they take longer than `timeout` seconds.
    """
    ranks = started(script, *arguments, size=size, environment=environment)
    late, found = _wait(ranks, timeout)
    assert not late, f"not done after {timeout} s:\n" + said(found)
    return found


def started(
    script: str, *arguments: str, size: int = 2, environment: dict[str, str] | None = None
) -> list[subprocess.Popen[str]]:
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
    return [
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


def ended(ranks: list[subprocess.Popen[str]], timeout: float) -> list[Ended]:
    """How they end, those by force that take longer than `timeout` seconds."""
    return _wait(ranks, timeout)[1]


def _wait(ranks: list[subprocess.Popen[str]], timeout: float) -> tuple[bool, list[Ended]]:
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
    return late, found


def succeed(script: str, *arguments: str, size: int = 2, environment: dict[str, str] | None = None) -> list[str]:
    """What each rank printed; fails if one of them does not end well."""
    ended = run_ranks(script, *arguments, size=size, environment=environment)
    assert all(e.code == 0 for e in ended), said(ended)
    return [e.out for e in ended]


def said(ended: list[Ended]) -> str:
    return "\n".join(f"rank {rank}: exit {e.code}\n{e.out}{e.err}" for rank, e in enumerate(ended))
