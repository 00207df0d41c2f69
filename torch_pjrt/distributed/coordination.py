"""JAX's coordination service as the ranks see it: rank 0 starts its process, each links to it and hears who ended."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_ADDRESS = "torch_pjrt/coordinator"
# Seconds until the service's process listens, on a machine that has much to do; until a link is open; until all are, of
# ranks that PyTorch's store has waited for already; and that the news of an end may take, from the process to the
# service and from there to the others.
_START_S, _LINK_S, _ALL_S, _NEWS_S = 120, 60, 120, 1.0


class _Link:
    """A socket to the service, open as long as this process lives."""

    def __init__(self, to: socket.socket) -> None:
        self._socket = to
        self._said = b""
        self._gone = False
        self._ended: list[int] = []  # in the order of the news
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=to.close)  # a child that stays behind must not keep it open

    def line(self, seconds: float) -> str | None:
        """What the service says next; None if that is nothing within so many seconds. EOFError if it has gone."""
        until = time.monotonic() + seconds
        while b"\n" not in self._said:
            try:
                self._socket.settimeout(max(until - time.monotonic(), 0))
                heard = self._socket.recv(4096)
            except (TimeoutError, BlockingIOError):  # the latter where no time is left
                return None
            except OSError:  # the connection was cut, or is the parent's
                heard = b""
            if not heard:
                raise EOFError(self._said.decode(errors="replace"))
            self._said += heard
        said, _, self._said = self._said.partition(b"\n")
        return said.decode(errors="replace")

    def ended(self, among: Collection[int], seconds: float) -> list[int]:
        """Which of these ranks have ended, the first one first; if none, the service has so many seconds to say so."""
        until = time.monotonic() + seconds
        with self._lock:
            while not self._gone:
                found = any(r in among for r in self._ended)
                try:
                    said = self.line(0 if found else until - time.monotonic())
                except EOFError:
                    self._gone = True
                    break
                if said is None:
                    break
                if said.startswith("ended "):
                    self._ended.append(int(said.split()[1]))
            return [r for r in self._ended if r in among]


class _Process(subprocess.Popen[bytes]):
    """The service's. It outlives the one that started it, which nobody needs to be warned of."""

    def __del__(self, *_: object) -> None:
        pass


_started: tuple[_Process, _Link] | None = None  # by rank 0
_link: _Link | None = None


def begin(rank: int, size: int) -> None:
    """In rank 0, start the service's process: it gets ready while this one imports JAX."""
    global _started
    if rank != 0 or size == 1 or _started is not None or _jax_is_joined():
        return
    own, its = socket.socketpair()
    with its:
        process = _Process(
            [sys.executable, "-P", str(Path(__file__).with_name("service.py")), str(size), _any_address()],
            stdin=its.fileno(), stdout=its.fileno(), stderr=its.fileno(), env=_environment(), start_new_session=True,
        )  # fmt: skip
    _started = process, _Link(own)


def _jax_is_joined() -> bool:
    distributed = sys.modules.get("jax._src.distributed")
    return distributed is not None and distributed.global_state.client is not None


def link(store: Store, rank: int) -> str:
    """Link this process to the service, of which rank 0 tells the others through the store, and wait for all to do so.

    Returns the service's "host:port". Raises RuntimeError if the service did not start or can't be reached, or if a
    rank does not come, for which JAX's client would end the process.
    """
    global _link
    if rank == 0:
        try:
            told: list[object] = [_reachable_host(), *_listening()]
        except RuntimeError as error:
            store.set(_ADDRESS, json.dumps(["", str(error), 0]))
            raise
        store.set(_ADDRESS, json.dumps(told))
    host, port, links = json.loads(store.get(_ADDRESS))
    if not host:
        raise RuntimeError(f"on rank 0: {port}")
    if rank == 0:
        assert _started is not None
        _link = _started[1]
    else:
        try:
            own = socket.create_connection((host, links), timeout=_LINK_S)
            own.sendall(b"%d\n" % rank)
        except OSError as error:
            raise RuntimeError(
                f"rank {rank} does not reach the coordination service, which rank 0 started on {host}, port {links}: "
                f"{error}. Either rank 0 has ended, or MASTER_ADDR is not an address of rank 0's machine"
            ) from error
        _link = _Link(own)
    _wait_for_all(_link)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _listening() -> tuple[int, int]:
    """The service's port, and that of the links, once it listens there."""
    assert _started is not None
    process, own = _started
    said = []
    until = time.monotonic() + _START_S
    try:
        while (line := own.line(until - time.monotonic())) is not None:
            if line.startswith("listening "):
                port, links = map(int, line.split()[1:])
                return port, links
            said.append(line)
        why = f"it does not listen after {_START_S} s"
    except EOFError as error:
        said.append(str(error))
        why = f"its process ended with {process.wait(_LINK_S)}"
    raise RuntimeError("JAX's coordination service did not start: " + "\n".join([why, *said]).strip())


def _wait_for_all(own: _Link) -> None:
    try:
        said = own.line(_ALL_S)
    except EOFError:
        raise RuntimeError("init_process_group: JAX's coordination service has ended: was it killed?") from None
    if said is None:
        raise RuntimeError(f"init_process_group: not all ranks have come as far as this one within {_ALL_S} s")
    if said.startswith("ended "):
        raise RuntimeError(f"init_process_group: rank {said.split()[1]} has ended")


def ended(among: Collection[int], *, wait: bool = False) -> list[int]:
    """Which of these global ranks have ended, the first one first, as far as is known: by a signal, an error or well.

    Args:
        among: the ranks that matter.
        wait: if none is known of, wait a second for the news: something has failed, most likely because one has.
    """
    return _link.ended(among, _NEWS_S if wait else 0) if _link is not None else []


def _environment() -> dict[str, str]:
    """This process's, with its Python path. The service computes nothing and says nothing."""
    paths = os.pathsep.join(p for p in sys.path if p)
    quiet = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "1"}
    return os.environ | quiet | {"PYTHONPATH": paths}


def _reachable_host() -> str:
    """How the other processes reach rank 0: where they found PyTorch's own rendezvous, which is on its machine."""
    return os.environ.get("MASTER_ADDR") or socket.gethostname()


def _any_address() -> str:
    """All of this machine's addresses: IPv6's, which has IPv4's in it, where the machine has IPv6."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::", 0))
    except OSError:
        return "0.0.0.0"
    return "[::]"
