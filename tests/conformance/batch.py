"""Run a unit's cases and sort them: native, fallback, wrong, raises or skipped.

The device compiles a program for whatever is read at once, so many cases are recorded first and read together; only
if that fails is each run alone, which finds the faulty one.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from torch_pjrt.eager.trace import TraceError
from torch_pjrt.runtime.metrics import METRICS

from . import judge
from .case import DRAWS, Case, Outcome, Skip, attempt, in_float64, on_cpu, with_memory_filled
from .compiled import COMPILED_VARIANTS
from .faults import fault
from .others import MODULE_VARIANTS, OPTIMIZER_VARIANTS
from .place import DEVICE, duplicate, place
from .sparse_samples import SPARSE_VARIANTS
from .units import Unit
from .variants import OP_VARIANTS, Make, elementwise

# Cases placed together, and recorded ops from which on a batch is read: XLA's compile time per op grows with a program.
CASES, OPS = 48, 300
# Messages kept of each kind.
_KEPT = 12


@dataclass(slots=True)
class Row:
    """What one variant of a unit gave."""

    unit: Unit
    variant: str
    counts: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    failures: list[dict[str, str]] = field(default_factory=list)
    fallbacks: Counter[str] = field(default_factory=Counter)
    closer: int = 0
    seconds: float = 0.0

    def add(self, status: str, label: str = "", message: str = "") -> None:
        """Count one case."""
        self.counts[status] += 1
        if status == "skipped":
            self.reasons[message] += 1
        elif status in ("wrong", "raises"):
            kept = sum(f["status"] == status for f in self.failures)
            if kept < _KEPT:
                self.failures.append({"status": status, "sample": label, "message": message[:600]})

    def as_json(self) -> dict[str, Any]:
        """A plain dict, one line of the results."""
        return {
            "database": self.unit.database, "op": self.unit.op, "dtype": self.unit.dtype, "variant": self.variant,
            "counts": dict(self.counts), "reasons": dict(self.reasons), "failures": self.failures,
            "fallbacks": dict(self.fallbacks), "closer": self.closer, "seconds": round(self.seconds, 3),
        }  # fmt: skip


def variants(unit: Unit) -> dict[str, Make]:
    """The ways in which a unit can be tried."""
    if unit.database == "module_db":
        return MODULE_VARIANTS
    if unit.database == "optim_db":
        return OPTIMIZER_VARIANTS
    return OP_VARIANTS | SPARSE_VARIANTS | COMPILED_VARIANTS


def run(unit: Unit, variant: str, limit: int | None = None) -> Row:
    """Try a unit in one way, with all of its samples or `limit` of them."""
    return run_together([(unit, variant)], limit)[0]


def run_together(tried: Sequence[tuple[Unit, str]], limit: int | None = None) -> list[Row]:
    """Try several units, each in one way; their cases share batches. A row's seconds are those until its last batch."""
    rows = [Row(unit, variant) for unit, variant in tried]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        started = time.perf_counter()
        batch: list[tuple[Row, Case]] = []
        for row in rows:
            for case in _cases(row, limit):
                batch.append((row, case))
                if len(batch) == CASES:
                    _run_batch(batch)
                    batch = []
            if row is rows[-1]:
                _run_batch(batch)
            row.seconds = time.perf_counter() - started
    return rows


def _cases(row: Row, limit: int | None) -> Iterator[Case]:
    made = variants(row.unit)[row.variant](row.unit, limit)
    while True:
        try:
            yield next(made)
        except StopIteration:
            return
        except Skip as skip:
            row.add("skipped", message=str(skip))
            return
        except Exception as error:
            row.add("skipped", message=f"the database cannot make the sample: {type(error).__name__}: {error}"[:200])
            return


@dataclass(frozen=True, slots=True)
class _Pending:
    """A case that has been recorded on the device and not yet read."""

    row: Row
    case: Case
    want: list[Outcome]
    got: Outcome
    fallbacks: Counter[str]

    @property
    def places(self) -> frozenset[int]:
        """The arguments that are compared: what the CPU's run changed, and what the device says it has."""
        return self.case.written | self.got.moved

    @property
    def tree(self) -> Any:
        return self.got.tree(self.places)


def _run_batch(cases: list[tuple[Row, Case]]) -> None:
    wanted: list[tuple[Row, Case, list[Outcome]]] = []
    for row, case in cases:
        try:
            outcomes = on_cpu(case)
        except Skip as skip:
            row.add("skipped", message=str(skip))
            continue
        reason = _cpu_cannot(outcomes[0])
        if reason is not None:
            row.add("skipped", message=reason)
        else:
            wanted.append((row, case, outcomes))
    # Everything is placed before anything is recorded: an upload may cut the trace.
    placed = [_placed(case) for _, case, _ in wanted]
    pending: list[_Pending] = []
    start = _recorded()
    for (row, case, want), there in zip(wanted, placed, strict=True):
        pending.append(_Pending(row, case, want, *_record(case, there)))
        if _recorded() - start > OPS:
            _settle(pending)
            pending, start = [], _recorded()
    _settle(pending)


# Not refusals: what a kernel says that never expected the argument.
_ACCIDENTS = ("MKL FFT error", "INTERNAL ASSERT", "Could this error message be improved?", "SmallVector unable to grow")


def _cpu_cannot(outcome: Outcome) -> str | None:
    error = outcome.error
    if isinstance(error, NotImplementedError) or "not implemented for" in str(error):
        return "CPU PyTorch has no kernel for it"
    if isinstance(error, RuntimeError) and "forward AD" in str(error):
        return "PyTorch has no forward-mode formula of it"
    accident = any(said in str(error) for said in _ACCIDENTS)
    if isinstance(error, (AttributeError, AssertionError)) or accident:
        return f"CPU PyTorch fails itself: {type(error).__name__}"
    return None


def _placed(case: Case) -> Any:
    try:
        return place([case.inputs, case.constants])
    except Exception as error:
        return error


def _recorded() -> int:
    from torch_pjrt import _C

    return int(_C.counters()["ops_recorded"])


def _record(case: Case, there: Any) -> tuple[Outcome, Counter[str]]:
    """The case's outcome on the device, not yet read, and the ops that fell back."""
    if isinstance(there, Exception):
        return Outcome(error=there), Counter()
    before = Counter(METRICS.fallbacks)
    try:
        outcome = attempt(case, *there)
    except Skip as skip:
        outcome = Outcome(error=RuntimeError(f"the CPU had something to do here, the device not: {skip}"))
    return outcome, METRICS.fallbacks - before


def _settle(pending: list[_Pending]) -> None:
    """Read a batch's results and count its cases; if reading fails, each case again, alone."""
    try:
        read = [[judge.on_host(p.tree)] for p in pending]
        _draw_on(pending, read)
    except Exception as error:
        if len(pending) == 1:
            alone = pending[0]
            _count(alone, Outcome(error=error), [])
            return
        for p in pending:
            _settle([_Pending(p.row, p.case, p.want, *_record(p.case, _placed(p.case)))])
        return
    for p, trees in zip(pending, read, strict=True):
        _count(p, p.got, trees)


def _draw_on(pending: list[_Pending], read: list[list[Any]]) -> None:
    """Draw the rest of the random cases' results: each round runs the program that the round before compiled."""
    random = [(p, trees) for p, trees in zip(pending, read, strict=True) if p.case.random and not p.got.error]
    for _ in range(DRAWS - 1 if random else 0):
        placed = [place([p.case.inputs, p.case.constants]) for p, _ in random]
        drawn = [attempt(p.case, *there) for (p, _), there in zip(random, placed, strict=True)]
        for (p, trees), outcome in zip(random, drawn, strict=True):
            if outcome.error is not None:
                raise outcome.error
            trees.append(judge.on_host(outcome.tree(p.places)))


def _count(pending: _Pending, got: Outcome, trees: list[Any]) -> None:
    row, case = pending.row, pending.case
    status, message = _judged(pending, got, trees)
    if status == "native" and pending.fallbacks:
        status = "fallback"
    row.fallbacks.update(pending.fallbacks)
    if status in ("wrong", "raises"):
        message = f"{message}\n{_described(case)}"
    row.add(status, case.label, message)


def _judged(pending: _Pending, got: Outcome, trees: list[Any]) -> tuple[str, str]:
    judged, also = _against(pending, pending.want, got, trees), pending.case.also
    if judged[0] in ("wrong", "raises") and also is not None:
        case = replace(pending.case, program=also)
        other = attempt(case, duplicate(case.inputs), case.constants)
        if _against(replace(pending, case=case), [other], got, trees)[0] == "native":
            return "native", ""
    known = fault(pending.row.unit, pending.row.variant, judged[1])
    return ("skipped", known) if judged[0] in ("wrong", "raises") and known is not None else judged


def _against(pending: _Pending, want: list[Outcome], got: Outcome, trees: list[Any]) -> tuple[str, str]:
    case, row = pending.case, pending.row
    refused, error = want[0].error, got.error
    if refused is not None:
        if error is None:
            return "wrong", f"the device does not refuse what the CPU does: {type(refused).__name__}: {refused}"
        if isinstance(error, TraceError) or not isinstance(error, _kin(refused)):
            return "raises", f"{_said(error)}\ninstead of {_said(refused)}"
        return "native", ""
    if error is not None:
        return "raises", _said(error)
    elsewhere = judge.misplaced(pending.tree)
    if elsewhere is not None:
        return "wrong", elsewhere
    tol = judge.tolerance(row.unit)
    try:
        expected = [judge.on_host(o.tree(pending.places)) for o in want]
    except NotImplementedError:
        return "skipped", "CPU PyTorch cannot read its own result"
    if case.random:
        message = judge.same_distribution(row.unit, trees, expected)
        return ("wrong", message) if message else ("native", "")
    if case.undefined:
        shapes = [[(t.shape, t.dtype) for t in judge.tensors(x)] for x in (trees[0], expected[0])]
        return ("native", "") if shapes[0] == shapes[1] else ("wrong", f"shapes: {shapes[0]}, want {shapes[1]}")
    message = judge.difference(trees[0], expected[0], tol)
    if message is None:
        return "native", ""
    if _closer(pending, trees[0], expected[0], tol):
        row.closer += 1
        return "native", ""
    if judge.difference(judge.on_host(with_memory_filled(case).tree(pending.places)), expected[0], tol) is not None:
        return "skipped", "CPU PyTorch returns memory that it never wrote"
    return "wrong", message


def _closer(pending: _Pending, got: Any, want: Any, tol: judge.Tolerance) -> bool:
    exact = in_float64(pending.case)
    if exact.error is not None:
        return False
    noise = judge.half_a_unit(pending.row.unit)
    shaken = [in_float64(pending.case, noise, seed) for seed in range(1, judge.SHAKEN + 1) if noise]
    outcomes = [judge.on_host(o.tree(pending.places)) for o in (exact, *shaken) if o.error is None]
    alone = elementwise(pending.row.unit) and pending.row.variant not in ("backward", "double_backward")
    return judge.closer(got, want, outcomes[0], outcomes[1:], tol, elementwise=alone)


def _kin(refused: Exception) -> tuple[type[Exception], ...]:
    """The types that stand for the CPU's: a NotImplementedError is a RuntimeError already."""
    kinds = (RuntimeError, ValueError, IndexError, TypeError)
    return tuple(k for k in kinds if isinstance(refused, k)) or (type(refused),)


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error)[:400]}"


def _described(case: Case) -> str:
    def one(x: Any) -> str:
        if isinstance(x, torch.Tensor):
            return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}"
        if isinstance(x, (list, tuple)):
            return "[" + ", ".join(map(one, x)) + "]"
        if isinstance(x, dict):
            return "{" + ", ".join(f"{k}: {one(v)}" for k, v in x.items()) + "}"
        return repr(x)[:60].replace(DEVICE, "cpu")

    return one(case.inputs)[:300]
