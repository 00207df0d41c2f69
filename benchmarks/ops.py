"""Single operations, forward and backward, on the device beside pure JAX and CPU PyTorch.

    python -m benchmarks.ops [--only mm,softmax] [--rounds 9]

Each takes turns with the others in one process; a call is waited for, so a figure has what it costs to dispatch and to
wait. "backward" is a forward and a backward pass, with both results; JAX's is a jitted `jax.vjp`. All three give the
same numbers, or the row says by how much they differ.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import torch
from torch import Tensor

from .op_cases import CASES, Case
from .report import Verdict, paired_ratio, save, table, turns, verdicts
from .steps import show_progress

REACH = 1.2
# Seconds that a block of calls takes, about.
BLOCK = 0.03
Call = Callable[[], Any]


def run(cases: Sequence[Case], rounds: int) -> None:
    """A table of all cases, and a verdict for each ratio to pure JAX."""
    rows, found, saved = [], [], {}
    for number, case in enumerate(cases):
        for backward in (False, True) if case.gradient else (False,):
            what = f"{case.name}{', backward' if backward else ''}"
            show_progress(f"{number + 1} of {len(cases)}: {what}")
            calls = _calls(case, backward)
            times = _timed(calls, rounds)
            ratios = {name: paired_ratio(times["pjrt"], times[name]) for name in ("jax", "cpu")}
            differs = _difference(calls)
            rows.append([what, *(f"{statistics.median(ms) * 1e3:.2f}" for ms in times.values()),
                         f"{ratios['jax']:.2f}", f"{ratios['cpu']:.2f}", differs])  # fmt: skip
            found.append(Verdict(f"{what} / jax", ratios["jax"], REACH))
            saved[what] = {name: statistics.median(ms) for name, ms in times.items()} | {"ratios": ratios}
    show_progress("")
    table(f"ms a call, waited for, medians of {rounds} blocks", ["", "pjrt", "jax", "cpu", "/ jax", "/ cpu", ""], rows)
    verdicts([v for v in found if v.value > v.reach])
    print(f"  {sum(v.value <= v.reach for v in found)} of {len(found)} within {REACH} of pure JAX")
    save("ops", saved, found)


def _calls(case: Case, backward: bool) -> dict[str, Call]:
    device = torch._C._get_privateuse1_backend_name()
    drawn = torch.Generator().manual_seed(0)
    operands = [torch.randn(shape, generator=drawn) for shape in case.shapes]
    others = list(case.others())
    return {
        "pjrt": _torch_call(case, [t.to(device) for t in operands], [t.to(device) for t in others], backward),
        "jax": _jax_call(case, operands, others, backward),
        "cpu": _torch_call(case, operands, others, backward),
    }


def _torch_call(case: Case, operands: Sequence[Tensor], others: Sequence[Tensor], backward: bool) -> Call:
    leaves = [t.detach().clone().requires_grad_(backward) for t in operands]
    wait = torch.accelerator.synchronize if leaves[0].device.type != "cpu" else lambda: None
    seed = torch.from_numpy(_seed(case, leaves, others)).to(leaves[0].device)

    def call() -> Any:
        out = case.torch(*leaves, *others)
        results = [out.detach(), *torch.autograd.grad(out, leaves, seed)] if backward else [out]
        wait()
        return results

    return call


def _jax_call(case: Case, operands: Sequence[Tensor], others: Sequence[Tensor], backward: bool) -> Call:
    given = [jax.numpy.asarray(t.numpy()) for t in operands]
    indices = [jax.numpy.asarray(t.numpy()) for t in others]
    seed = jax.numpy.asarray(_seed(case, operands, others))

    def gradients(seed: Any, *arrays: Any) -> Any:
        out, pull = jax.vjp(lambda *x: case.jax(*x, *arrays[len(given) :]), *arrays[: len(given)])
        return [out, *pull(seed)]

    compiled = jax.jit(gradients if backward else lambda _, *x: [case.jax(*x)])
    return lambda: jax.block_until_ready(compiled(seed, *given, *indices))


def _seed(case: Case, operands: Sequence[Tensor], others: Sequence[Tensor]) -> np.ndarray:
    """The gradient of the result that a backward pass begins with."""
    shape = case.torch(*operands, *others).shape
    return np.random.default_rng(0).standard_normal(tuple(shape), np.float32)


def _timed(calls: dict[str, Call], rounds: int) -> dict[str, list[float]]:
    counts = {}
    for name, call in calls.items():
        for _ in range(3):
            call()
        began = time.perf_counter()
        call()
        counts[name] = max(1, min(200, int(BLOCK / max(time.perf_counter() - began, 1e-6))))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for order in turns(list(calls), rounds):
        for name in order:
            began = time.perf_counter()
            for _ in range(counts[name]):
                calls[name]()
            times[name].append((time.perf_counter() - began) / counts[name])
    return times


def _difference(calls: dict[str, Call]) -> str:
    """ "" if the device and JAX give the numbers of CPU PyTorch, else the largest difference, of the largest number."""
    seen = {name: [np.asarray(r.cpu() if isinstance(r, Tensor) else r) for r in call()] for name, call in calls.items()}
    said = []
    for name in ("pjrt", "jax"):
        pairs = list(zip(seen[name], seen["cpu"], strict=True))
        worst = max(float(np.abs(a - b).max() / max(1e-30, np.abs(b).max())) for a, b in pairs)
        if worst > 1e-4:
            said.append(f"{name} differs by {worst:.1e}")
    return ", ".join(said)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ops", description=__doc__)
    parser.add_argument("--only", default="", help="names, by comma")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    wanted = [name.strip() for name in options.only.split(",") if name.strip()]
    run([c for c in CASES if not wanted or c.name in wanted], options.rounds)


if __name__ == "__main__":
    main()
