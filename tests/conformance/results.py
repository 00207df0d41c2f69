"""The results of runs: JSON lines, one file per op and dtype; the last line of a variant counts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .units import Unit

ROOT = Path(__file__).parents[2]
DEFAULT = ROOT / ".cache" / "conformance"

Line = dict[str, Any]


def path(directory: Path, unit: Unit) -> Path:
    """The file of one unit."""
    return directory / unit.database / f"{re.sub('[^A-Za-z0-9_.]', '-', unit.op)}.{unit.dtype}.jsonl"


def append(directory: Path, line: Line) -> None:
    """Add a line to its unit's file."""
    file = path(directory, Unit(line["database"], line["op"], line["dtype"]))
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as stream:
        stream.write(json.dumps(line) + "\n")


def of(directory: Path, unit: Unit) -> dict[str, Line]:
    """The newest line of each variant of a unit."""
    return _newest(path(directory, unit))


def every(directory: Path) -> Iterator[Line]:
    """The newest line of each variant of every unit."""
    for file in sorted(directory.glob("*/*.jsonl")):
        yield from _newest(file).values()


def _newest(file: Path) -> dict[str, Line]:
    if not file.exists():
        return {}
    found: dict[str, Line] = {}
    for text in file.read_text().splitlines():
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            continue  # the run was killed while it wrote this line
        found[line["variant"]] = line
    return found
