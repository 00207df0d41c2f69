"""Random lengths: how many programs all of them take, and what padding costs against a program for each length."""

from __future__ import annotations

import json
import os
import statistics
import subprocess

from .process import DEVICE, ROOT, TIMEOUT_S
from .report import Verdict, save, table, verdicts

MODELS = ("gpt", "bert")
REACH_PROGRAMS, REACH_STEP = 8, 1.3


def run(lengths: int, static: int) -> None:
    """For each model `lengths` random lengths of 1 to 512, `static` of them timed against a program of their own."""
    rows, found, figures = [], [], {}
    for model in MODELS:
        worker = [DEVICE.python(), "-m", "benchmarks.workers.lengths", model]
        done = subprocess.run(
            [*worker, f"--lengths={lengths}", f"--static={static}"],
            capture_output=True, text=True, cwd=ROOT, env={**os.environ, **DEVICE.environment}, timeout=2 * TIMEOUT_S,
        )  # fmt: skip
        if done.returncode != 0:
            print(f"  {model}: left out: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
            continue
        figures[model] = told = json.loads(done.stdout.splitlines()[-1])
        padded, alone = (sum(statistics.median(pair[k]) for pair in told["seconds"].values()) for k in (0, 1))
        worst = max(statistics.median(a) / statistics.median(b) for a, b in told["seconds"].values())
        rows.append([model, str(told["programs"]), f"{padded / alone:.2f}", f"{worst:.2f}", f"{told['worst']:.1e}"])
        found.append(Verdict(f"{model}: programs for {lengths} lengths", told["programs"], REACH_PROGRAMS))
        found.append(Verdict(f"{model}: mean step / static step", padded / alone, REACH_STEP))
    table(
        f"inference, {lengths} random lengths of 1..512, batch 2; {static} of them also compiled alone",
        ["", "programs", "mean step / static", "worst length", "rel. difference from CPU"], rows,
    )  # fmt: skip
    verdicts(found)
    save("dynamic", figures, found)
