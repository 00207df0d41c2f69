"""`TORCH_PJRT_DUMP=dir`: each trace and its StableHLO, as files."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import TYPE_CHECKING

import jax

if TYPE_CHECKING:
    from .trace import Trace

_NUMBER = itertools.count()


def wanted() -> bool:
    """Whether `TORCH_PJRT_DUMP` is set."""
    return bool(os.environ.get("TORCH_PJRT_DUMP"))


def directory() -> Path | None:
    """Where dumps go, made if need be; None if none are wanted."""
    if not wanted():
        return None
    path = Path(os.environ["TORCH_PJRT_DUMP"]).expanduser()
    path.mkdir(parents=True, exist_ok=True)
    return path


def write(trace: Trace, lowered: jax.stages.Lowered) -> None:
    """Write `trace_<pid>_<n>.txt` (ops with the user's lines) and `.mlir` (StableHLO) if a directory is set."""
    path = directory()
    if path is None:
        return
    stem = f"trace_{os.getpid()}_{next(_NUMBER):04d}"
    header = [
        f"device {trace.device}; {len(trace.nodes)} nodes, {len(trace.inputs)} inputs "
        f"({len(trace.donatable)} donatable), {len(trace.results)} results",
        *(f"input {i}: {s.dtype} {list(s.shape)}" for i, s in enumerate(trace.inputs)),
    ]
    lines = [f"%{i} = {n}" for i, n in enumerate(trace.nodes)]
    lines += [f"\n{graph.name}:\n{graph.text()}" for graph in dict.fromkeys(trace.graphs)]
    (path / f"{stem}.txt").write_text("\n".join([*header, *lines]) + "\n")
    (path / f"{stem}.mlir").write_text(lowered.as_text())
