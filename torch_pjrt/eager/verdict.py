"""What a program found wrong with its data, as the exception that CPU PyTorch would have raised at the call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import jax
import numpy as np
import torch

from ..device.modes import get_eager_mode
from ..lowering.check import FINE
from ..runtime.waiting import until_ready


class IndexOutOfRange(IndexError, RuntimeError):
    """An index outside of its tensor. CPU PyTorch raises IndexError in some ops, RuntimeError in others: both fit."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing a program checks while it runs.

    Attributes:
        node: the trace's node that requires it.
        op: the ATen op that requires it.
        source: the user's line, if known.
        kind, text: see `lowering.check.Requirement`.
    """

    node: int
    op: str
    source: str | None
    kind: str
    text: str

    def error(self, value: int) -> Exception:
        """The exception for a finding."""
        where = f" at {self.source}" if self.source else ""
        kind = IndexOutOfRange if self.kind == "index" else RuntimeError
        said = f"{self.op}: {self.text.format(value=value)}{where}."
        if get_eager_mode() == "strict":
            return kind(said)
        name = torch._C._get_privateuse1_backend_name()
        return kind(
            f"{said} The device found it while running the program: what was computed from it raises this error when "
            f"read. torch.{name}.set_eager_mode('strict') raises at the call."
        )


class Checked(Protocol):
    """A program that checks something."""

    @property
    def checks(self) -> tuple[Check, ...]: ...

    def depending_on(self, node: int) -> list[int] | None: ...


def verdict(program: Checked, findings: jax.Array, wait: bool) -> tuple[Exception, list[int] | None] | bool | None:
    """What the program found.

    Returns:
        None if all is well; False if that isn't known yet and not `wait`; else the error of the first check that
        failed, and the numbers of the program's results that come of it (None: perhaps all).
    """
    try:
        if not wait and not findings.is_ready():  # type: ignore[attr-defined]
            return False
        until_ready(findings)
        found = np.asarray(findings)
    except Exception as error:  # the program itself failed, as the runtime tells whoever reads a result of it
        return error, None
    (failed,) = np.nonzero(found != FINE)
    if not failed.size:
        return None
    spoilt: set[int] = set()
    for k in failed:
        depending = program.depending_on(program.checks[k].node)
        if depending is None:
            return program.checks[failed[0]].error(int(found[failed[0]])), None
        spoilt.update(depending)
    return program.checks[failed[0]].error(int(found[failed[0]])), sorted(spoilt)
