"""How long Pallas kernels run, read off the machine code that the TPU's compiler schedules for them.

The compiler estimates cycles of the instructions that it makes itself and has none for kernels. But it schedules those
too, a bundle of operations a cycle, and writes the schedule down if it is asked to. A kernel is one loop over its grid;
what a turn of it takes is the bundles of the loop, and of the parts under a condition those that are taken.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from ..lowering.splash import block_of

# The kernel's loop fills and drains a pipeline: it turns so much oftener than the grid has steps.
_EXTRA_TURNS = 2


@dataclass(frozen=True, slots=True)
class Kernel:
    """Cycles of a turn of a kernel's loop.

    Attributes:
        steps: of the grid.
        always: what each step takes.
        body: the largest part under a condition: the work on a block.
        edges: the other parts under a condition: the first and last block of a row.
    """

    steps: int
    always: int
    body: int
    edges: int

    def cycles(self, worked: float = 1.0, at_edges: float = 1.0) -> float:
        """Cycles of the whole grid.

        Args:
            worked: the share of the steps that work on a block.
            at_edges: the share of the steps that are the first or last of a row.
        """
        return self.steps * (self.always + worked * self.body + at_edges * self.edges)


def ask_for_schedules(place: str) -> None:
    """Have libtpu, before it is loaded, write the schedules of what it compiles to `place`."""
    said = os.environ.get("LIBTPU_INIT_ARGS", "")
    if "--xla_jf_dump_to" not in said:
        flags = f"--xla_jf_dump_to={place} --xla_jf_dump_llo_text=true --xla_jf_dump_llo_pass_label_regex=final_bundles"
        os.environ["LIBTPU_INIT_ARGS"] = f"{said} {flags}".strip()


def kernels(place: str) -> dict[str, Kernel]:
    """The kernels whose schedules lie in `place`, by the name of their instruction."""
    found: dict[str, Kernel] = {}
    for file in Path(place).glob("*-final_bundles.txt"):
        name = re.fullmatch(r"\d+-(.*)-\d+-final_bundles\.txt", file.name)
        if name is not None:
            kernel = read(file.read_text(errors="replace"))
            if kernel is not None:
                found[name[1]] = kernel
    return found


def read(text: str) -> Kernel | None:
    """The kernel of a schedule; None if it is not one loop over a grid, so that its bundles do not say how long it runs."""
    address, begins, ends = 0, [], []
    starts: dict[str, int] = {}
    skips: list[tuple[int, str]] = []
    turns: list[int] = []
    for line in text.splitlines():
        head = re.match(r"\s*(0x[0-9a-f]+)\s+(LB|LH|LE|PB|PF)?\s*:", line)
        if head is not None:
            address = int(head[1], 16)
            if head[2] == "LB":
                begins.append(address)
        for region in re.findall(r"Start(?:/End empty)? region (\d+)", line):
            starts.setdefault(region, address)
        jump = re.search(r"sbr\.rel \((!?)%[\w]+\) target = \$region(\d+)", line)
        if jump is not None:
            if jump[1]:
                ends.append(address)
            else:
                skips.append((address, jump[2]))
        turns += [int(n) for n in re.findall(r"scmp\.ge\.s32\.totalorder [^,]*, (\d+) /\* loop exit test", line)]
    if len(begins) != 1 or not ends or len(turns) != 1 or turns[0] <= _EXTRA_TURNS:
        return None
    parts = [(at, starts[region]) for at, region in skips if starts.get(region, 0) > at]
    leaves = [p for p in parts if not any(q != p and p[0] <= q[0] and q[1] <= p[1] for q in parts)]
    sizes = sorted((b - a for a, b in leaves), reverse=True)
    body, edges = (sizes[0], sum(sizes[1:])) if sizes else (0, 0)
    return Kernel(turns[0] - _EXTRA_TURNS, ends[-1] - begins[0] - body - edges, body, edges)


def cycles_of(place: str, kernel: Kernel) -> float:
    """Cycles of a kernel at a place in the program: of attention, a causal mask leaves out blocks.

    Args:
        place: the instruction's `op_name`, in which `lowering/splash.py` says what it computes.
    """
    said = re.search(r"splash-(?:forward|backward)-(causal|full)-(\d+)x(\d+)x\d+", place)
    if said is None:
        return kernel.cycles()
    queries, keys = int(said[2]), int(said[3])
    rows, columns = queries // block_of(queries), keys // block_of(keys)
    worked = 1.0
    if said[1] == "causal":
        reached = (min(columns, ceil((row + 1) * block_of(queries) / block_of(keys))) for row in range(rows))
        worked = sum(reached) / (rows * columns)
    along = rows if "dkv" in place else columns
    return kernel.cycles(worked, 1 / along)
