"""Depth: what a training step of N equal blocks takes to compile, to run and to hold, scanned and as one program."""

from __future__ import annotations

import statistics
from contextlib import ExitStack

from .process import DEVICE, Worker, WorkerError, number
from .report import Verdict, paired_ratio, save, table, turns, verdicts

MODELS = ("gpt", "bert", "llama")
DEPTHS = (4, 12, 24, 48)
REACH_COMPILE, REACH_MEMORY = 1.5, 1.05
WAYS = {"one program": ("--scan", "no"), "blocks": (), "regions": ("--regions",)}


def run(rounds: int, depths: tuple[int, ...] = DEPTHS) -> None:
    """For each model and depth each way in a process of its own; steps take turns for `rounds` rounds."""
    figures: dict[str, dict[str, object]] = {}
    found = []
    for model in MODELS:
        compiled: dict[str, list[float]] = {way: [] for way in WAYS}
        rows = []
        for depth in depths:
            try:
                told = measured(model, depth, rounds)
            except WorkerError as error:
                print(f"  {model} {depth}: left out: {error}")
                continue
            figures[f"{model} {depth}"] = dict(told)
            whole = told["one program"]
            for way, t in told.items():
                compiled[way].append(t["reading"] + t["compiling"])
                tracing = t["first"] - t["reading"] - t["compiling"]
                rows.append([
                    f"{depth} {way}", f"{t['programs']:.0f}", f"{t['first']:.1f}", f"{tracing:.1f}",
                    f"{t['reading']:.2f}", f"{t['compiling']:.1f}", f"{t['ms']:.0f}", f"{t['wall ratio']:.2f}",
                    f"{t['cpu ratio']:.2f}", f"{t['peak_mb'] / whole['peak_mb']:.2f}",
                ])  # fmt: skip
                if way == "blocks":
                    ratio = t["peak_mb"] / whole["peak_mb"]
                    found.append(Verdict(f"{model} {depth}: memory / one program's", ratio, REACH_MEMORY))
        for way in ("blocks", "regions"):
            if len(compiled[way]) > 1:
                ratio = compiled[way][-1] / compiled[way][0]
                found.append(Verdict(f"{model}: {way}, compile {depths[-1]} / {depths[0]}", ratio, REACH_COMPILE))
        table(
            f"{model}: forward and backward of 4 x 64 tokens; the first step in CPU seconds",
            [
                "",
                "programs",
                "first step",
                "tracing",
                "reading",
                "XLA",
                "step ms",
                "ratio",
                "CPU ratio",
                "memory ratio",
            ],
            rows,
        )
    verdicts(found)
    save("depth", figures, found)


def measured(model: str, depth: int, rounds: int) -> dict[str, dict[str, float]]:
    """For each way the figures of `benchmarks.workers.depth`, and its step as a ratio to one program's."""
    told: dict[str, dict[str, float]] = {}
    with ExitStack() as running:
        workers = {}
        for way, options in WAYS.items():
            workers[way] = running.enter_context(Worker(DEVICE, "depth", model, str(depth), *options))
            answer = workers[way].ask()
            kept = ("first", "wall", "programs", "reading", "compiling", "loss")
            told[way] = {name: number(answer, name) for name in kept}
        steps: dict[str, list[dict[str, object]]] = {way: [] for way in WAYS}
        for order in turns(list(WAYS), rounds):
            for way in order:
                steps[way].append(workers[way].ask("steps 2"))
        for way, worker in workers.items():
            for name, ratio in (("ms", "wall ratio"), ("cpu_ms", "cpu ratio")):
                own, whole = ([number(s, name) for s in steps[w]] for w in (way, "one program"))
                told[way][name] = statistics.median(own)
                told[way][ratio] = paired_ratio(own, whole)
            told[way]["peak_mb"] = number(worker.ask("memory"), "peak_mb")
    if max(t["loss"] for t in told.values()) - min(t["loss"] for t in told.values()) > 1e-4:
        print(f"  {model} {depth}: NOT THE SAME MATHEMATICS: {[t['loss'] for t in told.values()]}")
    return told
