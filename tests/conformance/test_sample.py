"""A sample of the databases in each test run: nothing may get worse than docs/coverage.json says it is.

Per op: its first and its last sample, forward and backward in float32 and forward in one more dtype that differs from
op to op.
"""

from __future__ import annotations

import json
import zlib
from itertools import islice

import pytest

from .batch import Row, run_together, variants
from .report import DOCS
from .units import DATABASES, Unit, dtypes, entries

# Ops of a test; their cases share programs.
TOGETHER = 24
SAMPLES = 2


def sample() -> list[tuple[Unit, str]]:
    """What is tried: (unit, variant)."""
    tried = []
    for database in DATABASES:
        for name, info in entries(database).items():
            have = [str(d).removeprefix("torch.") for d in dtypes(database, info)]
            first = "float32" if "float32" in have else have[0]
            others = [d for d in have if d != first] or [first]
            other = others[zlib.crc32(name.encode()) % len(others)]
            unit = Unit(database, name, first)
            tried += [(unit, v) for v in ("forward", "backward") if v in variants(unit)]
            if other != first and database != "optim_db":
                tried.append((Unit(database, name, other), "forward"))
    return tried


def chunks() -> list[list[tuple[Unit, str]]]:
    supply = iter(sample())
    return list(iter(lambda: list(islice(supply, TOGETHER)), []))


def known() -> set[tuple[str, str, str]]:
    """What the published result says is not right, or falls back."""
    coverage = json.loads((DOCS / "coverage.json").read_text())
    found = {(f["op"], f["variant"], f["status"]) for f in coverage["failures"]}
    for database in coverage["ops"].values():
        for op, tried in database.items():
            found |= {(op, variant, "fallback") for variant, counts in tried.items() if counts.get("fallback")}
    return found


def worse(row: Row, allowed: set[tuple[str, str, str]]) -> list[str]:
    """What is not native in a row and not published as such."""
    found = []
    for status in ("wrong", "raises", "fallback"):
        if row.counts[status] and (row.unit.op, row.variant, status) not in allowed:
            said = [f["message"] for f in row.failures if f["status"] == status] or dict(row.fallbacks)
            found.append(f"{row.unit} {row.variant}: {status} {said}")
    return found


@pytest.mark.parametrize("tried", chunks(), ids=lambda c: f"{c[0][0].database}:{c[0][0].op}..{c[-1][0].op}")
def test_no_op_is_worse_than_published(tried: list[tuple[Unit, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_PJRT_FALLBACK", "silent")
    rows = run_together(tried, SAMPLES)
    assert not [message for row in rows for message in worse(row, known())]
    assert sum(row.counts["native"] for row in rows)
