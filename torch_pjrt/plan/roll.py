"""Finding the equal layers of a tape, so that they are compiled once: as a loop over stacked arrays.

Two stretches of operations are equal if they do the same on tensors that lie in memory in the same way. Which storages
they do it on tells what the loop carries from turn to turn, what is the same in each turn, and what each turn has of
its own: the parameters of a layer, what its forward pass keeps for its backward pass, its optimizer states.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .tape import Operation, Ref, Tape

# Shorter loops are not worth one: turns, and operations in all of them.
_TURNS = 3
_OPERATIONS = 24
# How many distances between equal operations are tried as the length of a turn.
_DISTANCES = 64

Storages = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Loop:
    """Equal stretches of a tape, one after the other. Storages are named by their numbers in the first turn.

    Attributes:
        first, period, turns: the first operation, operations a turn, turns.
        carried: storage read -> the storage made in the turn that is read in its place in the next one.
        kept: storages of the whole loop that it reads and writes.
        turned: storage -> those that stand in its place in each turn, all from before the loop.
        updated: those of `turned` that the loop writes to.
        stacked: storage made -> those of each turn, of which more than the last are wanted after the loop.
        last: storage made -> that of the last turn, the only one that is wanted after the loop.
    """

    first: int
    period: int
    turns: int
    carried: dict[int, int]
    kept: Storages
    turned: dict[int, Storages]
    updated: frozenset[int]
    stacked: dict[int, Storages]
    last: dict[int, int]

    @property
    def end(self) -> int:
        """The operation after it."""
        return self.first + self.period * self.turns


def loops(tape: Tape) -> list[Loop]:
    """The loops of a tape, in order, none within another."""
    ids = _numbered(tape)
    lives = _last_reads(tape)
    found: list[Loop] = []
    parts = [(0, len(ids))]
    while parts:
        begin, end = parts.pop()
        loop = next(_candidates(tape, ids, begin, end, lives), None)
        if loop is not None:
            found.append(loop)
            parts += [(begin, loop.first), (loop.end, end)]
    return sorted(found, key=lambda loop: loop.first)


def stacks(tape: Tape, found: Sequence[Loop]) -> list[Storages]:
    """The storages from before the step that loops read in turn: each such sequence is one argument of the program."""
    taken: set[int] = set()
    result: list[Storages] = []
    ordered = sorted((s for loop in found for s in loop.turned.values()), key=len, reverse=True)
    for sequence in ordered:
        fresh = taken.isdisjoint(sequence) and len(set(sequence)) == len(sequence)
        if fresh and all(tape.storages[s].role != "made" for s in sequence):
            taken.update(sequence)
            result.append(sequence)
    return result


def _candidates(tape: Tape, ids: Sequence[int], begin: int, end: int, lives: dict[int, int]) -> Iterator[Loop]:
    """The loops between two operations, the one that covers most first."""
    distances: Counter[int] = Counter()
    seen: dict[int, int] = {}
    for i in range(begin, end):
        if ids[i] in seen:
            distances[i - seen[ids[i]]] += 1
        seen[ids[i]] = i
    runs: list[tuple[int, int, int, int]] = []  # (operations saved, period, start, operations equal to the next turn's)
    for period, _ in distances.most_common(_DISTANCES):
        start = None
        for i in range(begin, end - period + 1):
            equal = i < end - period and ids[i] == ids[i + period]
            if equal and start is None:
                start = i
            elif not equal and start is not None:
                length = i - start
                turns = length // period + 1
                if turns >= _TURNS and turns * period >= _OPERATIONS:
                    runs.append(((turns - 1) * period, period, start, length))
                start = None
    for _, period, start, length in sorted(runs, key=lambda r: (-r[0], r[1])):
        for shift in range(length % period + 1):
            loop = _loop(tape, start + shift, period, (length - shift) // period + 1, lives)
            if loop is not None:
                yield loop


def _loop(tape: Tape, first: int, period: int, turns: int, lives: dict[int, int]) -> Loop | None:
    """The loop of equal stretches, or None if what they do it on is not that of a loop."""
    columns = _columns(tape, first, period, turns)
    if columns is None:
        return None
    operations = tape.operations[first : first + period * turns]
    body = operations[:period]
    made_in_first = {n for o in body for n in o.makes if n is not None}
    made = {
        n: k for k in range(turns) for o in operations[k * period : (k + 1) * period] for n in o.makes if n is not None
    }
    written = {w.storage for o in body for w in o.writes}
    carried: dict[int, int] = {}
    kept: list[int] = []
    turned: dict[int, Storages] = {}
    for storage, column in columns.items():
        if storage in made_in_first:
            continue
        if len(set(column)) == 1:
            if storage in written:
                kept.append(storage)
        elif column[1] in made:
            source = column[1]
            if source not in made_in_first or column[1:] != columns[source][:-1]:
                return None
            if column[0] in made or storage in written:
                return None
            carried[storage] = source
        elif any(s in made for s in column):
            return None
        else:
            turned[storage] = column
    updated = frozenset(written & turned.keys())
    if _crossing(columns, turned, updated, set(kept)):
        return None
    end = first + period * turns
    stacked: dict[int, Storages] = {}
    last: dict[int, int] = {}
    for m in made_in_first:
        wanted = [lives.get(s, -1) >= end for s in columns[m]]
        if any(wanted[:-1]):
            stacked[m] = columns[m]
        elif wanted[-1]:
            last[m] = columns[m][-1]
    return Loop(first, period, turns, carried, tuple(kept), turned, updated, stacked, last)


def _columns(tape: Tape, first: int, period: int, turns: int) -> dict[int, Storages] | None:
    """For each storage of the first turn, those that stand in its place in each; None if one place has two."""
    found: dict[int, Storages] = {}
    for j in range(period):
        rows = [_touched(tape.operations[first + k * period + j]) for k in range(turns)]
        for column in zip(*rows, strict=True):
            if found.setdefault(column[0], column) != column:
                return None
    bases = tape.storages
    if any(bases[s].base != bases[column[0]].base for column in found.values() for s in column[1:]):
        return None
    return found


def _crossing(
    columns: dict[int, Storages], turned: dict[int, Storages], updated: frozenset[int], kept: set[int]
) -> bool:
    """Whether a turn writes to what another turn, or another place, reads."""
    uses = Counter(s for storage in turned for s in set(columns[storage]))
    constant = {c[0] for s, c in columns.items() if s not in turned and len(set(c)) == 1}
    for storage in updated:
        column = columns[storage]
        if len(set(column)) != len(column) or any(uses[s] > 1 or s in constant for s in column):
            return True
    return any(uses[s] for s in kept)


def _touched(operation: Operation) -> list[int]:
    return [
        *(r.storage for r in operation.reads()),
        *(w.storage for w in operation.writes),
        *(n for n in operation.makes if n is not None),
    ]


def _last_reads(tape: Tape) -> dict[int, int]:
    """The last operation that reads each storage; one past the end for what the step leaves."""
    found: dict[int, int] = {}
    for i, o in enumerate(tape.operations):
        for r in o.reads():
            found[r.storage] = i
        for w in o.writes:
            found[w.storage] = i
    for number in tape.returned:
        found[number] = len(tape.operations)
    return found


def _numbered(tape: Tape) -> list[int]:
    """A number for each operation, the same for those that do the same."""
    known: dict[str, int] = {}
    return [known.setdefault(_form(tape, o, i), len(known)) for i, o in enumerate(tape.operations)]


def _form(tape: Tape, o: Operation, index: int) -> str:
    if o.on_host:
        return f"{index}"  # equal to none

    def form(value: Any) -> Any:
        if isinstance(value, Ref):
            return "ref", value.view, value.conjugated, value.negated, tape.storages[value.storage].base
        if isinstance(value, (list, tuple)):
            return [form(v) for v in value]
        return value

    made = [None if n is None else tape.storages[n].base for n in o.makes]
    named = {k: form(v) for k, v in o.kwargs.items()}
    writes = [form(w) for w in o.writes]
    return repr((o.name, form(o.args), named, writes, made, o.specs, o.backward, o.recompute is not None))
