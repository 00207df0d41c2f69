"""The coordination service's process learns of each rank's end by its link, and ends itself with the last of them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from torch_pjrt.distributed import service

SIZE = 3


class Service:
    """`Links` of three ranks, in a thread; rank 0's is open."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.rank_0, its = socket.socketpair()
        links = service.Links(self.listener, SIZE, its)
        self.thread = threading.Thread(target=links.until_all_have_ended, daemon=True)
        self.thread.start()

    def caller(self, said: bytes = b"") -> socket.socket:
        link = socket.create_connection(self.listener.getsockname(), timeout=5)
        link.sendall(said)
        return link

    def has_ended(self) -> bool:
        self.thread.join(5)
        return not self.thread.is_alive()


def heard(link: socket.socket, length: int) -> bytes:
    link.settimeout(5)
    said = b""
    while len(said) < length and (more := link.recv(64)):
        said += more
    return said


@pytest.fixture
def running() -> Iterator[Service]:
    made = Service()
    with closing(made.rank_0):
        yield made
    made.listener.close()


def test_all_hear_that_all_have_come_and_then_of_each_end(running: Service) -> None:
    one, two = running.caller(b"1\n"), running.caller(b"2\n")
    for link in (running.rank_0, one, two):
        assert heard(link, 9) == b"complete\n"
    running.rank_0.close()
    assert heard(one, 8) == heard(two, 8) == b"ended 0\n"
    two.close()
    assert heard(one, 8) == b"ended 2\n"
    assert running.thread.is_alive()
    one.close()
    assert running.has_ended()


def test_who_comes_late_hears_who_has_ended_before(running: Service) -> None:
    one = running.caller(b"1\n")
    running.rank_0.close()
    assert heard(one, 8) == b"ended 0\n"
    two = running.caller(b"2\n")
    assert heard(two, 8) == b"ended 0\n"
    one.close()
    two.close()
    assert running.has_ended()


def test_it_ends_with_rank_0_if_nobody_else_comes(running: Service) -> None:
    running.rank_0.close()
    assert running.has_ended()


@pytest.mark.parametrize("said", [b"0\n", b"3\n", b"-1\n", b"\n", b"GET / HTTP/1.1\r\n\r\n", b"x" * 64, b"\xff\n"])
def test_who_is_no_rank_is_sent_away(running: Service, said: bytes) -> None:
    assert heard(running.caller(said), 1) == b""


def test_a_rank_has_one_link(running: Service) -> None:
    one = running.caller(b"1\n")
    assert heard(running.caller(b"1\n"), 1) == b""
    two = running.caller(b"2\n")
    assert heard(one, 9) == heard(two, 9) == b"complete\n"


def test_a_number_may_come_in_two_parts(running: Service) -> None:
    one, two = running.caller(b"1"), running.caller(b"2\n")
    one.sendall(b"\n")
    assert heard(two, 9) == heard(one, 9) == b"complete\n"


def test_who_says_nothing_does_not_keep_it(running: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_NAME_WITHIN_S", 0.2)
    stranger = running.caller()
    running.rank_0.close()
    assert running.has_ended()
    assert heard(stranger, 1) == b""
