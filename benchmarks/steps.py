"""Time and peak memory of a step on every backend, from the same weights, with what it gives held together."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from .models import MODELS
from .process import ROOT, Backend, Worker, WorkerError, number
from .report import Verdict, paired_ratio, save, table, turns, verdicts

EAGER_MODELS = tuple(m for m in MODELS if m != "bert")
# BatchNorm over 32 images magnifies rounding in 3 steps.
LOSS_TOLERANCE = {"mlp": 1e-4, "resnet": 1e-2, "gpt": 1e-4, "bert": 1e-4}


@dataclass(frozen=True)
class Task:
    """What the steps do, and what is asked of the device's.

    Attributes:
        name: the beginning of the workers' names: "train" or "infer".
        what: in the tables.
        ours: the backend that is held against its peers.
        step_reach, memory_reach: how many times pure JAX's time and memory it may take.
        steps: in a block, by model: about a second of them on 2 cores.
        memory: "peak", or "steady" where the peak is that of loading the weights.
    """

    name: str
    what: str
    ours: str
    step_reach: float
    memory_reach: float
    steps: Mapping[str, int]
    memory: str = "peak"


STEPS = {"mlp": 10, "resnet": 2, "gpt": 2, "bert": 2}
TRAINING = Task("train", "a training step with AdamW", "pjrt", 1.15, 1.25, STEPS)


@dataclass
class Figures:
    """What one backend did on one model."""

    given: list[float]
    first_step_s: float
    ms: list[float] = field(default_factory=list)
    peak_mb: float = 0.0
    steady_mb: float = 0.0
    counters: dict[str, object] = field(default_factory=dict)


def run(
    backends: list[Backend], rounds: int, models: tuple[str, ...] | None = None, *, only_memory: bool = False
) -> None:
    """Print a table per model (step time unless `only_memory`, peak memory) and one of verdicts."""
    saved, found = compare(TRAINING, backends, 0 if only_memory else rounds, models or EAGER_MODELS)
    verdicts(found)
    save("memory" if only_memory else "steps", saved, found)


def compare(
    task: Task, backends: list[Backend], rounds: int, models: tuple[str, ...]
) -> tuple[dict[str, object], list[Verdict]]:
    """Print a table per model, without times if there are no rounds; returns the figures and the verdicts."""
    found: list[Verdict] = []
    saved: dict[str, object] = {}
    with weights_folder(models) as folder:
        for model in models:
            figures = measure(task, model, folder / f"{model}.npz", backends, rounds)
            show(task, model, figures, with_time=rounds > 0)
            found += judge(task, model, figures, with_time=rounds > 0)
            saved[model] = {name: vars(value) for name, value in figures.items()}
    return saved, found


@contextmanager
def weights_folder(models: tuple[str, ...]) -> Iterator[Path]:
    """A folder with MODEL.npz, the initial weights that every backend begins with."""
    with TemporaryDirectory() as folder:
        for model in models:
            target = str(Path(folder) / f"{model}.npz")
            command = [sys.executable, "-m", "benchmarks.workers.export_weights", model, target]
            subprocess.run(command, cwd=ROOT, check=True)
        yield Path(folder)


def measure(task: Task, model: str, weights: Path, backends: list[Backend], rounds: int) -> dict[str, Figures]:
    """Start all workers, then let them take turns: one block of steps each per round."""
    figures: dict[str, Figures] = {}
    with ExitStack() as stack:
        workers: list[Worker] = []
        for backend in backends:
            try:
                worker = stack.enter_context(start(task.name, backend, model, weights))
                reply = worker.ask()
            except WorkerError as error:
                print(f"  {model}: left out: {error}")
                continue
            workers.append(worker)
            figures[backend.name] = Figures([float(x) for x in reply["given"]], number(reply, "first_step_s"))  # type: ignore[attr-defined]
        for done, order in enumerate(turns(workers, rounds)):
            show_progress(f"{model}: round {done + 1} of {rounds}")
            for worker in order:
                figures[worker.backend.name].ms.append(number(worker.ask(f"steps {task.steps[model]}"), "ms"))
        if not rounds:
            for worker in workers:
                worker.ask(f"steps {task.steps[model]}")
        for worker in workers:
            reply = worker.ask("memory")
            figure = figures[worker.backend.name]
            figure.peak_mb, figure.steady_mb = number(reply, "peak_mb"), number(reply, "steady_mb")
            figure.counters = reply["counters"]  # type: ignore[assignment]
    show_progress("")
    return figures


def start(task: str, backend: Backend, model: str, weights: Path, environment: dict[str, str] | None = None) -> Worker:
    """A worker of `backend` that does the task, "train" or "infer"; its first reply has the first steps' figures."""
    arguments = ("--model", model, "--weights", str(weights))
    return Worker(backend, f"{task}_{backend.framework}", *arguments, environment=environment)


def show(task: Task, model: str, figures: dict[str, Figures], *, with_time: bool) -> None:
    """The model's table, a row per backend, and a line where what they give parts."""
    rows = []
    for name, figure in figures.items():
        ms = [f"{statistics.median(figure.ms):.1f}", f"{min(figure.ms):.1f}"] if with_time else []
        compiled = str(figure.counters.get("executables_compiled", "-"))
        memory = [f"{figure.peak_mb:.0f}", f"{figure.steady_mb:.0f}"]
        rows.append([name, *ms, *memory, compiled, " ".join(f"{loss:.4f}" for loss in figure.given)])
    header = [
        "",
        *(["ms, median", "ms, best"] if with_time else []),
        "peak MB",
        "steady MB",
        "compiled",
        "steps 1-3 give",
    ]
    table(f"{model}: {task.what}", header, rows)
    for line in parted(model, figures):
        print(line)


def parted(model: str, figures: dict[str, Figures]) -> list[str]:
    """A line for each backend whose first three steps do not give what those of the first backend do."""
    lines = []
    names = list(figures)
    reference = next((name for name in ("cpu", "jax") if name in figures), names[0] if names else "")
    for name in names:
        pairs = zip(figures[name].given, figures[reference].given, strict=True)
        worst = max(abs(a - b) / abs(b) for a, b in pairs)
        if not worst <= LOSS_TOLERANCE[model]:
            lines.append(f"  NOT THE SAME MATHEMATICS: {name} is {worst:.1e} off {reference}")
    return lines


def judge(task: Task, model: str, figures: dict[str, Figures], *, with_time: bool) -> list[Verdict]:
    """The device's ratios to its peers, and those of a compiled step to its parts."""
    found = judge_whole(model, figures, with_time=with_time)
    ours = figures.get(task.ours)
    if ours is None:
        return found
    step = "step" if task.name == "train" else "inference"
    for peer, theirs in figures.items():
        if with_time and peer in ("jax", "xla", "openxla", "torchax"):
            reach = task.step_reach if peer == "jax" else 1.0
            found.append(Verdict(f"{model} {step}: {task.ours} / {peer}", paired_ratio(ours.ms, theirs.ms), reach))
    if "jax" in figures:
        mine, its = (getattr(figure, f"{task.memory}_mb") for figure in (ours, figures["jax"]))
        found.append(Verdict(f"{model} {step}, {task.memory} memory: {task.ours} / jax", mine / its, task.memory_reach))
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
