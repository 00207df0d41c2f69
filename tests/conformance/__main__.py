"""Run the databases on the device, resume, and write docs/coverage.md and docs/coverage.json.

Examples:
    python -m tests.conformance run                          # everything that has no result yet
    python -m tests.conformance run --op 'linalg.*' --dtype float32 --variant forward,backward --again
    python -m tests.conformance show --op std --status wrong # what failed, and how
    python -m tests.conformance report
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import threading
from collections import Counter
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from . import pool, report, results
from .units import DATABASES, Unit, units

# Samples that a variant of a unit takes unless --sample says otherwise, evenly spread: in float32, and in other dtypes.
# What everything rests on takes all in float32; a graph that is traced for each case takes few.
SAMPLES: dict[str, tuple[int | None, int]] = {
    "forward": (None, 16),
    "backward": (None, 16),
    "errors": (None, 16),
    "compiled": (2, 1),
    "compiled_backward": (2, 1),
}
OTHERS = (6, 2)
STATUSES = ("native", "fallback", "wrong", "raises", "skipped")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("command", choices=("run", "show", "report"))
    parser.add_argument("--database", default=",".join(DATABASES))
    parser.add_argument("--op", default="*", help="names or patterns, by comma")
    parser.add_argument("--dtype", default="*", help="names or patterns, by comma, in the order they are to run")
    parser.add_argument("--variant", default="*", help="names, by comma")
    parser.add_argument("--sample", type=int, help="samples of each unit and variant, evenly spread (0: all)")
    parser.add_argument("--again", nargs="?", const="*", default="",
                        help="run what has a result too, or what has one of these statuses (or closer)")  # fmt: skip
    parser.add_argument("--known", action="store_true", help="leave out what has no result yet")
    parser.add_argument("--status", default="wrong,raises", help="what `show` shows")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--timeout", type=float, default=300, help="seconds for one variant of a unit")
    parser.add_argument("--results", type=Path, default=results.DEFAULT)
    options = parser.parse_args()
    if options.command == "report":
        report.write(options.results)
    elif options.command == "show":
        _show(options)
    else:
        _run(options)


def _selected(options: argparse.Namespace) -> list[Unit]:
    dtypes = options.dtype.split(",")
    found = [
        u
        for u in units(tuple(options.database.split(",")))
        if _matches(u.op, options.op) and _matches(u.dtype, options.dtype)
    ]
    return sorted(found, key=lambda u: next(i for i, d in enumerate(dtypes) if fnmatch.fnmatchcase(u.dtype, d)))


def _matches(name: str, patterns: str) -> bool:
    return any(fnmatch.fnmatchcase(name, p) for p in patterns.split(","))


def _run(options: argparse.Namespace) -> None:
    from tqdm import tqdm

    from .batch import variants

    jobs = []
    for unit in _selected(options):
        have = results.of(options.results, unit)
        wanted = [v for v in variants(unit) if _matches(v, options.variant) and _due(have.get(v), options)]
        if wanted:
            jobs.append(pool.Job(unit, [(v, _limit(v, unit.dtype, options.sample)) for v in wanted]))
    totals: Counter[str] = Counter()
    tqdm.set_lock(threading.RLock())  # its own is a semaphore, which multiprocessing calls leaked at the end
    with tqdm(total=sum(len(j.variants) for j in jobs), unit="row", smoothing=0.02) as bar:

        def done(line: results.Line) -> None:
            results.append(options.results, line)
            totals.update(line["counts"])
            bar.set_postfix_str(" ".join(f"{s} {totals[s]}" for s in STATUSES), refresh=False)
            bar.update()

        pool.run(jobs, options.workers, options.timeout, done)
    print(" ".join(f"{s} {totals[s]}" for s in STATUSES))


def _limit(variant: str, dtype: str, sample: int | None) -> int | None:
    if sample is not None:
        return sample or None
    return SAMPLES.get(variant, OTHERS)[dtype != "float32"]


def _due(line: results.Line | None, options: argparse.Namespace) -> bool:
    if line is None:
        return not options.known
    found = {**line["counts"], "closer": line["closer"]}
    return options.again == "*" or any(found.get(s) for s in options.again.split(",") if s)


def _show(options: argparse.Namespace) -> None:
    for unit in _selected(options):
        for variant, line in results.of(options.results, unit).items():
            if not _matches(variant, options.variant):
                continue
            bad = {s: n for s, n in line["counts"].items() if s in options.status.split(",")}
            if bad:
                print(f"\n== {unit} {variant}: {line['counts']} {line['fallbacks'] or ''}")
                for failure in line["failures"]:
                    if failure["status"] in bad:
                        print(f"-- {failure['status']} {failure['sample']}: {failure['message']}")


if __name__ == "__main__":
    main()
