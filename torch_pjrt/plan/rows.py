"""From what the compiler said of a job to a row of the answer."""

from __future__ import annotations

import re
from math import prod
from typing import Any

from .answer import Collective, Memory, Row, Tensor, Time
from .compiled import Outcome
from .sharding import Layouts, Mesh
from .tape import Tape
from .topology import Topology

_UNITS = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def row_of(
    topology: Topology | None, mesh: Mesh, tape: Tape, layouts: Layouts, remat: bool | None, outcome: Outcome
) -> Row:
    """The row of one compile; `topology` None is this machine's CPU."""
    answer = outcome.answer
    common: dict[str, Any] = _common(topology, mesh, tape, remat)
    common |= {"compile_seconds": outcome.seconds, "cached": outcome.cached, "notes": _notes(topology, layouts, answer)}
    if answer is None:
        return Row(**common, failure=outcome.failure)
    common["compile_peak"] = answer["peak_bytes"]
    idle = sum(nbytes for _, nbytes in tape.idle)
    capacity = 0 if topology is None else topology.memory_of_device
    refusal = answer.get("refusal")
    if refusal is not None:
        return _refused(common, refusal, capacity, idle, tape, layouts, mesh)
    memory = Memory(
        capacity,
        answer["argument_bytes"],
        answer["output_bytes"] - answer["alias_bytes"],
        answer["temp_bytes"],
        answer["alias_bytes"],
        idle,
        answer["argument_bytes"] + answer["output_bytes"] - answer["alias_bytes"] + answer["temp_bytes"] + idle,
    )
    time = None if topology is None else _time(topology, tape, answer)
    mfu = None
    if time is not None and topology is not None and time.best > 0:
        mfu = tape.model_flops / (time.best * topology.chips * topology.chip.peak)
    return Row(
        **common,
        fits=None if topology is None else memory.fits,
        memory=memory,
        time=time,
        flops=float(tape.flops),
        nbytes=answer["accessed_bytes"],
        mfu=mfu,
        collectives=tuple(
            Collective(kind, axes, round(count), round(nbytes), seconds)
            for kind, axes, count, nbytes, seconds in answer["collectives"]
        ),
        tensors=(*_arguments(tape, layouts, mesh), *map(_made, answer["largest"])),
    )


def failed_row(topology: Topology | None, mesh: Mesh, tape: Tape | None, remat: bool | None, failure: str) -> Row:
    """The row of something that was not compiled; without a tape, not even traced."""
    return Row(**_common(topology, mesh, tape or Tape(), remat), failure=failure)


def _common(topology: Topology | None, mesh: Mesh, tape: Tape, remat: bool | None) -> dict[str, Any]:
    return {
        "topology": "cpu" if topology is None else topology.name,
        "mesh": str(mesh),
        "chips": 1 if topology is None else topology.chips,
        "devices": mesh.devices,
        "batch": tape.examples,
        "remat": remat,
        "model_flops": float(tape.model_flops),
        "tokens": tape.tokens,
    }


def _time(topology: Topology, tape: Tape, answer: dict[str, Any]) -> Time:
    chip = topology.chip
    sending = sum(seconds for *_, seconds in answer["collectives"])
    parts = {
        "compute": tape.flops / (topology.chips * chip.peak),
        "memory": answer["accessed_bytes"] * chip.devices / chip.bandwidth,
        "network": sending,
    }
    bound = max(parts, key=lambda k: parts[k])
    compiler = answer["seconds"] if answer["compute_seconds"] > 0 else None
    return Time(compiler, answer["compute_seconds"], answer["exposed_seconds"], parts[bound], bound)


def _refused(
    common: dict[str, Any], refusal: str, capacity: int, idle: int, tape: Tape, layouts: Layouts, mesh: Mesh
) -> Row:
    """A program that the compiler would not make; most often because it does not fit, and then it says by how much."""
    arguments = sum(_part(tape.storages[n].nbytes, layouts, mesh, n) for n in tape.inputs)
    used = re.search(r"Used ([\d.]+)([KMGT]?)i?B? of ([\d.]+)([KMGT]?)i?B? hbm", refusal)
    temporaries = re.search(
        r"HLO temporaries \(([\d.]+)([KMGT]?)\) exceeds available HBM \(([\d.]+)([KMGT]?)\)", refusal
    )
    said = used or temporaries
    if said is None:
        first = next((line for line in refusal.splitlines() if line.strip()), refusal)
        return Row(**common, failure=f"the compiler refused the program: {first[:300]}")
    total, limit = (int(float(said[i]) * _UNITS[said[i + 1]]) for i in (1, 3))
    if used is None:
        total += arguments
    memory = Memory(limit or capacity, arguments, 0, max(0, total - arguments), 0, idle, total + idle, known=False)
    found = _allocations(refusal)
    return Row(**common, fits=False, memory=memory, tensors=(*_arguments(tape, layouts, mesh), *found))


def _allocations(refusal: str) -> tuple[Tensor, ...]:
    """The largest allocations that the compiler lists when memory runs out."""
    from .schedule import place_in_words

    found: list[Tensor] = []
    for block in re.split(r"\n\s*\d+\. Size: ", refusal)[1:]:
        size = re.match(r"([\d.]+)([KMGT]?)", block)
        shape = re.search(r"Shape: ([a-z]\w*\[[\d,]*\])", block)
        place = re.search(r'op_name="([^"]*)"', block) or re.search(r"Operator: (.*)", block)
        if size is None or "Allocation type: HLO temp" not in block:
            continue
        words = place_in_words(place[1]) if place is not None else ""
        line, _, what = words.rpartition(": ")
        found.append(
            Tensor(int(float(size[1]) * _UNITS[size[2]]), shape[1] if shape is not None else "", what or words, line)
        )
    return tuple(found)


def _part(nbytes: int, layouts: Layouts, mesh: Mesh, number: int) -> int:
    """Bytes on one device of a storage that the step takes."""
    return nbytes // max(1, prod(mesh.size(axes) for axes in layouts.inputs.get(number, ())))


def _arguments(tape: Tape, layouts: Layouts, mesh: Mesh, most: int = 8) -> tuple[Tensor, ...]:
    """The largest groups of equal arguments."""
    groups: dict[tuple[str, str, int], list[str]] = {}
    for number in tape.inputs:
        storage = tape.storages[number]
        sizes = [n // mesh.size(axes) for n, axes in zip(storage.base.sizes, layouts.inputs[number], strict=True)]
        shape = f"{str(storage.base.dtype).removeprefix('torch.')}[{','.join(map(str, sizes))}]"
        key = storage.role, shape, _part(storage.nbytes, layouts, mesh, number)
        groups.setdefault(key, []).append(storage.name)
    ordered = sorted(groups.items(), key=lambda item: -item[0][2] * len(item[1]))[:most]
    return tuple(
        Tensor(nbytes, shape, f"{role} {names[0]}".strip(), "", len(names)) for (role, shape, nbytes), names in ordered
    )


def _made(said: dict[str, Any]) -> Tensor:
    line, _, what = said["what"].rpartition(": ")
    return Tensor(said["nbytes"], said["shape"], what, line, said["count"])


def _notes(topology: Topology | None, layouts: Layouts, answer: dict[str, Any] | None) -> tuple[str, ...]:
    notes = []
    if layouts.whole:
        size = sum(n for _, n in layouts.whole)
        notes.append(
            f"{len(layouts.whole)} parameters ({size / 2**20:.1f} MiB) have no dimension that the fsdp axis divides "
            f"and are whole on every device: {', '.join(name for name, _ in layouts.whole[:3])}"
        )
    loops = [f"{turns} × {period}" for period, turns in (answer or {}).get("loops", ())]
    if loops:
        notes.append(f"equal layers are compiled as loops (turns × operations: {', '.join(loops)})")
    unknown = (answer or {}).get("unknown") or {}
    if topology is not None and not topology.chip.clock:
        notes.append("the compiler has no estimate of time: the step's time and MFU are the roofline's, at best")
    elif unknown:
        what = ", ".join(f"{n} {opcode}" for opcode, n in unknown.items())
        notes.append(
            f"the compiler has no estimate for {what}: the step time leaves them out (a while: all turns but one)"
        )
    return tuple(notes)
