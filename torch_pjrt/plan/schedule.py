"""An estimate from a compiled program: how long its schedule takes, what it sends, what is in memory at its peak.

The compiler's own figures are the cycles that it estimates for each instruction. It has none for transfers between
chips, so those are bytes over bandwidth; of one that runs in the background, what is left of it where it is waited for.
Kernels have theirs from the schedule of their machine code (`kernels.py`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from .hlo import Array, Instruction, Module, groups
from .kernels import Schedules, cycles_of

_COLLECTIVES = (
    "all-gather", "all-reduce", "reduce-scatter", "all-to-all", "ragged-all-to-all", "collective-permute",
    "collective-broadcast",
)  # fmt: skip
_COPIES = ("copy-start", "slice-start", "dynamic-slice-start", "dynamic-update-slice-start")
# What takes long enough to be missed where the compiler has no estimate of it.
_LONG = frozenset({"dot", "convolution", "sort", "fft", "cholesky", "triangular-solve"})
# What gives no new memory: another name for the same.
_ALIASES = frozenset({"bitcast", "get-tuple-element", "tuple", "opt-barrier", "parameter", "constant"})


@dataclass(frozen=True, slots=True)
class Speeds:
    """Of one device.

    Attributes:
        clock: cycles a second; 0 if the compiler's cycles are not to be used.
        bandwidth: bytes a second from and to HBM.
        interconnect: bytes a second sent to neighbours, over all links.
        coordinates: of each device of the mesh in the network, to see over which dimensions a group is spread.
        kernels: how long the kernels run that are known (`kernels.py`).
        between_hosts: bytes a second sent to other hosts, where `coordinates` are the hosts' numbers; else None.
    """

    clock: float
    bandwidth: float
    interconnect: float
    coordinates: tuple[tuple[int, ...], ...]
    kernels: Schedules = field(default_factory=dict)
    between_hosts: float | None = None


@dataclass(slots=True)
class Estimate:
    """What one run of a program does.

    Attributes:
        seconds: of the schedule.
        compute: of that, estimated cycles.
        exposed: of that, waiting for collectives.
        nbytes: read from and written to HBM.
        unknown: instructions that run for a while and have no estimate, by opcode.
        collectives: (kind, axes) -> [count, bytes sent by a device, seconds].
    """

    seconds: float = 0.0
    compute: float = 0.0
    exposed: float = 0.0
    nbytes: float = 0.0
    unknown: Counter[str] = field(default_factory=Counter)
    collectives: dict[tuple[str, str], list[float]] = field(default_factory=dict)


@dataclass(slots=True)
class Sent:
    """One collective: its kind, the mesh axes it runs along, the bytes that a device sends, and how long that takes."""

    kind: str
    axes: str
    nbytes: float
    seconds: float


def estimate(module: Module, axes: Sequence[tuple[str, int]], speeds: Speeds) -> Estimate:
    """The estimate of a whole program on a mesh with these axes."""
    return _Reader(module, axes, speeds).run(module.entry)


class _Reader:
    def __init__(self, module: Module, axes: Sequence[tuple[str, int]], speeds: Speeds) -> None:
        self.module = module
        self.axes = list(axes)
        self.speeds = speeds
        self.devices = prod(n for _, n in axes)
        self._seen: dict[str, Estimate] = {}

    def run(self, name: str) -> Estimate:
        """The estimate of one computation."""
        if name in self._seen:
            return self._seen[name]
        total = Estimate()
        free = {"network": 0.0, "memory": 0.0}  # when each can take the next transfer
        ends: dict[str, tuple[float, str]] = {}  # what runs in the background: when it ends, and what it uses
        instructions = self.module.computations.get(name, [])
        known = {i.name: i for i in instructions}
        for i in instructions:
            self._step(i, known, total, free, ends)
            total.nbytes += self._accessed(i, known)
        self._seen[name] = total
        return total

    def _step(
        self,
        i: Instruction,
        known: dict[str, Instruction],
        total: Estimate,
        free: dict[str, float],
        ends: dict[str, tuple[float, str]],
    ) -> None:
        sent = self.collective(i)
        if sent is not None:
            _count(total, sent, 1)
        if i.opcode.endswith("-start") or i.opcode == "async-start":
            medium = "network" if sent is not None else "memory"
            took = sent.seconds if sent is not None else self._copy_seconds(i)
            free[medium] = max(free[medium], total.seconds) + took
            ends[i.name] = free[medium], medium
        elif i.opcode.endswith("-done") or i.opcode == "async-done":
            end, medium = next((ends[o] for o in i.operands if o in ends), (0.0, "memory"))
            waited = max(0.0, end - total.seconds)
            total.seconds += waited
            if medium == "network":
                total.exposed += waited
        elif i.opcode == "while":
            trips = self.module.trips(i, known)
            if trips is None:
                total.unknown["while"] += 1
            _add(total, self.run(i.called()["body"]), 1 if trips is None else trips)
        elif i.opcode == "conditional":
            branches = [self.run(n) for part, n in i.called().items() if part.startswith("branch")]
            if branches:
                _add(total, max(branches, key=lambda e: e.seconds), 1)
        elif i.opcode == "call":
            _add(total, self.run(i.called()["to_apply"]), 1)
        else:
            self._compute(i, sent, total)

    def _compute(self, i: Instruction, sent: Sent | None, total: Estimate) -> None:
        of_kernel = "tpu_custom_call" in i.attributes
        cycles = cycles_of(i.place, self.speeds.kernels) if of_kernel else i.cycles
        computing = cycles / self.speeds.clock if cycles is not None and self.speeds.clock else 0.0
        sending = 0.0 if sent is None else sent.seconds
        if cycles is None and sent is None and (of_kernel or i.opcode in _LONG):
            total.unknown[i.opcode] += 1
        total.compute += computing
        total.exposed += max(0.0, sending - computing)
        total.seconds += max(computing, sending)

    def _accessed(self, i: Instruction, known: dict[str, Instruction]) -> float:
        """Bytes that an instruction reads from and writes to HBM: of what it slices, the slices."""
        if i.opcode in _ALIASES or i.opcode in ("while", "conditional", "call") or i.opcode.endswith("-done"):
            return 0.0
        inner = self.module.computations.get(i.called().get("calls", ""), []) if i.opcode == "fusion" else []
        parts = {k.index: _sliced(k, inner) for k in inner if k.opcode == "parameter"}
        if i.opcode in ("dynamic-slice", "gather", "slice"):
            return 2.0 * sum(a.nbytes for a in i.arrays if a.space == 0)
        total = 0.0
        for place, name in enumerate(i.operands):
            source = known.get(name)
            size = 0 if source is None else sum(a.nbytes for a in source.arrays if a.space == 0)
            part = parts.get(place)
            total += size if part is None else min(size, part)
        updated = [k for k in inner if k.opcode == "dynamic-update-slice"]
        made = sum(a.nbytes for a in _made(i) if a.space == 0)
        if i.opcode == "dynamic-update-slice" or updated:
            made = int(min(made, total))
        return total + made

    def collective(self, i: Instruction) -> Sent | None:
        """What an instruction sends, a fusion or an asynchronous call around a collective included."""
        kind = i.opcode.removesuffix("-start")
        if kind in _COLLECTIVES:
            return self._sent(kind, i, i)
        if i.opcode not in ("fusion", "async-start", "call-start"):
            return None
        # What a `call-start` calls runs on other cores: the SparseCores of tpu7x do its collectives.
        inner = self.module.computations.get(
            i.called().get("to_apply" if i.opcode == "call-start" else "calls", ""), []
        )
        found = [k for k in inner if k.opcode.removesuffix("-start") in _COLLECTIVES]
        if not found:
            return None
        kind = found[0].opcode.removesuffix("-start")
        sliced = any(k.opcode == "dynamic-slice" for k in inner)
        return self._sent("reduce-scatter" if kind == "all-reduce" and sliced else kind, found[0], i)

    def _sent(self, kind: str, inner: Instruction, outer: Instruction) -> Sent:
        members = groups(inner.attributes, self.devices)[0]
        n = max(2, len(members)) if kind != "collective-permute" else 2
        if len(members) == 1 and kind != "collective-permute":
            return Sent(kind, "", 0.0, 0.0)
        # A -start returns its operand beside its result.
        whole = max((a.nbytes for a in inner.arrays), default=0)
        if not inner.opcode.endswith("-start"):
            whole = inner.nbytes
        if kind in ("all-gather", "all-to-all", "ragged-all-to-all"):
            sent = whole * (n - 1) / n
        elif kind == "reduce-scatter":
            full = whole if inner.opcode.startswith("all-reduce") else whole * n
            sent = full * (n - 1) / n
        elif kind == "all-reduce":
            sent = 2 * whole * (n - 1) / n
        else:
            sent = float(whole)
        return Sent(kind, self.axes_of(members), sent, sent / self._bandwidth(members))

    def axes_of(self, members: Sequence[int]) -> str:
        """The mesh axes along which the members of a group differ."""
        places = [self._place(m) for m in members[:4096]]
        varying = [name for d, (name, _) in enumerate(self.axes) if len({p[d] for p in places}) > 1]
        return "×".join(varying)

    def _place(self, number: int) -> list[int]:
        place: list[int] = []
        for _, n in reversed(self.axes):
            place.insert(0, number % n)
            number //= n
        return place

    def _bandwidth(self, members: Sequence[int]) -> float:
        """The interconnect that a group can use: the links along the dimensions that it is spread over."""
        where = [self.speeds.coordinates[m] for m in members if m < len(self.speeds.coordinates)]
        if not where:
            return self.speeds.interconnect
        if self.speeds.between_hosts is not None:
            return self.speeds.interconnect if len(set(where)) == 1 else self.speeds.between_hosts
        spread = sum(len({w[d] for w in where}) > 1 for d in range(len(where[0])))
        all_of_them = sum(len({c[d] for c in self.speeds.coordinates}) > 1 for d in range(len(where[0])))
        return self.speeds.interconnect * max(spread, 1) / max(all_of_them, 1)

    def _copy_seconds(self, i: Instruction) -> float:
        """A copy between HBM and the memory on the chip."""
        if i.opcode not in _COPIES:
            return 0.0
        spaces = {a.space for a in i.arrays if a.nbytes > 64}
        moved = min((a.nbytes for a in i.arrays if a.nbytes > 64), default=0)
        return moved / self.speeds.bandwidth if 0 in spaces else 0.0


def _sliced(parameter: Instruction, inner: Sequence[Instruction]) -> int | None:
    """Bytes that a fusion takes of a parameter that it only slices or updates in part; None if it takes all of it."""
    sizes = {k.name: k.nbytes for k in inner}
    names, total = {parameter.name}, 0
    for k in inner:
        if names.isdisjoint(k.operands):
            continue
        if k.opcode == "bitcast":
            names.add(k.name)
        elif k.opcode in ("dynamic-slice", "slice", "gather") and k.operands[0] in names:
            total += k.nbytes
        elif k.opcode == "dynamic-update-slice" and k.operands[0] in names:
            total += sizes.get(k.operands[1], 0)
        else:
            return None
    return total


def _count(total: Estimate, sent: Sent, times: int) -> None:
    if sent.nbytes:
        row = total.collectives.setdefault((sent.kind, sent.axes), [0.0, 0.0, 0.0])
        for k, x in enumerate((1.0, sent.nbytes, sent.seconds)):
            row[k] += times * x


def _add(total: Estimate, part: Estimate, times: int) -> None:
    total.seconds += times * part.seconds
    total.compute += times * part.compute
    total.exposed += times * part.exposed
    total.nbytes += times * part.nbytes
    for opcode, count in part.unknown.items():
        total.unknown[opcode] += times * count
    for key, row in part.collectives.items():
        mine = total.collectives.setdefault(key, [0.0, 0.0, 0.0])
        for k in range(3):
            mine[k] += times * row[k]


def largest(module: Module, most: int = 12) -> list[dict[str, Any]]:
    """The tensors in HBM at the moment when most of it is taken by what the program makes, the largest first.

    Sizes are without the padding of layouts; what an instruction updates in place is counted once.
    """
    live = _peak(module, module.entry, {})[1]
    rows: dict[tuple[str, str, int], int] = {}
    for i, shape, nbytes in live:
        key = (place_in_words(i.place), shape, nbytes)
        rows[key] = rows.get(key, 0) + 1
    ordered = sorted(rows.items(), key=lambda item: -item[0][2] * item[1])[:most]
    return [{"what": k[0], "shape": k[1], "nbytes": k[2], "count": count} for k, count in ordered]


_Live = list[tuple[Instruction, str, int]]


def _peak(module: Module, name: str, seen: dict[str, tuple[int, _Live]]) -> tuple[int, _Live]:
    """The most bytes of HBM that a computation's own results take, and those results."""
    if name in seen:
        return seen[name]
    instructions = module.computations.get(name, [])
    owners = _owners(instructions)
    last: dict[str, int] = {}
    for at, i in enumerate(instructions):
        for o in i.operands:
            for owner in owners.get(o, ()):
                last[owner] = at
    if instructions:
        for owner in owners.get(instructions[-1].name, ()):
            last[owner] = len(instructions)
    alive: dict[str, tuple[Instruction, str, int]] = {}
    held, best, best_live = 0, 0, _Live()
    for at, i in enumerate(instructions):
        inner, inner_live = 0, _Live()
        for part, called in i.called().items():
            if i.opcode in ("while", "conditional", "call") and part != "condition":
                size, inside = _peak(module, called, seen)
                if size > inner:
                    inner, inner_live = size, inside
        if owners.get(i.name) == {i.name}:
            made = [a for a in _made(i) if a.space == 0]
            biggest = max(made, key=lambda a: a.nbytes, default=None)
            size = sum(a.nbytes for a in made)
            if biggest is not None and size:
                alive[i.name] = i, str(biggest), size
                held += size
        if held + inner > best:
            best, best_live = held + inner, [*alive.values(), *inner_live]
        for owner in {owner for o in (*i.operands, i.name) for owner in owners.get(o, ())}:
            if last.get(owner, at) <= at and owner in alive:
                held -= alive.pop(owner)[2]
    seen[name] = best, best_live
    return seen[name]


def _made(i: Instruction) -> tuple[Array, ...]:
    """The arrays of an instruction that are new; one that starts something returns what it reads beside them."""
    if i.opcode == "copy-start":
        return i.arrays[:1]
    return i.arrays[len(i.operands) :] if i.opcode.endswith("-start") else i.arrays


def _owners(instructions: Sequence[Instruction]) -> dict[str, set[str]]:
    """For each instruction, those whose memory its result is."""
    found: dict[str, set[str]] = {}
    for i in instructions:
        if i.opcode in ("parameter", "constant"):
            found[i.name] = set()
        elif i.opcode in _ALIASES or i.opcode.endswith("-done") or i.opcode in ("while", "dynamic-update-slice"):
            taken = i.operands[:1] if i.opcode == "dynamic-update-slice" else i.operands
            found[i.name] = {owner for o in taken for owner in found.get(o, ())}
        else:
            found[i.name] = {i.name}
    return found


def place_in_words(place: str) -> str:
    """An `op_name` as the user knows it: "train.py:12 in step: aten::mm (backward)"; what XLA made up as it is."""
    found = re.search(r"([^/]*) (\w+::[\w.]+)((?:\|backward|\|recompute)?)(?:/|$)", place)
    if found is None:
        return place
    line, op, kind = found[1].replace("|", "/"), found[2], found[3].strip("|")
    return f"{line}: {op}" + (f" ({'recomputed' if kind == 'recompute' else kind})" if kind else "")
