"""`TORCH_PJRT_DUMP=dir`: each program as FX, StableHLO and optimized HLO."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import torch
from torch.fx import Node

from ..eager.dump import directory, wanted
from ..runtime.executable import Executable
from ..runtime.spread import Spread
from .evaluate import describe
from .report import ProgramRecord

if TYPE_CHECKING:
    from .program import Program

__all__ = ["listing", "wanted", "write"]

_NUMBER = itertools.count()


def write(program: Program, record: ProgramRecord, executable: Executable, lowered: jax.stages.Lowered) -> None:
    """Write `graph_<pid>_<n>_<kind>` as `.fx.txt`, `.stablehlo.mlir` and `.hlo.txt` if a directory is set.

    The user's lines stand behind the FX nodes, and in the locations of both kinds of IR. A program of a mesh is
    compiled for each way that its arguments lie, when they come: `.1.hlo.txt`, and so on.
    """
    path = directory()
    if path is None:
        return
    stem = f"graph_{os.getpid()}_{next(_NUMBER):04d}_{program.kind}"
    convention = program.convention
    header = [
        f"{program.kind} graph on device {convention.device}; {len(program.nodes)} nodes, "
        f"{len(convention.written)} arguments written to, {convention.draws} random keys, donated {record.donated}"
    ]
    (path / f"{stem}.fx.txt").write_text("\n".join([*header, *listing(program.nodes)]) + "\n")
    (path / f"{stem}.stablehlo.mlir").write_text(lowered.as_text(debug_info=True))
    if isinstance(executable.compiled, Spread):
        executable.compiled.then = lambda n, runtime: _write_hlo(path / f"{stem}.{n}.hlo.txt", runtime)
    else:
        _write_hlo(path / f"{stem}.hlo.txt", executable.runtime)


def _write_hlo(file: Path, runtime: Any) -> None:
    file.write_text("\n".join(module.to_string() for module in runtime.hlo_modules()))


def listing(nodes: Sequence[Node]) -> list[str]:
    """A graph's nodes, one a line, with their types and the user's lines."""
    lines = []
    for n in nodes:
        value = n.meta.get("val")
        kind = f"{value.dtype} {list(value.shape)}" if isinstance(value, torch.Tensor) else str(value)
        if n.op == "placeholder":
            lines.append(f"%{n.name}: {kind}")
        elif n.op == "output":
            lines.append(f"return {n.args[0]}")
        else:
            lines.append(f"%{n.name}: {kind} = {describe(n)}")
    return lines
