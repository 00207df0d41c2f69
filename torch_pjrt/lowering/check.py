"""What a program must find true of its data, and says so if it doesn't: indices in range, divisors that aren't zero.

XLA has no exceptions: a gather clamps an index that is out of range, a scatter drops it. A lowering that knows what its
arguments must be calls one of the `require_` functions here; whoever evaluates the lowerings collects what they ask
(`collecting`), has the program return the findings, and raises on the host (`eager/verdict.py`).

A finding is an int64 scalar: `FINE`, or the offending value (0 where there is none to show).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
from jax import Array
from jax.extend.core import get_opaque_trace_state

FINE = -(2**63)


@dataclass(frozen=True, slots=True)
class Requirement:
    """What was required, for the message when it is not met.

    Attributes:
        kind: "index" (an IndexError) or "argument" (a RuntimeError), as PyTorch distinguishes them.
        text: the message; `{value}` in it is the offending value.
    """

    kind: str
    text: str


@dataclass(slots=True)
class Collector:
    """Findings of the lowerings evaluated so far, in order."""

    level: Any
    found: list[tuple[Requirement, Array]] = field(default_factory=list)


_COLLECTOR: ContextVar[Collector | None] = ContextVar("collector", default=None)


@contextmanager
def collecting() -> Iterator[Collector]:
    """Collect what the lowerings called within require. Without it, nothing is checked."""
    collector = Collector(_level())
    token = _COLLECTOR.set(collector)
    try:
        yield collector
    finally:
        _COLLECTOR.reset(token)


def require_index(index: Array, n: int, *, wrap: bool, dim: int | None = None, what: str = "index") -> None:
    """Every element of `index` must be in [-n, n) if `wrap`, else in [0, n)."""
    where = f"with size {n}" if dim is None else f"for dimension {dim} with size {n}"
    if index.size == 0 or not _listening():
        return
    wide = index.astype(jnp.int64)
    low, high = wide.min(), wide.max()
    bad = jnp.where(high >= n, high, jnp.where(low < (-n if wrap else 0), low, FINE))
    _add(Requirement("index", f"{what} {{value}} is out of bounds {where}"), bad)


def require(true: Array, text: str) -> None:
    """Every element of `true` must be: `text` says what is wrong if not."""
    if true.size == 0 or not _listening():
        return
    _add(Requirement("argument", text), jnp.where(true.all(), FINE, 0))


def require_divisor(divisor: Array) -> None:
    """An integer divisor must not be zero: CPU PyTorch raises "ZeroDivisionError" where XLA gives -1."""
    if jnp.issubdtype(divisor.dtype, jnp.integer) and divisor.size and _listening():
        require(divisor != 0, "ZeroDivisionError: integer division or modulo by zero")


def pass_on(required: Sequence[Requirement], findings: Array) -> None:
    """Add what the body of a loop or branch has found, now that it has left the body: an int64 for each requirement."""
    if _listening():
        for i, requirement in enumerate(required):
            _add(requirement, findings[i])


def _add(requirement: Requirement, finding: Array) -> None:
    collector = _COLLECTOR.get()
    assert collector is not None
    collector.found.append((requirement, finding.astype(jnp.int64)))


def _listening() -> bool:
    """Whether findings can leave: not from inside a loop's body or under vmap, whose values end there."""
    collector = _COLLECTOR.get()
    return collector is not None and bool(collector.level == _level())


def _level() -> Any:
    return get_opaque_trace_state()
