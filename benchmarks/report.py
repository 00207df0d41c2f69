"""Tables, medians and verdicts of the benchmarks, and the file that keeps them."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

RESULTS = Path(__file__).resolve().parent / "results.json"


@dataclass(frozen=True)
class Verdict:
    """A ratio held against its reach, e.g. `Verdict("gpt step / jax", 1.08, 1.15)`: at most `reach` is a pass."""

    what: str
    value: float
    reach: float

    def line(self) -> str:
        met = "met" if self.value <= self.reach else "MISSED"
        return f"  {self.what:<44} {self.value:6.2f}   reach <= {self.reach:.2f}   {met}"


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under a header, the first column to the left and the others to the right."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    print(f"\n{title}")
    for row in (header, ["-" * width for width in widths], *rows):
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        print("  " + "  ".join([row[0].ljust(widths[0]), *cells[1:]]))


def verdicts(found: Sequence[Verdict]) -> None:
    """Print each verdict on a line of its own."""
    if found:
        print()
    for verdict in found:
        print(verdict.line())


def turns(of: Sequence[T], rounds: int) -> Iterator[list[T]]:
    """The order of each round: another one goes first each time, so that no one is always behind a busy neighbour."""
    for done in range(rounds):
        first = done % max(len(of), 1)
        yield [*of[first:], *of[:first]]


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median of the ratios of measurements taken next to each other in time."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def save(section: str, figures: object, found: Sequence[Verdict]) -> None:
    """Put a section's figures into results.json beside the other sections'."""
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results[section] = {"machine": machine(), "figures": figures, "verdicts": [asdict(v) for v in found]}
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")


def machine() -> dict[str, object]:
    """What ran it, and how busy the machine was with other things."""
    versions = {name: importlib.metadata.version(name) for name in ("torch", "jax", "jaxlib")}
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": model[0] if model else platform.machine(),
        "cores": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 2),
        **versions,
    }
