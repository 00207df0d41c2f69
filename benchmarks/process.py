"""Workers in fresh subprocesses, under the interpreter of the backend that each one measures."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

ROOT = Path(__file__).resolve().parent.parent
PEERS_HOME = Path(os.environ.get("TORCH_PJRT_BENCH_ENV", Path.home() / ".cache" / "torch-pjrt-bench"))
TIMEOUT_S = 900.0


@dataclass(frozen=True)
class Backend:
    """Something that can run the benchmarks.

    Attributes:
        name: what the tables and `--peers` call it.
        framework: what its programs are written in: "torch", "jax" or "torchax", as workers are named (`train_torch`).
        argument: what that worker calls it.
        interpreter: the peer environment that holds it; "" is the interpreter that runs this.
        environment: variables of its processes.
    """

    name: str
    framework: str
    argument: str
    interpreter: str = ""
    environment: dict[str, str] = field(default_factory=dict)

    def python(self) -> Path:
        return PEERS_HOME / self.interpreter / "bin" / "python" if self.interpreter else Path(sys.executable)


_COMPILED = {"BENCH_COMPILE": "1"}  # the model and its loss through torch.compile
_WHOLE = {"BENCH_COMPILE": "whole"}  # the same, with forward, backward and optimizer as one program
_WITHOUT_US = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
_TORCH_XLA = {"PJRT_DEVICE": "CPU", **_WITHOUT_US}

DEVICE = Backend("pjrt", "torch", "pjrt", environment={"TORCH_PJRT_DEVICE_NAME": "pjrt"})
PEERS = {
    peer.name: peer
    for peer in (
        Backend("jax", "jax", "jax"),
        Backend("jax-nchw", "jax", "jax", environment={"BENCH_JAX_LAYOUT": "NCHW"}),
        Backend("xla", "torch", "xla", "xla", _TORCH_XLA),
        Backend("openxla", "torch", "xla", "xla", {**_COMPILED, **_TORCH_XLA}),
        Backend("torchax", "torchax", "torchax", "torchax", _WITHOUT_US),
        Backend("cpu", "torch", "cpu", environment=_WITHOUT_US),
        Backend("inductor", "torch", "cpu", environment={**_COMPILED, **_WITHOUT_US}),
        Backend("compiled", "torch", "pjrt", environment={**_COMPILED, **DEVICE.environment}),
        Backend("whole", "torch", "pjrt", environment={**_WHOLE, **DEVICE.environment}),
    )
}


class WorkerError(RuntimeError):
    """A worker that can't be started or that ended early; the message is one line."""


class Worker:
    """A running worker: `ask("steps 5")` sends a line and returns the JSON object that comes back."""

    def __init__(self, backend: Backend, module: str, *arguments: str, environment: dict[str, str] | None = None):
        python = backend.python()
        if not python.exists():
            raise WorkerError(f"{backend.name}: {python} is missing; benchmarks/peers.sh makes it")
        self.backend = backend
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  (closed by __exit__)
        self.began = time.perf_counter()
        self._process = subprocess.Popen(
            [python, "-m", f"benchmarks.workers.{module}", backend.argument, *arguments],
            cwd=ROOT,
            env={**os.environ, "JAX_PLATFORMS": "cpu", **backend.environment, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def ask(self, line: str = "") -> dict[str, object]:
        """Send `line` (nothing, for the reply that a worker sends by itself) and wait for the answer."""
        self.tell(line)
        return self.answer(line)

    def tell(self, line: str) -> None:
        """Send `line`, if it is not empty; the answer is asked for later."""
        assert self._process.stdin
        if line:
            try:
                print(line, file=self._process.stdin, flush=True)
            except BrokenPipeError:
                raise WorkerError(f"{self.backend.name}: {self._last_error()}") from None

    def answer(self, line: str = "") -> dict[str, object]:
        """Wait for the answer to `line`, which was told."""
        assert self._process.stdout
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(self._process.stdout, selectors.EVENT_READ)
                if not selector.select(TIMEOUT_S):
                    raise WorkerError(f"{self.backend.name}: no answer to {line!r} in {TIMEOUT_S:.0f} s")
            reply = self._process.stdout.readline()
        except BrokenPipeError:
            reply = ""
        if not reply:
            raise WorkerError(f"{self.backend.name}: {self._last_error()}")
        answer: dict[str, object] = json.loads(reply)
        return answer

    def _last_error(self) -> str:
        self._process.wait()
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors if line.strip()]
        return lines[-1] if lines else f"ended with status {self._process.returncode}"

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()
        self._errors.close()


def number(reply: dict[str, object], key: str) -> float:
    """`reply[key]`, which must be a number."""
    value = reply[key]
    if not isinstance(value, (int, float)):
        raise WorkerError(f"{key} is {value!r}, not a number")
    return float(value)
