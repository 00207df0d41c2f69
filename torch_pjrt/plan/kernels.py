"""How long attention kernels run, read off the machine code that the TPU's compiler schedules for them.

The compiler estimates cycles of the instructions that it makes itself and has none for kernels. But it schedules those
too, a bundle of operations a cycle, and writes the schedule down if it is asked to. It takes its time for that, so each
kernel is compiled once more on its own, in a process of its own: `python -m torch_pjrt.plan.kernels`. A kernel is one
loop over a grid of blocks; what a turn takes is the bundles of the loop, those under a condition where they are taken.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from math import ceil
from pathlib import Path

from ..lowering.splash import block_of
from ..runtime import cache
from .topology import CHIPS, parse_topology


@dataclass(frozen=True, slots=True)
class Kernel:
    """Cycles of a turn of a kernel's loop.

    Attributes:
        always: what each turn takes.
        body: the largest part under a condition: the work on a block.
        edges: the other parts under a condition: at the first and the last block of a row.
    """

    always: int
    body: int
    edges: int


@dataclass(frozen=True, slots=True)
class Sort:
    """Which kernels: what their schedule depends on.

    Attributes:
        mask: "causal" or "full".
        block_q, block_kv: queries and keys that they take at once.
        width: of a head.
    """

    mask: str
    block_q: int
    block_kv: int
    width: int


# (which, "fwd", "dq" or "dkv") -> how long it runs.
Schedules = dict[tuple[Sort, str], Kernel]

# Matrix products of each on a block.
_PRODUCTS = {"fwd": 2, "dq": 3, "dkv": 4}

_PLACE = re.compile(
    r"splash-(?:forward|backward)-(causal|full)-(\d+)x(\d+)x(\d+)x(\d+)x(\d+).*splash_mha_(fwd|dq|dkv)_"
)


def cycles_of(place: str, known: Schedules) -> float | None:
    """Cycles of a kernel of the program; None if they are not known.

    Args:
        place: the instruction's `op_name`, in which `lowering/splash.py` says what it computes.
    """
    said = _PLACE.search(place)
    if said is None:
        return None
    batch, heads, queries, keys, width = (int(said[i]) for i in range(2, 7))
    sort = Sort(said[1], block_of(queries), block_of(keys), width)
    kernel = known.get((sort, said[7]))
    if kernel is None:
        return None
    rows, columns = queries // sort.block_q, keys // sort.block_kv
    worked = rows * columns
    if sort.mask == "causal":
        worked = sum(min(columns, ceil((row + 1) * sort.block_q / sort.block_kv)) for row in range(rows))
    at_edges = columns if said[7] == "dkv" else rows
    turns = rows * columns * kernel.always + worked * kernel.body + at_edges * kernel.edges
    return float(batch * heads * turns)


def schedules_of(text: str, chip: str) -> Schedules:
    """The schedules of the attention kernels of a program, given as text, on a chip ("v6e")."""
    sorts = {
        Sort(mask, block_of(int(queries)), block_of(int(keys)), int(width))
        for mask, _, _, queries, keys, width, _ in _PLACE.findall(text)
    }
    found: Schedules = {}
    for sort in sorts:
        found |= {(sort, phase): kernel for phase, kernel in _schedules(sort, chip).items()}
    return found


def _schedules(sort: Sort, chip: str) -> dict[str, Kernel]:
    """The schedules of one sort of kernels by phase, from the cache if it has them."""
    version = metadata.version("libtpu")
    key = cache.key_of("kernels", repr((sort, chip, version, os.environ.get("LIBTPU_INIT_ARGS", ""))))
    stored = cache.load(key)
    if stored is None:
        with tempfile.TemporaryDirectory(prefix="torch-pjrt-kernels-") as place:
            flags = (
                f"--xla_jf_dump_to={place} --xla_jf_dump_llo_text=true --xla_jf_dump_llo_pass_label_regex=final_bundles"
            )
            said = f"{os.environ.get('LIBTPU_INIT_ARGS', '')} {flags}"
            asked = [sys.executable, "-m", __spec__.name, json.dumps(asdict(sort)), chip]
            done = subprocess.run(asked, stdout=sys.stderr, env=os.environ | {"LIBTPU_INIT_ARGS": said})
            if done.returncode:
                return {}  # the row says that there is no estimate of them
            files = Path(place).glob("*splash_mha_*-final_bundles.txt")
            found = {phase: asdict(of_device(kernel, sort, phase, chip)) for phase, kernel in _read_all(files)}
        stored = json.dumps(found).encode()
        cache.store(key, stored)
    return {phase: Kernel(**kernel) for phase, kernel in json.loads(stored).items()}


def of_device(kernel: Kernel, sort: Sort, phase: str, chip: str) -> Kernel:
    """The kernel as a device runs it: its cores share the grid, and work on a block no faster than their matrix units.

    Bundles leave out that a bundle waits for a busy unit: a v5e's gradient kernels would be at 108 % of its peak.
    """
    on = CHIPS[chip]
    operations = _PRODUCTS[phase] * 2 * sort.block_q * sort.block_kv * sort.width
    shared = Kernel(*(ceil(n / on.cores) for n in (kernel.always, kernel.body, kernel.edges)))
    return replace(shared, body=max(shared.body, ceil(operations * on.devices * on.clock / on.peak)))


def _read_all(files: Iterable[Path]) -> Iterable[tuple[str, Kernel]]:
    for file in files:
        phase = re.search(r"splash_mha_(fwd|dq|dkv)_", file.name)
        kernel = None if "schedule-analysis" in file.name else read(file.read_text(errors="replace"))
        if phase is not None and kernel is not None:
            yield phase[1], kernel


def read(text: str) -> Kernel | None:
    """The kernel of a schedule; None if it is not one loop, so that its bundles do not say how long it runs."""
    address = 0
    begins: list[int] = []
    ends: list[int] = []
    starts: dict[str, int] = {}
    skips: list[tuple[int, str]] = []
    for line in text.splitlines():
        head = re.match(r"\s*(0x[0-9a-f]+)\s+(LB|LH|LE|PB|PF)?\s*:", line)
        if head is not None:
            address = int(head[1], 16)
            if head[2] == "LB":
                begins.append(address)
        for region in re.findall(r"Start(?:/End empty)? region (\d+)", line):
            starts.setdefault(region, address)
        jump = re.search(r"sbr\.rel \((!?)%\w+\) target = \$region(\d+)", line)
        if jump is not None and jump[1]:
            ends.append(address)
        elif jump is not None:
            skips.append((address, jump[2]))
    if len(begins) != 1 or not ends:
        return None
    parts = [(at, starts[region]) for at, region in skips if starts.get(region, 0) > at]
    # The first and last turns fill and drain a pipeline and skip all: what is under that condition is always taken.
    innermost = [p for p in parts if not any(q != p and p[0] <= q[0] and q[1] <= p[1] for q in parts)]
    sizes = sorted((end - begin for begin, end in innermost), reverse=True)
    body, edges = (sizes[0], sum(sizes[1:])) if sizes else (0, 0)
    return Kernel(ends[-1] - begins[0] - body - edges, body, edges)


def main() -> None:
    """Compile the kernels of one sort for one chip: forward and backward, three blocks by three."""
    from .worker import quiet_libtpu

    quiet_libtpu()
    import jax
    import jax.numpy as jnp
    from jax.experimental import topologies
    from jax.sharding import SingleDeviceSharding

    from ..lowering import splash
    from ..lowering.target import Target, compiling_for

    sort, topology = Sort(**json.loads(sys.argv[1])), parse_topology(sys.argv[2])
    described = topologies.get_topology_desc(
        platform="tpu", topology_name=topology.name, chips_per_host_bounds=(*topology.host, 1, 1)[:3]
    )
    placement = SingleDeviceSharding(described.devices[0])

    def array(length: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((1, 1, length, sort.width), jnp.bfloat16, sharding=placement)

    def both(query: jax.Array, key: jax.Array, value: jax.Array, grad: jax.Array) -> list[jax.Array]:
        causal = sort.mask == "causal"
        out, logsumexp = splash.forward(query, key, value, causal, 1.0)
        return [out, logsumexp, *splash.backward(grad, query, key, value, out, logsumexp, causal, 1.0)]

    # Of two blocks, the kernels would take both as one.
    queries, keys = array(3 * sort.block_q), array(3 * sort.block_kv)
    with compiling_for(Target("tpu")):
        lowered = jax.jit(both).lower(queries, keys, keys, queries)
    lowered.compile()


if __name__ == "__main__":
    main()
