"""Workers that are the ranks of one distributed program: they are started, and asked, together."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from types import TracebackType

from .process import Backend, Worker, number


class Ranks:
    """`size` workers that know each other as torchrun's do: `ask` sends each the same line.

    Args:
        backend: what runs them.
        size: how many.
        module: of `benchmarks.workers`.
        arguments: theirs.
    """

    def __init__(self, backend: Backend, size: int, module: str, *arguments: str) -> None:
        common = {
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(size),
            "LOCAL_WORLD_SIZE": str(size), "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        self.backend = backend
        self._stack = ExitStack()
        with ExitStack() as starting:
            self.workers = [
                starting.enter_context(
                    Worker(backend, module, *arguments, environment={**common, "RANK": str(r), "LOCAL_RANK": str(r)})
                )
                for r in range(size)
            ]
            self._stack = starting.pop_all()

    def ask(self, line: str = "") -> list[dict[str, object]]:
        """What each answers, by rank."""
        for worker in self.workers:
            worker.tell(line)
        return [worker.answer(line) for worker in self.workers]

    def slowest(self, line: str, key: str) -> float:
        """The largest of their answers to `line`, each a number under this key."""
        return max(number(reply, key) for reply in self.ask(line))

    def __enter__(self) -> Ranks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
