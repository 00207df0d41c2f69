"""Run every example on CPU PyTorch and on the device, compare the results, print a table and draw a picture.

    python examples/demo.py

Each example runs in a process of its own (`demo.py --worker JOB DEVICE FILE`), so that one that hangs or crashes shows
up as a failed row. The examples know nothing of this: the worker calls them as any program could, and then reads the
device's metrics. Exits with 1 if a program or a check fails.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

OUTPUT = Path(__file__).parent / "output"
TIMEOUT = 300  # seconds for one program on one device

MIN_ACCURACY = 0.97
MIN_COSINE = 0.9999
# Relative, at every step, dropout off. Measured on CPU PyTorch over these 88 steps, with both models: initial weights
# changed by one unit in the last place move the loss by up to 8.3e-7; one parameter's gradient set to zero, by 1.0e-3
# to 8.1e-2 (three parameters of each). A gradient of the wrong size is harder to see, since AdamW divides the size out:
# halved, 4e-6 to 2e-3, so not every one is caught here. XLA:CPU against CPU PyTorch: 1.2e-6.
LOSS_TOLERANCE = 1e-5

EPOCHS = {"vit": 15, "resnet": 6}
CURVE_EPOCHS = 4  # of the run with dropout off: 88 steps


@dataclass
class Result:
    """One program on one device, as the worker reports it."""

    seconds: dict[str, float] = field(default_factory=dict)  # {"step": 0.012}: the time of one unit of work
    value: str = ""  # what the program found, for the table
    accuracy: float | None = None
    losses: list[float] | None = None  # per step, dropout off
    vectors: list[list[float]] | None = None
    tokens: list[int] | None = None
    metrics: dict[str, Any] | None = None
    error: str = ""


def train_job(model: str) -> Callable[[str], Result]:
    def job(device: str) -> Result:
        import train_digits

        trained = train_digits.train(model, device, epochs=EPOCHS[model])
        plain = train_digits.train(model, device, epochs=CURVE_EPOCHS, dropout=0.0)
        # The first epoch is left out: it holds the compilation, or the CPU's own first-call costs.
        return Result(
            seconds={"step": median(trained.step_seconds[1:])},
            value=f"accuracy {trained.accuracy:.2%}, loss {trained.losses[-1]:.4f}",
            accuracy=trained.accuracy,
            losses=plain.losses,
        )

    return job


def embed_job(device: str) -> Result:
    import embed_sentences

    result = embed_sentences.embed(device)
    return Result(
        seconds={"sentence": 1 / result.sentences_per_second},
        value=f"first pass {result.first_seconds:.2f} s",
        vectors=result.vectors.tolist(),
    )


def generate_job(device: str) -> Result:
    import generate_text

    result = generate_text.generate(device)
    text = " ".join(result.text.split())
    return Result(seconds={"token": 1 / result.tokens_per_second}, value=f"“{text[:40]}…”", tokens=result.tokens)


JOBS: dict[str, Callable[[str], Result]] = {
    "ViT, digits": train_job("vit"),
    "ResNet, digits": train_job("resnet"),
    "MiniLM, 64 sentences": embed_job,
    "SmolLM2, 64 tokens": generate_job,
}
Pair = tuple[Result, Result]  # (on CPU PyTorch, on the device)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default=None, help="the name of the PrivateUse1 device by default")
    parser.add_argument("--only", action="append", metavar="WORD", help="only programs with this word in their name")
    parser.add_argument("--worker", nargs=3, metavar=("JOB", "DEVICE", "FILE"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(*args.worker)
        return 0
    device = args.device or device_name()
    OUTPUT.mkdir(exist_ok=True)
    words = [word.lower() for word in args.only or [""]]
    names = [name for name in JOBS if any(word in name.lower() for word in words)]
    if not names:
        parser.error(f"--only: no program has {' or '.join(words)} in its name; there are: {', '.join(JOBS)}")
    start = time.perf_counter()
    pairs = {name: (run(name, "cpu"), run(name, device)) for name in names}
    print("\n" + table(pairs, device))
    print(f"\n{time.perf_counter() - start:.0f} s in all. Checks:")
    passed = True
    for name, pair in pairs.items():
        for ok, text in checks(pair):
            passed &= ok
            print(f"  {'ok    ' if ok else 'FAILED'}  {name}: {text}")
    print(f"picture: {picture(pairs, device)}")
    return 0 if passed else 1


def device_name() -> str:
    """The name that torch-pjrt gave its device when torch was imported, e.g. "pjrt" or "tpu"."""
    import torch

    name: str = torch._C._get_privateuse1_backend_name()
    if name == "privateuseone":
        raise SystemExit("torch-pjrt is not installed here: run `make setup`, or choose another device with --device")
    return name


def run(name: str, device: str) -> Result:
    """Run a job in a process of its own; its progress bars and error messages appear as they come."""
    print(f"--- {name} on {device}", flush=True)
    file = OUTPUT / f"{name.split(',')[0].lower()}-{'device' if device != 'cpu' else 'cpu'}.json"
    file.unlink(missing_ok=True)
    try:
        subprocess.run([sys.executable, __file__, "--worker", name, device, str(file)], check=True, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        return Result(error=f"timed out after {TIMEOUT} s")
    except subprocess.CalledProcessError as error:
        return Result(error=f"failed with exit status {error.returncode}, see above")
    return Result(**json.loads(file.read_text()))


def work(name: str, device: str, file: str) -> None:
    """In the worker: run the job, read the device's metrics, write the result."""
    import torch

    result = JOBS[name](device)
    if device != "cpu":
        result.metrics = torch.get_device_module(device).metrics()
    Path(file).write_text(json.dumps(asdict(result)))


def checks(pair: Pair) -> list[tuple[bool, str]]:
    """(passed, what was checked with the figures) for one program on both devices."""
    failed = [(False, f"{where}: {r.error}") for where, r in zip(("CPU", "device"), pair, strict=True) if r.error]
    if failed:
        return failed
    cpu, device = pair
    found = []
    if cpu.accuracy is not None and device.accuracy is not None:
        worst = min(cpu.accuracy, device.accuracy)
        found.append((worst >= MIN_ACCURACY, f"test accuracy ≥ {MIN_ACCURACY:.0%} on both (lowest {worst:.2%})"))
    if cpu.losses and device.losses:
        far = max(abs(d - c) / abs(c) for c, d in zip(cpu.losses, device.losses, strict=True))
        text = f"{len(cpu.losses)} losses agree within {LOSS_TOLERANCE:g} with dropout off (furthest apart {far:.1e})"
        found.append((far <= LOSS_TOLERANCE, text))
    if cpu.vectors and device.vectors:
        lowest = min_cosine(pair)
        found.append((lowest >= MIN_COSINE, f"cosine similarity with the CPU ≥ {MIN_COSINE} (lowest {lowest:.7f})"))
    if cpu.tokens and device.tokens:
        same = sum(c == d for c, d in zip(cpu.tokens, device.tokens, strict=False))
        wanted = max(len(cpu.tokens), len(device.tokens))
        found.append((same == wanted == 64, f"the same 64 tokens ({same} of {wanted} are the same)"))
    return found


def min_cosine(pair: Pair) -> float:
    """The lowest cosine similarity between the two devices' embeddings of one sentence."""
    import numpy as np

    # In float64: the vectors' lengths are 1 up to float32 rounding, which is not to count as a difference.
    cpu, device = (np.array(result.vectors, dtype=np.float64) for result in pair)
    lengths = np.linalg.norm(cpu, axis=1) * np.linalg.norm(device, axis=1)
    return float(((cpu * device).sum(axis=1) / lengths).min())


def table(pairs: dict[str, Pair], device: str) -> str:
    """The table of all results as text."""
    head = ["program", "device", "speed", "result", "fallbacks", "syncs", "compiled"]
    rows = [head]
    for name, pair in pairs.items():
        for where, result in zip(("CPU PyTorch", device), pair, strict=True):
            value = result.error or result.value
            if not result.error and where == device and pair[0].vectors and result.vectors:
                value = f"min. cosine {min_cosine(pair):.7f}, {value}"
            rows.append([name, where, speed(result), value, *counts(result.metrics)])
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "  ".join("-" * w for w in widths), *lines[1:]])


def speed(result: Result) -> str:
    """Time per step, or units per second where that is the custom."""
    for unit, seconds in result.seconds.items():
        return f"{1000 * seconds:.1f} ms/step" if unit == "step" else f"{1 / seconds:.1f} {unit}s/s"
    return "–"


def counts(metrics: dict[str, Any] | None) -> list[str]:
    """[CPU fallbacks, host syncs, executables compiled], each with what caused the most of them."""
    if metrics is None:
        return ["–", "–", "–"]
    return [tally(metrics["fallbacks"]), tally(metrics["host_syncs"]), str(metrics["executables_compiled"])]


def tally(by_cause: dict[str, int]) -> str:
    """The total of a count by cause, with the commonest cause: "64 (aten::item)"."""
    if not by_cause:
        return "0"
    return f"{sum(by_cause.values())} ({max(by_cause, key=lambda cause: by_cause[cause])})"


def picture(pairs: dict[str, Pair], device: str) -> Path:
    """Draw loss curves and step times to output/demo.png."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    curves = {name: pair for name, pair in pairs.items() if pair[0].losses and pair[1].losses}
    figure, axes = plt.subplots(1, len(curves) + 1, figsize=(5 * (len(curves) + 1), 4.2), layout="constrained")
    axes = [axes] if not curves else list(axes)
    for axis, (name, (cpu, other)) in zip(axes, curves.items(), strict=False):
        axis.plot(cpu.losses, color="tab:blue", linewidth=3.5, alpha=0.4, label="CPU PyTorch")
        axis.plot(other.losses, color="tab:orange", linewidth=1.2, label=device)
        axis.set(title=f"{name}: training loss, dropout off", xlabel="step", ylabel="cross-entropy", yscale="log")
        axis.legend()
    draw_times(axes[-1], pairs, device)
    path = OUTPUT / "demo.png"
    figure.savefig(path, dpi=120)
    return path


def draw_times(axis: Any, pairs: dict[str, Pair], device: str) -> None:
    """Bars of the time per step, sentence or token, CPU beside device."""
    for offset, where, color in ((-0.2, "CPU PyTorch", "tab:blue"), (0.2, device, "tab:orange")):
        for position, pair in enumerate(pairs.values()):
            for seconds in pair[0 if offset < 0 else 1].seconds.values():
                bar = axis.bar(position + offset, 1000 * seconds, 0.38, color=color, label=where)
                axis.bar_label(bar, fmt="%.1f", fontsize=8)
    units = [next(iter(pair[0].seconds or pair[1].seconds), "–") for pair in pairs.values()]
    labels = [f"{name.split(',')[0]}\nper {unit}" for name, unit in zip(pairs, units, strict=True)]
    axis.set_xticks(range(len(pairs)), labels)
    axis.set(title="time (after the first, compiling, round)", ylabel="ms")
    unique = dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
    axis.legend(unique.values(), unique.keys())


if __name__ == "__main__":
    sys.exit(main())
