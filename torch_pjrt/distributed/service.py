"""The process of JAX's coordination service, which no rank takes along when it dies.

JAX has the service in rank 0's process, and its clients end their processes at once when the service goes. So rank 0
starts it as a process of its own (`coordination.py`): as a script, which imports neither PyTorch nor JAX but for the
one library and is there in 0.3 s. Every rank holds a link to it, a socket that the kernel closes however the rank ends.
The service tells the ranks that are left who has ended, and ends itself when nobody is left.

    python service.py SIZE ADDRESS     # rank 0's link is file descriptor 0

What it says to rank 0: "listening PORT PORT_OF_LINKS", or why it could not start. To all: "complete" once all have
come, "ended RANK". What a rank says when it comes: its number. Each is a line.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

# JAX's service takes a client for dead whose heartbeats stay away for so long, in seconds, and then ends all clients'
# processes. A rank that dies closes its link; one that hangs, or that a debugger holds, is not dead. So: a month.
_HEARTBEAT_S = 30 * 24 * 3600
# Seconds that whoever opens a link has to say which rank it is.
_NAME_WITHIN_S = 10
# A machine that has vanished says nothing: after 60 s of silence it is asked, six times, 20 s apart.
_KEEPALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 20, "TCP_KEEPCNT": 6}


@dataclass
class _Caller:
    """Who has opened a link and not yet said which rank it is."""

    until: float
    said: bytes = b""


class Links:
    """The ranks' links.

    Args:
        listener: where ranks open them.
        size: how many ranks there are.
        first: rank 0's, which is open already.
    """

    def __init__(self, listener: socket.socket, size: int, first: socket.socket) -> None:
        self._listener, self._size = listener, size
        self._ranks = {first: 0}
        self._callers: dict[socket.socket, _Caller] = {}
        self._ended: list[int] = []
        self._selector = selectors.DefaultSelector()
        for each in (listener, first):
            each.setblocking(False)
            self._selector.register(each, selectors.EVENT_READ)

    def until_all_have_ended(self) -> None:
        """Tell the ranks of each other's ends; return when no rank is left, and nobody who may be one."""
        while self._ranks or self._callers:
            for key, _ in self._selector.select(_NAME_WITHIN_S if self._callers else None):
                self._hear(key.fileobj)
            for caller in [c for c, state in self._callers.items() if state.until < time.monotonic()]:
                self._close(caller)

    def _hear(self, which: Any) -> None:
        if which is self._listener:
            self._open()
            return
        try:
            said = which.recv(64)
        except BlockingIOError:
            return
        except OSError:  # the connection was cut
            said = b""
        if not said:
            self._close(which)
        elif which in self._callers:
            self._name(which, said)

    def _open(self) -> None:
        try:
            link, _ = self._listener.accept()
        except OSError:  # whoever it was has gone again
            return
        link.setblocking(False)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE.items():
            if hasattr(socket, option):
                link.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        self._selector.register(link, selectors.EVENT_READ)
        self._callers[link] = _Caller(time.monotonic() + _NAME_WITHIN_S)

    def _name(self, link: socket.socket, said: bytes) -> None:
        caller = self._callers[link]
        caller.said += said
        if b"\n" not in caller.said and len(caller.said) < 64:
            return
        name = caller.said.partition(b"\n")[0]
        rank = int(name) if name.isdigit() else -1
        if not 0 < rank < self._size or rank in self._ranks.values():
            self._close(link)
            return
        del self._callers[link]
        self._ranks[link] = rank
        for ended in self._ended:
            _tell([link], f"ended {ended}")
        if len(self._ranks) == self._size:
            _tell(self._ranks, "complete")

    def _close(self, link: socket.socket) -> None:
        self._selector.unregister(link)
        link.close()
        self._callers.pop(link, None)
        rank = self._ranks.pop(link, None)
        if rank is not None:
            self._ended.append(rank)
            _tell(self._ranks, f"ended {rank}")


def _tell(links: Iterable[socket.socket], what: str) -> None:
    for link in links:
        with suppress(OSError):  # it has ended too, which is heard of next
            link.send(f"{what}\n".encode())


def _started(size: int, address: str) -> tuple[int, Any]:
    """JAX's service on a free port: the port, and the service, which runs as long as somebody holds it."""
    from jaxlib import _jax

    with socket.create_server(("", 0)) as probe:
        port: int = probe.getsockname()[1]
    # No barrier at the end: a rank that ends waits for no other, and ends no other.
    return port, _jax.get_distributed_runtime_service(
        f"{address}:{port}", size, heartbeat_timeout=_HEARTBEAT_S, shutdown_timeout=0
    )


def _listener(address: str) -> socket.socket:
    if address.startswith("["):
        return socket.create_server((address.strip("[]"), 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server((address, 0))


def main() -> None:
    # What ends the ranks from outside (Ctrl-C, a launcher's SIGTERM to all) must not reach them through this process.
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    size, address = int(sys.argv[1]), sys.argv[2]
    rank_0 = socket.socket(fileno=os.dup(0))
    port, _held = _started(size, address)
    links = _listener(address)
    rank_0.sendall(f"listening {port} {links.getsockname()[1]}\n".encode())
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):  # which are rank 0's link so far
        os.dup2(nothing, number)
    Links(links, size, rank_0).until_all_have_ended()
    os._exit(0)  # without service.shutdown(), which waits for connections that a child of a rank has inherited


if __name__ == "__main__":
    main()
