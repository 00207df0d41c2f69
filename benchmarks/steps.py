"""Time and peak memory of a training step on every backend, from the same weights, with the losses held together."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from .models import MODELS
from .process import ROOT, Backend, Worker, WorkerError, number
from .report import Verdict, paired_ratio, save, table, turns, verdicts

STEPS = {"mlp": 10, "resnet": 2, "gpt": 2}  # per block; a block is about a second on 2 cores
LOSS_TOLERANCE = {"mlp": 1e-4, "resnet": 1e-2, "gpt": 1e-4}  # BatchNorm over 32 images magnifies rounding in 3 steps
STEP_REACH, MEMORY_REACH = 1.15, 1.25


@dataclass
class Figures:
    """What one backend did on one model."""

    losses: list[float]
    first_step_s: float
    ms: list[float] = field(default_factory=list)
    peak_mb: float = 0.0
    steady_mb: float = 0.0
    counters: dict[str, object] = field(default_factory=dict)


def run(backends: list[Backend], rounds: int, models: tuple[str, ...] = MODELS, *, only_memory: bool = False) -> None:
    """Print a table per model (step time unless `only_memory`, peak memory) and one of verdicts."""
    found: list[Verdict] = []
    saved: dict[str, object] = {}
    with weights_folder(models) as folder:
        for model in models:
            figures = measure(model, folder / f"{model}.npz", backends, 0 if only_memory else rounds)
            show(model, figures, with_time=not only_memory)
            found += judge(model, figures, with_time=not only_memory)
            saved[model] = {name: vars(value) for name, value in figures.items()}
    verdicts(found)
    save("memory" if only_memory else "steps", saved, found)


@contextmanager
def weights_folder(models: tuple[str, ...]) -> Iterator[Path]:
    """A folder with MODEL.npz, the initial weights that every backend begins with."""
    with TemporaryDirectory() as folder:
        for model in models:
            target = str(Path(folder) / f"{model}.npz")
            command = [sys.executable, "-m", "benchmarks.workers.export_weights", model, target]
            subprocess.run(command, cwd=ROOT, check=True)
        yield Path(folder)


def measure(model: str, weights: Path, backends: list[Backend], rounds: int) -> dict[str, Figures]:
    """Start all workers, then let them take turns: one block of steps each per round."""
    figures: dict[str, Figures] = {}
    with ExitStack() as stack:
        workers: list[Worker] = []
        for backend in backends:
            try:
                worker = stack.enter_context(train(backend, model, weights))
                reply = worker.ask()
            except WorkerError as error:
                print(f"  {model}: left out: {error}")
                continue
            workers.append(worker)
            figures[backend.name] = Figures([float(x) for x in reply["losses"]], number(reply, "first_step_s"))  # type: ignore[attr-defined]
        for done, order in enumerate(turns(workers, rounds)):
            show_progress(f"{model}: round {done + 1} of {rounds}")
            for worker in order:
                figures[worker.backend.name].ms.append(number(worker.ask(f"steps {STEPS[model]}"), "ms"))
        if not rounds:
            for worker in workers:
                worker.ask(f"steps {STEPS[model]}")
        for worker in workers:
            reply = worker.ask("memory")
            figure = figures[worker.backend.name]
            figure.peak_mb, figure.steady_mb = number(reply, "peak_mb"), number(reply, "steady_mb")
            figure.counters = reply["counters"]  # type: ignore[assignment]
    show_progress("")
    return figures


def train(backend: Backend, model: str, weights: Path, environment: dict[str, str] | None = None) -> Worker:
    """A training worker of `backend`; its first reply has the first steps' figures."""
    arguments = ("--model", model, "--weights", str(weights))
    return Worker(backend, backend.trains_with, *arguments, environment=environment)


def show(model: str, figures: dict[str, Figures], *, with_time: bool) -> None:
    """The model's table, a row per backend, and a line where the losses part."""
    rows = []
    for name, figure in figures.items():
        ms = [f"{statistics.median(figure.ms):.1f}", f"{min(figure.ms):.1f}"] if with_time else []
        compiled = str(figure.counters.get("executables_compiled", "-"))
        memory = [f"{figure.peak_mb:.0f}", f"{figure.steady_mb:.0f}"]
        rows.append([name, *ms, *memory, compiled, " ".join(f"{loss:.4f}" for loss in figure.losses)])
    header = ["", *(["ms, median", "ms, best"] if with_time else []), "peak MB", "steady MB", "compiled", "losses 1-3"]
    table(f"{model}: a training step with AdamW", header, rows)
    for line in parted(model, figures):
        print(line)


def parted(model: str, figures: dict[str, Figures]) -> list[str]:
    """A line for each backend whose first three losses are not those of the first backend that has any."""
    lines = []
    names = list(figures)
    reference = next((name for name in ("cpu", "jax") if name in figures), names[0] if names else "")
    for name in names:
        pairs = zip(figures[name].losses, figures[reference].losses, strict=True)
        worst = max(abs(a - b) / abs(b) for a, b in pairs)
        if not worst <= LOSS_TOLERANCE[model]:
            lines.append(f"  NOT THE SAME MATHEMATICS: {name}'s losses are {worst:.1e} off {reference}'s")
    return lines


def judge(model: str, figures: dict[str, Figures], *, with_time: bool) -> list[Verdict]:
    """The device's ratios to its peers, and those of a compiled step to its parts."""
    found = judge_whole(model, figures, with_time=with_time)
    ours = figures.get("pjrt")
    if ours is None:
        return found
    for peer, theirs in figures.items():
        if with_time and peer in ("jax", "xla", "torchax"):
            reach = STEP_REACH if peer == "jax" else 1.0
            found.append(Verdict(f"{model} step: pjrt / {peer}", paired_ratio(ours.ms, theirs.ms), reach))
    if "jax" in figures:
        found.append(Verdict(f"{model} peak memory: pjrt / jax", ours.peak_mb / figures["jax"].peak_mb, MEMORY_REACH))
    return found


def judge_whole(model: str, figures: dict[str, Figures], *, with_time: bool) -> list[Verdict]:
    """A training step as one program against forward, backward and optimizer as one program each."""
    whole, parts = figures.get("whole"), figures.get("compiled")
    if whole is None or parts is None:
        return []
    found = [Verdict(f"{model} step: whole / parts", paired_ratio(whole.ms, parts.ms), 1.0)] if with_time else []
    seconds = [figure.counters["compile_seconds"] for figure in (whole, parts)]
    ratios = {
        "peak memory": whole.peak_mb / parts.peak_mb,
        "steady memory": whole.steady_mb / parts.steady_mb,
        "compiling": seconds[0] / seconds[1],  # type: ignore[operator]
        "first step": whole.first_step_s / parts.first_step_s,
    }
    return found + [Verdict(f"{model} {what}: whole / parts", ratio, 1.0) for what, ratio in ratios.items()]


def show_progress(text: str) -> None:
    """One line that is written over, on a terminal only."""
    if sys.stderr.isatty():
        print(f"\r{text:<40}", end="\r", file=sys.stderr, flush=True)
