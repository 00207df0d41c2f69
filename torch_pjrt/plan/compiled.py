"""Having jobs compiled: in worker processes, with a time limit, from the cache where it has them."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from ..runtime import cache
from ..runtime.platform import installed_plugins
from .tape import Tape
from .worker import Job

# One answer a second is often enough to hear of Ctrl-C and of the time limit.
_LOOK = 0.5


class CompilerMissing(RuntimeError):
    """The TPU compiler is not installed; the message says how to install it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a job.

    Attributes:
        answer: what the worker wrote (`worker.run`); None if it didn't.
        failure: why there is none: "the compiler took longer than 600 s", "the compiler crashed (SIGSEGV)", ...
        cached: whether the answer was in the cache.
        seconds: how long it took here.
    """

    answer: dict[str, Any] | None
    failure: str
    cached: bool
    seconds: float


def require_compilers(platforms: Collection[str]) -> None:
    """Raise CompilerMissing if the compiler of one of these platforms is not in this environment."""
    if "tpu" in platforms and importlib.util.find_spec("libtpu") is None:
        raise CompilerMissing(
            "the TPU compiler is not installed. It is a Python package and needs no TPU: "
            "pip install 'torch-pjrt[plan]' (200 MB; Linux on x86-64)"
        )
    if "cuda" in platforms and "cuda" not in installed_plugins():
        raise CompilerMissing(
            "XLA's compiler for NVIDIA GPUs is not installed. It is JAX's CUDA plugin and needs no GPU: "
            "pip install --no-deps jax-cuda12-plugin jax-cuda12-pjrt, of jax's version (480 MB on disk)"
        )


def compile_all(
    jobs: Sequence[Job], seconds: float, processes: int, done: Callable[[int, Outcome], None] = lambda i, o: None
) -> list[Outcome]:
    """Compile jobs, `processes` at a time.

    Args:
        seconds: the most that one may take.
        done: called with the number of each job that is done, from another thread.
    """
    require_compilers({job.platform for job in jobs})
    running: list[subprocess.Popen[bytes]] = []

    def one(index: int) -> Outcome:
        outcome = compile_job(jobs[index], seconds, running)
        done(index, outcome)
        return outcome

    with ThreadPoolExecutor(max(1, processes)) as pool:
        try:
            futures = [pool.submit(one, i) for i in range(len(jobs))]
            return [f.result() for f in futures]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(running):
                _kill(process)
            raise


def compile_job(job: Job, seconds: float, running: list[subprocess.Popen[bytes]] | None = None) -> Outcome:
    """Compile one job in a process of its own, or find its answer in `TORCH_PJRT_CACHE_DIR`.

    Args:
        running: where the process is noted while it runs.
    """
    began = time.perf_counter()
    key = key_of(job)
    stored = cache.load(key)
    if stored is not None:
        return Outcome(json.loads(stored), "", True, time.perf_counter() - began)
    with tempfile.TemporaryDirectory(prefix="torch-pjrt-plan-") as place:
        asked, answered, said = (Path(place) / name for name in ("job", "answer", "said"))
        with open(asked, "wb") as file:
            pickle.dump(job, file)
        with open(said, "wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", f"{__package__}.worker", str(asked), str(answered)],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=_environment(), start_new_session=True,
            )  # fmt: skip
        if running is not None:
            running.append(process)
        try:
            failure = _wait(process, began + seconds, seconds)
        finally:
            if running is not None:
                running.remove(process)
        if not failure and process.returncode:
            failure = _why(process.returncode, said.read_text(errors="replace"))
        took = time.perf_counter() - began
        if failure:
            return Outcome(None, failure, False, took)
        answer = answered.read_bytes()
    cache.store(key, answer)
    return Outcome(json.loads(answer), "", False, took)


def key_of(job: Job) -> str:
    """The name of a job in the cache: a hash of all that the answer depends on."""
    versions = [_version(name) for name in ("libtpu", "jax-cuda12-pjrt", "jax-cuda13-pjrt", "jax", "jaxlib", "torch")]
    flags = [os.environ.get(name, "") for name in ("LIBTPU_INIT_ARGS", "XLA_FLAGS")]
    asked = replace(job, tape=Tape())
    parts = ["plan", job.tape.content(), repr(asked), cache.source_hash(), *versions, *flags]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _version(package: str) -> str:
    try:
        return f"{package} {metadata.version(package)}"
    except metadata.PackageNotFoundError:
        return f"{package} -"


def _environment() -> dict[str, str]:
    """The worker's environment: the same Python path, and no device that anybody would start."""
    paths = [p for p in sys.path if p]
    kept = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS",) or "device_count" not in v}
    return kept | {"PYTHONPATH": os.pathsep.join(paths), "JAX_PLATFORMS": "cpu", "TORCH_PJRT_PLATFORM": "cpu"}


def _wait(process: subprocess.Popen[bytes], until: float, seconds: float) -> str:
    try:
        while True:
            try:
                process.wait(_LOOK)
                return ""
            except subprocess.TimeoutExpired:
                if time.perf_counter() > until:
                    _kill(process)
                    return f"the compiler took longer than {seconds:g} s (--timeout)"
    except BaseException:
        _kill(process)
        raise


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a worker and what it has started: it leads a session of its own."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _why(code: int, said: str) -> str:
    if code < 0:
        name = signal.Signals(-code).name
        hint = ": most likely out of memory on this machine" if name == "SIGKILL" else ""
        return f"the compiler crashed ({name}){hint}"
    raised = re.findall(r"^[\w.]+(?:Error|Exception|Exhausted|Violation)\b.*", said, re.MULTILINE)
    lines = [line for line in said.strip().splitlines() if line.strip()]
    last = raised[-1] if raised else lines[-1] if lines else f"exit status {code}"
    return f"the compiler's process failed: {last}"
