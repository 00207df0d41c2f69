"""`make soak`: 10,000 training steps, then 100,000 tensors made and freed; fails where memory grew."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

from tqdm import tqdm

from .leak import Figures, growth, host_growth, soak
from .programs import TENSORS_A_TURN, churn, training


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--steps", type=int, default=10_000, help="training steps (at least 200)")
    parser.add_argument("--tensors", type=int, default=100_000, help="tensors made and freed (at least 5,000)")
    chosen = parser.parse_args()
    found = [
        *_run("training steps", training(), chosen.steps, warm=100),
        *_run(f"turns of {TENSORS_A_TURN} tensors", churn(), chosen.tensors // TENSORS_A_TURN, warm=20),
    ]
    return 1 if found else 0


def _run(name: str, turn: Callable[[], None], turns: int, *, warm: int) -> list[str]:
    start = time.monotonic()
    figures = soak(turn, tqdm(range(turns), desc=name, file=sys.stderr, mininterval=1), warm=warm)
    _report(name, figures, time.monotonic() - start)
    found = growth(figures)
    for sentence in found:
        print(f"  GREW: {sentence}")
    return found


def _report(name: str, figures: list[Figures], seconds: float) -> None:
    print(f"{figures[-1].turn} {name} in {seconds:.0f} s")
    for figure in (figures[0], figures[len(figures) // 2], figures[-1]):
        print(f"  {figure}")
    print(f"  host growth, by medians of the outer thirds: {host_growth(figures) / 2**20:.2f} MiB")


if __name__ == "__main__":
    sys.exit(main())
