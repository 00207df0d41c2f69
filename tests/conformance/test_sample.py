"""A sample of the databases in each test run: nothing may get worse than docs/coverage.json says it is.

Per op: its first sample, forward and backward in float32 and forward in one more dtype that differs from op to op.
"""

from __future__ import annotations

import functools
import json
import zlib
from itertools import islice

import pytest

from .batch import Row, run_together, variants
from .report import DOCS
from .units import DATABASES, Unit, dtypes, entries

# Ops of a test; their cases share programs.
TOGETHER = 24
SAMPLES = 1


def sample() -> list[tuple[Unit, str]]:
    """What is tried: (unit, variant)."""
    tried = []
    for database in DATABASES:
        for name, info in entries(database).items():
            have = [str(d).removeprefix("torch.") for d in dtypes(database, info)]
            if not have:
                continue  # the CPU has no kernel of it
            first = "float32" if "float32" in have else have[0]
            others = [d for d in have if d != first] or [first]
            other = others[zlib.crc32(name.encode()) % len(others)]
            unit = Unit(database, name, first)
            # A module's backward pass is its ops' backward passes, and takes long to compile.
            ways = ("forward",) if database == "module_db" else ("forward", "backward")
            tried += [(unit, v) for v in ways if v in variants(unit)]
            if other != first and database in ("op_db", "foreach_db"):
                tried.append((Unit(database, name, other), "forward"))
    return tried


def chunks() -> list[list[tuple[Unit, str]]]:
    supply = iter(sample())
    return list(iter(lambda: list(islice(supply, TOGETHER)), []))


@functools.cache
def published() -> dict[tuple[str, str, str], set[str]]:
    """What the published result says of (database, op, variant): the ways in which some case of it is not native."""
    coverage = json.loads((DOCS / "coverage.json").read_text())
    return {
        (database, op, variant): {s for s in ("wrong", "raises", "fallback") if counts.get(s)}
        for database, ops in coverage["ops"].items()
        for op, tried in ops.items()
        for variant, counts in tried.items()
    }


def worse(row: Row) -> list[str]:
    """What is not native in a row though published as native; nothing is held to a result that is not published."""
    allowed = published().get((row.unit.database, row.unit.op, row.variant))
    found = []
    for status in ("wrong", "raises", "fallback"):
        if row.counts[status] and allowed is not None and status not in allowed:
            said = [f["message"] for f in row.failures if f["status"] == status] or dict(row.fallbacks)
            found.append(f"{row.unit} {row.variant}: {status} {said}")
    return found


@pytest.mark.parametrize("tried", chunks(), ids=lambda c: f"{c[0][0].database}:{c[0][0].op}..{c[-1][0].op}")
def test_no_op_is_worse_than_published(tried: list[tuple[Unit, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_PJRT_FALLBACK", "silent")
    rows = run_together(tried, SAMPLES)
    assert not [message for row in rows for message in worse(row)]
    assert sum(row.counts["native"] for row in rows)
