"""Time to the end of the first training step, with an empty persistent cache and with the one that run leaves."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from .process import Backend, WorkerError, number
from .report import Verdict, paired_ratio, save, table, verdicts
from .steps import EAGER_MODELS, show_progress, start, weights_folder

REACH = 0.35
KINDS = ("cold", "warm")


def run(backends: list[Backend], pairs: int, models: tuple[str, ...] | None = None) -> None:
    """Pairs of fresh processes: the first with an empty cache folder, the second with what the first one left there."""
    backends = [backend for backend in backends if backend.name in ("pjrt", "jax")]  # the two that keep a cache
    rows: list[list[str]] = []
    found: list[Verdict] = []
    saved: dict[str, object] = {}
    with weights_folder(models or EAGER_MODELS) as folder:
        for model in models or EAGER_MODELS:
            for backend in backends:
                try:
                    times = measure(backend, model, folder / f"{model}.npz", pairs)
                except WorkerError as error:
                    print(f"  {model}: left out: {error}")
                    continue
                ratio = paired_ratio(times["warm"], times["cold"])
                medians = {kind: statistics.median(values) for kind, values in times.items()}
                cells = [f"{medians[kind]:.2f}" for kind in ("cold", "warm", "cold process", "warm process")]
                rows.append([f"{model}, {backend.name}", *cells, f"{ratio:.2f}"])
                saved[f"{model} {backend.name}"] = times
                if backend.name == "pjrt":
                    found.append(Verdict(f"{model} first step: warm / cold", ratio, REACH))
    header = ["", "cold s", "warm s", "cold process s", "warm process s", "warm / cold"]
    table(f"First step, from the end of imports and as a whole process, median of {pairs}", header, rows)
    verdicts(found)
    save("first_step", saved, found)


def measure(backend: Backend, model: str, weights: Path, pairs: int) -> dict[str, list[float]]:
    """Seconds by kind: `cold`, `warm` from the started device on, `... process` from the process's beginning."""
    times: dict[str, list[float]] = {kind + suffix: [] for suffix in ("", " process") for kind in KINDS}
    for done in range(pairs):
        with TemporaryDirectory() as cache:
            for kind in KINDS:
                show_progress(f"{model}, {backend.name}: {kind}, {done + 1} of {pairs}")
                with start("train", backend, model, weights, cache_environment(cache)) as worker:
                    reply = worker.ask()
                    process = time.perf_counter() - worker.began
                times[kind].append(number(reply, "first_step_s"))
                # The reply comes after step 3; the two steps in between are no part of the figure.
                times[f"{kind} process"].append(process - number(reply, "after_first_s"))
    show_progress("")
    return times


def cache_environment(folder: str) -> dict[str, str]:
    """Both backends keep everything they compile, however small or fast to compile."""
    return {
        "TORCH_PJRT_CACHE_DIR": folder,
        "JAX_COMPILATION_CACHE_DIR": folder,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
