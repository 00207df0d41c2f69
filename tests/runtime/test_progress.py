"""A long compile shows a line on a terminal, and nowhere else."""

from __future__ import annotations

import io
import os
import pty
import re
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch

from torch_pjrt.runtime import progress

from ..conftest import DEVICE


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], str]]:
    """stderr is a terminal; the fixture reads what was written to it so far."""
    monkeypatch.delenv("TORCH_PJRT_PROGRESS", raising=False)
    monkeypatch.setattr(progress, "_LONG", 0.05)
    monkeypatch.setattr(progress, "_BETWEEN", 0.05)
    ours, theirs = pty.openpty()
    os.set_blocking(ours, False)

    def read() -> str:
        time.sleep(0.05)  # the kernel hands on what is written to a terminal when it gets to it
        try:
            return os.read(ours, 1 << 16).decode()
        except BlockingIOError:
            return ""

    with open(theirs, "w") as stream:
        # pytest puts streams of its own into sys.
        monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=stream))
        yield read
    os.close(ours)


def shown_after(text: str) -> str:
    """What a terminal's row looks like once `text` has been written to it."""
    row = ""
    for part in text.split("\r"):
        row = part + row[len(part) :]
    return row.strip()


def test_a_long_compile_is_named_with_its_seconds_and_erased(terminal: Callable[[], str]) -> None:
    with progress.compiling(lambda: "a forward graph of 365 nodes"):
        time.sleep(0.4)
        written = terminal()
        assert shown_after(written) == "torch_pjrt: compiling a forward graph of 365 nodes, 0 s"
    assert shown_after(written + terminal()) == ""
    time.sleep(0.2)
    assert terminal() == ""


def test_a_short_compile_shows_nothing(terminal: Callable[[], str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_LONG", 5)
    with progress.compiling(lambda: "a graph"):
        time.sleep(0.1)
    assert terminal() == ""


def test_an_error_erases_the_line_too(terminal: Callable[[], str]) -> None:
    with pytest.raises(KeyboardInterrupt), progress.compiling(lambda: "a graph"):
        time.sleep(0.2)
        raise KeyboardInterrupt
    assert shown_after(terminal()) == ""


def test_the_variable_silences_it(terminal: Callable[[], str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_PJRT_PROGRESS", "0")
    with progress.compiling(lambda: "a graph"):
        time.sleep(0.2)
    assert terminal() == ""


def test_two_at_once_take_turns(terminal: Callable[[], str]) -> None:
    with progress.compiling(lambda: "the first"):
        time.sleep(0.2)
        with progress.compiling(lambda: "the second"):
            time.sleep(0.2)
        assert shown_after(terminal()) == "torch_pjrt: compiling the first, 0 s"
    with progress.compiling(lambda: "the third"):
        time.sleep(0.3)
        assert shown_after(terminal()) == "torch_pjrt: compiling the third, 0 s"


def test_a_terminal_that_takes_nothing_delays_nothing(
    terminal: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck, go_on = threading.Event(), threading.Event()

    def write(*_: object) -> int:
        stuck.set()
        go_on.wait()
        return 0

    began = time.perf_counter()
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", write)
        with progress.compiling(lambda: "a graph"):
            assert stuck.wait(5)
        assert time.perf_counter() - began < 2
        go_on.set()


def test_graphs_and_traces_say_what_they_are(terminal: Callable[[], str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_LONG", 0)
    x = torch.ones(37, device=DEVICE)
    (x.sin().cos() + 0.125).tolist()
    assert re.search(r"compiling a trace of \d+ operations, 0 s", terminal())
    torch.compile(lambda t: t.cos().sin() * 0.375, backend="pjrt")(x)
    assert "compiling the inference graph of 5 nodes, 0 s" in terminal()


@pytest.mark.parametrize("stream", [None, io.StringIO(), open(os.devnull, "w")])  # noqa: SIM115
def test_no_terminal_no_thread(stream: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=stream))  # pytest has put its own in sys
    before = threading.active_count()
    with progress.compiling(lambda: "a graph"):
        assert threading.active_count() == before
