"""torchrun over two machines: network namespaces with addresses of their own, which nothing but a cable joins.

Each has a host name that it takes for 127.0.1.1, as Debian's do.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .ranks import ROOT

ADDRESSES = ("10.213.77.1", "10.213.77.2")
HOSTS = tuple(f"pjrt-{os.getpid()}-{n}" for n in range(2))
ENDS = tuple(f"pjrt{os.getpid() % 100_000}{end}" for end in "ab")  # an interface's name has 15 characters at most


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


@pytest.fixture
def hosts() -> Iterator[None]:
    if shutil.which("ip") is None or shutil.which("unshare") is None:
        pytest.skip("needs `ip` (iproute2) and `unshare` (util-linux)")
    try:
        for host in HOSTS:
            run("ip", "netns", "add", host)
        run("ip", "link", "add", ENDS[0], "type", "veth", "peer", "name", ENDS[1])
        for host, end, address in zip(HOSTS, ENDS, ADDRESSES, strict=True):
            run("ip", "link", "set", end, "netns", host)
            for change in (f"addr add {address}/24 dev {end}", f"link set {end} up", "link set lo up"):
                run("ip", "-n", host, *change.split())
    except subprocess.CalledProcessError as error:
        remove()
        pytest.skip(f"this machine allows no network namespaces: {error.stderr.strip()}")
    yield
    remove()


def remove() -> None:
    for host in HOSTS:
        subprocess.run(["ip", "netns", "delete", host], capture_output=True)  # the cable goes with it


def test_a_collective_and_a_ddp_step_over_two_machines(hosts: None, tmp_path: Path) -> None:
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
    running = []
    for rank, host in enumerate(HOSTS):
        names = tmp_path / host
        names.write_text(f"127.0.0.1 localhost\n127.0.1.1 {host}\n")
        inside = f'hostname {host} && mount --bind {names} /etc/hosts && exec "$@"'
        torchrun = (
            sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", str(rank),
            "--nproc-per-node", "1", "--master-addr", ADDRESSES[0], "--master-port", "29533",
            "--module", "tests.distributed.hosts",
        )  # fmt: skip
        command = ["ip", "netns", "exec", host, "unshare", "--uts", "--mount", "sh", "-c", inside, "sh", *torchrun]
        running.append(
            subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
        )
    try:
        said = [process.communicate(timeout=200)[0] for process in running]
    finally:
        for process in running:
            process.terminate()  # torchrun ends its workers
            process.wait(30)
    assert [p.returncode for p in running] == [0, 0], "\n".join(said)
    for rank, host in enumerate(HOSTS):
        assert f"rank {rank} on {host}: the same" in said[rank], "\n".join(said)
