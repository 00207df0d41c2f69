"""Collectives and parallel training steps between processes, against gloo through CPU PyTorch and against pure JAX."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from .process import DEVICE, PEERS, Backend, WorkerError
from .ranks import Ranks
from .report import Verdict, paired_ratio, save, table, turns, verdicts
from .steps import LOSS_TOLERANCE, show_progress, weights_folder

OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
KIB = 1 << 10
SIZES = (1 * KIB, 16 * KIB, 256 * KIB, 1024 * KIB, 4096 * KIB, 16384 * KIB, 65536 * KIB)
# At 1 KiB it is the latency that counts, from 1 MiB on the bandwidth.
REACH_LATENCY, REACH_BANDWIDTH, REACH_STEP = 2.0, 1.0, 1.15
# Bytes that a block of calls moves, about; and its calls, at most.
BLOCK, CALLS = 64 << 20, 50
WAYS = ("ddp", "fsdp2")
STEPS = 2


def run(ours: bool, peers: Sequence[Backend] | None, rounds: int, sizes: Sequence[int] = SIZES) -> None:
    """A table of collectives for 2 and 4 processes, one of training steps on 2, and verdicts.

    Args:
        ours: whether this device takes part.
        peers: None is CPU PyTorch with gloo, and pure JAX.
        rounds: in which all take turns.
        sizes: of the collectives, in bytes.
    """
    chosen = [PEERS["cpu"], PEERS["jax"]] if peers is None else list(peers)
    found: list[Verdict] = []
    saved: dict[str, object] = {}
    for ranks in (2, 4):
        saved[f"collectives, {ranks} processes"], held = collectives([*([DEVICE] if ours else []), *chosen], ranks,
                                                                     rounds, sizes)  # fmt: skip
        found += held
    for way in WAYS:
        saved[way], held = steps([*([DEVICE, PEERS["compiled"]] if ours else []), *chosen], way, rounds)
        found += held
    verdicts(found)
    save("distributed", saved, found)


def collectives(
    backends: Sequence[Backend], ranks: int, rounds: int, sizes: Sequence[int]
) -> tuple[dict[str, dict[str, list[float]]], list[Verdict]]:
    """Microseconds a call, each waited for, by "OP BYTES" and backend."""
    times: dict[str, dict[str, list[float]]] = {}
    rows = []
    found = []
    with ExitStack() as stack:
        alive = started(stack, backends, ranks, "collectives")
        names = [a.backend.name for a in alive]
        for op in OPS:
            for size in sizes:
                count = max(2, min(CALLS, BLOCK // size))
                told = times[f"{op} {size}"] = {name: [] for name in names}
                show_progress(f"{op}, {size // KIB} KiB")
                for order in turns(alive, rounds):
                    for group in order:
                        told[group.backend.name].append(group.slowest(f"{op} {size} {count} each", "us"))
                ratios = {n: paired_ratio(told[DEVICE.name], told[n]) for n in names[1:] if DEVICE.name in told}
                cells = [f"{statistics.median(told[name]):.0f}" for name in names]
                rows.append([f"{op}, {size // KIB} KiB", *cells, *(f"{r:.2f}" for r in ratios.values())])
                if "cpu" in ratios and (size == sizes[0] or size >= 1024 * KIB):
                    reach = REACH_LATENCY if size == sizes[0] else REACH_BANDWIDTH
                    what = f"{op}, {size // KIB} KiB, {ranks} processes: pjrt / gloo"
                    found.append(Verdict(what, ratios["cpu"], reach))
    show_progress("")
    heads = [f"/ {n}" for n in names[1:]] if DEVICE.name in names else []
    title = f"Collectives of {ranks} processes: µs a call, each waited for, median of {rounds} blocks (cpu: gloo)"
    table(title, ["", *names, *heads], rows)
    return times, found


def steps(backends: Sequence[Backend], way: str, rounds: int) -> tuple[dict[str, object], list[Verdict]]:
    """Milliseconds of a step of the GPT on 2 processes, by backend; the losses are held together."""
    figures: dict[str, list[float]] = {}
    losses: dict[str, list[float]] = {}
    with weights_folder(("gpt",)) as folder, ExitStack() as stack:
        arguments = ("--model", "gpt", "--weights", str(Path(folder) / "gpt.npz"), "--way", way)
        alive = started(stack, backends, 2, "parallel", *arguments, losses=losses)
        for done, order in enumerate(turns(alive, rounds)):
            show_progress(f"{way}: round {done + 1} of {rounds}")
            for group in order:
                figures.setdefault(group.backend.name, []).append(group.slowest(f"steps {STEPS}", "ms"))
    show_progress("")
    rows = [
        [name, f"{statistics.median(ms):.1f}", f"{min(ms):.1f}", " ".join(f"{loss:.4f}" for loss in losses[name])]
        for name, ms in figures.items()
    ]
    title = f"{way}: a step of the GPT with AdamW on 2 processes"
    table(title, ["", "ms, median", "ms, best", "steps 1-3 give"], rows)
    reference = next(iter(losses.values()), [])
    for name, given in losses.items():
        worst = max(abs(a - b) / abs(b) for a, b in zip(given, reference, strict=True))
        if not worst <= LOSS_TOLERANCE["gpt"]:
            print(f"  NOT THE SAME MATHEMATICS: {name} is {worst:.1e} off")
    found = [
        Verdict(f"{way} step: {mine} / {peer}", paired_ratio(figures[mine], figures[peer]), reach)
        for mine in ("pjrt", "compiled")
        for peer, reach in (("cpu", 1.0), ("jax", REACH_STEP))
        if mine in figures and peer in figures
    ]
    return {"ms": figures, "losses": losses}, found


def started(
    stack: ExitStack,
    backends: Sequence[Backend],
    ranks: int,
    what: str,
    *arguments: str,
    losses: dict[str, list[float]] | None = None,
) -> list[Ranks]:
    """The groups that start; each that doesn't is a printed line. `losses` gets the means over the ranks."""
    alive = []
    for backend in backends:
        try:
            group = stack.enter_context(Ranks(backend, ranks, f"{what}_{backend.framework}", *arguments))
            replies = group.ask()
        except WorkerError as error:
            print(f"  left out: {error}")
            continue
        if losses is not None:
            given = [[float(x) for x in reply["given"]] for reply in replies]  # type: ignore[attr-defined]
            losses[backend.name] = [statistics.fmean(of_step) for of_step in zip(*given, strict=True)]
        alive.append(group)
    return alive
