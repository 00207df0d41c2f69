"""docs/coverage.md and docs/coverage.json, made of the results and nothing else."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from . import results
from .results import Line
from .units import Unit, category, units

STATUSES = ("native", "fallback", "wrong", "raises", "skipped")
DOCS = results.ROOT / "docs"

_INTRODUCTION = """\
# Operator coverage

Made by `make conformance` (`python -m tests.conformance report`); not to be edited. The same numbers for programs are
in [coverage.json](coverage.json).

{tried} of the databases' {units} entries and dtypes have results; {seconds} core-seconds of running went into them.

PyTorch's own databases (`torch.testing._internal`: operators, foreach operators, modules, optimizers) with the samples
that PyTorch tests itself with, run on {platform} and held against CPU PyTorch {torch} (jax {jax}).

* **native**: right, and all of it on the device. **fallback**: right, but an op of it ran on the CPU. **wrong**:
  another result, or no error where the CPU has one. **raises**: an error where the CPU has none (or one of another
  type), a crash or a hang. **skipped**: says nothing about the device; the reasons are below.
* **Samples**: forward, backward and errors: all in float32, sixteen of the few ops that have more in other dtypes;
  compiled: two in float32, one in other dtypes; the rest six and two. `--sample 0` takes all of everything.
* A result is right if it is within `torch.testing.assert_close`'s tolerance for its dtype, or the wider one that
  PyTorch's own tests grant the op; or if each element is as near to the float64 result as that tolerance asks, or
  within four times what is uncertain about it: CPU PyTorch's own error, and what it changes if the arguments change by
  half a unit in the last place, the largest of the tensor or, of elementwise operators, of the element ({closer} cases:
  the CPU accumulates in half precision, terms cancel, or the problem is ill-conditioned). Factors defined up to a phase
  (svd, eig, eigh) are compared as PyTorch's samples prescribe. Random ops are compared by distribution
  (Kolmogorov-Smirnov). A compiled op may also do what PyTorch's decompositions do on the CPU (`aot_eager`).
* Where CPU PyTorch is found at fault ([faults.py](../tests/conformance/faults.py)) or returns memory that it never
  wrote, and the device does otherwise, the case is skipped with that reason.
"""


def write(directory: Path) -> None:
    """Make both files from the results in a directory."""
    lines = list(results.every(directory))
    made = summary(lines)
    (DOCS / "coverage.json").write_text(json.dumps(made, indent=1, sort_keys=True) + "\n")
    (DOCS / "coverage.md").write_text(_page(made))
    print(f"{len(lines)} results -> {DOCS / 'coverage.md'}, {DOCS / 'coverage.json'}")


def summary(lines: Iterable[Line]) -> dict[str, Any]:
    """The content of coverage.json."""
    lines = [line for line in lines if sum(line["counts"].values())]
    ops: dict[str, dict[str, dict[str, Counter[str]]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(Counter)))
    skipped: Counter[str] = Counter()
    for line in lines:
        ops[line["database"]][line["op"]][line["variant"]].update(line["counts"])
        skipped.update(line["reasons"])
    return {
        "torch": version("torch"),
        "jax": version("jax"),
        "platform": "XLA:CPU",
        "units": sum(1 for _ in units()),
        "tried": len({_unit(line) for line in lines}),
        "seconds": round(sum(line["seconds"] for line in lines)),
        "variants": _totals(lines, lambda line: line["variant"]),
        "categories": _totals(lines, lambda line: category(_unit(line))),
        "dtypes": _totals(lines, lambda line: line["dtype"]),
        "ops": ops,
        "closer": sum(line["closer"] for line in lines),
        "skipped": dict(skipped.most_common()),
        "fallbacks": _fallbacks(lines),
        "failures": _failures(lines),
    }


def _unit(line: Line) -> Unit:
    return Unit(line["database"], line["op"], line["dtype"])


def _totals(lines: Iterable[Line], key: Callable[[Line], str]) -> dict[str, dict[str, int]]:
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for line in lines:
        found[key(line)].update(line["counts"])
    return {k: {s: found[k][s] for s in STATUSES} for k in sorted(found)}


def _fallbacks(lines: Iterable[Line]) -> dict[str, list[str]]:
    """ATen ops that ran on the CPU, with the database's ops that met them."""
    found: dict[str, set[str]] = defaultdict(set)
    for line in lines:
        for op in line["fallbacks"]:
            found[op].add(line["op"])
    return {op: sorted(met) for op, met in sorted(found.items())}


def _failures(lines: Iterable[Line]) -> list[dict[str, Any]]:
    """What is wrong or raises: per op, variant and status, the dtypes and one message."""
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for line in lines:
        for status in ("wrong", "raises"):
            cases = line["counts"].get(status, 0)
            if not cases:
                continue
            key = (line["database"], line["op"], line["variant"], status)
            first = next(f["message"] for f in line["failures"] if f["status"] == status)
            entry = found.setdefault(key, dict(zip(("database", "op", "variant", "status"), key, strict=True)))
            entry.setdefault("dtypes", []).append(line["dtype"])
            entry["cases"] = entry.get("cases", 0) + cases
            entry.setdefault("message", _short(first))
    return [found[k] for k in sorted(found)]


def _short(message: str) -> str:
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    head = lines[0]
    if head.startswith("Tensor-likes are not"):
        head = "values differ: " + "; ".join(line for line in lines if line.startswith("Greatest"))
    sample = lines[-1] if len(lines) > 1 and lines[-1].startswith("[") else ""
    return f"{head[:160]} {sample[:110]}".strip()


def _page(made: dict[str, Any]) -> str:
    parts = [
        _INTRODUCTION.format(
            **{k: made[k] for k in ("platform", "torch", "jax", "closer", "units", "tried", "seconds")}
        )
    ]
    for title, key in (("What was tried", "variants"), ("By category", "categories"), ("By dtype", "dtypes")):
        parts.append(f"## {title}\n\n" + _table(made[key]))
    parts.append("## What is not right\n\n" + (_failure_table(made["failures"]) or "Nothing.\n"))
    parts.append("## What runs on the CPU\n\n" + ("\n".join(
        f"* `{op}`, met by {', '.join(met[:6])}{' …' if len(met) > 6 else ''}" for op, met in made["fallbacks"].items()
    ) or "Nothing.") + "\n")  # fmt: skip
    parts.append("## Why cases were skipped\n\n" + "".join(f"* {n}: {r}\n" for r, n in made["skipped"].items()))
    parts.append(
        "## Every op\n\nNative cases of all that were not skipped, per way of trying it.\n\n" + _ops(made["ops"])
    )
    return "\n".join(parts)


def _table(totals: dict[str, dict[str, int]]) -> str:
    rows = ["| | cases | native | fallback | wrong | raises | right | skipped |", "|---|--:|--:|--:|--:|--:|--:|--:|"]
    whole: Counter[str] = Counter()
    for counts in totals.values():
        whole.update(counts)
    for name, counts in [*totals.items(), ("**all**", whole)]:
        tried = sum(counts[s] for s in STATUSES if s != "skipped")
        right = f"{100 * (counts['native'] + counts['fallback']) / tried:.2f} %" if tried else ""
        rows.append(
            f"| {name} | {tried} | {counts['native']} | {counts['fallback']} | {counts['wrong']} | "
            f"{counts['raises']} | {right} | {counts['skipped']} |"
        )
    return "\n".join(rows) + "\n"


def _failure_table(failures: list[dict[str, Any]]) -> str:
    if not failures:
        return ""
    rows = ["| op | tried | status | cases | dtypes | first message |", "|---|---|---|--:|---|---|"]
    for f in failures:
        message = f["message"].replace("|", "\\|").replace("`", "'")
        rows.append(
            f"| {f['op']} | {f['variant']} | {f['status']} | {f['cases']} | {', '.join(f['dtypes'])} | {message} |"
        )
    return "\n".join(rows) + "\n"


def _ops(databases: dict[str, Any]) -> str:
    parts = []
    for database, ops in sorted(databases.items()):
        found = sorted({v for variants in ops.values() for v in variants})
        rows = ["| " + " | ".join([database, *found]) + " |", "|---" + "|--:" * len(found) + "|"]
        rows += ["| " + " | ".join([op, *(_share(ops[op].get(v)) for v in found)]) + " |" for op in sorted(ops)]
        parts.append("\n".join(rows) + "\n")
    return "\n".join(parts)


def _share(counts: Counter[str] | None) -> str:
    tried = sum(n for s, n in (counts or {}).items() if s != "skipped")
    if not counts or not tried:
        return ""
    native = counts.get("native", 0)
    return str(native) if native == tried else f"**{native}** / {tried}"
