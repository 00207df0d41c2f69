"""Compiled inference and training steps against peers that compile too, and what a call costs beyond its program."""

from __future__ import annotations

from collections.abc import Sequence

from . import steps
from .process import PEERS, Backend, Worker, WorkerError
from .report import Verdict, save, table, verdicts

REACH_TIME, REACH_MEMORY = 1.05, 1.10
ARGUMENTS = (1, 10, 100)
STEPS = {"mlp": 100, "resnet": 8, "gpt": 8, "bert": 8}
TASKS = (
    steps.Task("infer", "compiled inference", "compiled", REACH_TIME, REACH_MEMORY, STEPS, "steady"),
    steps.Task("train", "a training step, compiled", "compiled", REACH_TIME, REACH_MEMORY, steps.STEPS),
)
AGAINST = ("jax", "openxla", "torchax", "inductor")


def run(ours: Sequence[Backend], peers: Sequence[Backend] | None, rounds: int, models: tuple[str, ...]) -> None:
    """Each model forward, then as a training step, then calls of tiny graphs; verdicts at the end.

    Args:
        ours: empty if the peers alone are to be measured.
        peers: None is those in `AGAINST`.
    """
    mine = PEERS["compiled"]
    backends = [*([mine] if ours else []), *([PEERS[n] for n in AGAINST] if peers is None else peers)]
    saved: dict[str, object] = {}
    found: list[Verdict] = []
    for task in TASKS:
        saved[task.name], held = steps.compare(task, backends, rounds, models)
        found += held
    if ours:
        saved["overhead"], held = overhead(mine, rounds)
        found += held
    verdicts(found)
    save("compiled", saved, found)


def overhead(backend: Backend, rounds: int) -> tuple[object, list[Verdict]]:
    """Microseconds of a compiled call of a tiny graph, beside the same function as an executable of JAX's."""
    told: dict[str, dict[str, float]] = {}
    try:
        with Worker(backend, "call_overhead") as worker:
            worker.ask()
            for n in ARGUMENTS:
                told[str(n)] = worker.ask(f"{n} {5 * rounds}")  # type: ignore[assignment]
    except WorkerError as error:
        print(f"  overhead: left out: {error}")
        return told, []
    rows = [[n, *(f"{us[k]:.1f}" for k in ("compiled", "executable", "overhead", "pytorch"))] for n, us in told.items()]
    table(
        f"µs per call of a sum of small tensors, medians of {5 * rounds} interleaved blocks",
        ["arguments", "compiled", "executable alone", "overhead", "PyTorch's part of it"], rows,
    )  # fmt: skip
    return told, [
        Verdict(f"overhead of a call, µs, {n} arguments", us["overhead"], 40 + float(n)) for n, us in told.items()
    ]
