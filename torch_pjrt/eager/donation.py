"""Which result of a trace takes the memory of which input.

XLA is told of pairs (input, result). Any two of one shape and dtype are a legal pair, but where the input is still read
once the result is made, XLA copies it away first. So a result goes with the input that it is the new value of, and what
is left over is paired only where nothing is read later. (Pairs in the order of shapes alone gave the gradients the
memory of the parameters, and the parameters that of Adam's moments: a copy of every parameter a step.)
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ..lowering.apply import written

if TYPE_CHECKING:
    from ..lowering import Spec
    from .trace import Node, Place, Trace


def donations(trace: Trace, places: Sequence[Place], needed: Iterable[int]) -> dict[int, int]:
    """Input -> the number (in `places`) of the result that takes its memory, in the order of the inputs.

    Args:
        places: the trace's results.
        needed: the nodes that are evaluated.
    """
    targets = functools.cache(lambda node: _targets(trace.nodes[node]))
    donatable = frozenset(trace.donatable)
    specs = [trace.nodes[i].outs[j] for i, j in places]
    given: dict[int, int] = {}
    for number, place in enumerate(places):
        before = _overwritten(trace, place, targets)
        if before in donatable and before not in given and trace.inputs[before] == specs[number]:
            given[before] = number
    free: dict[Spec | None, list[int]] = defaultdict(list)
    for i in trace.donatable:
        if i not in given:
            free[trace.inputs[i]].append(i)
    last = _last_readers(trace, needed)
    for number in sorted(set(range(len(places))) - set(given.values())):
        candidates = free[specs[number]]
        found = next((i for i in candidates if last.get(i, -1) <= places[number][0]), None)
        if found is not None:
            candidates.remove(found)
            given[found] = number
    return dict(sorted(given.items()))


def _overwritten(trace: Trace, place: Place, targets: Callable[[int], list[int]]) -> int | None:
    """The input that the value at `place` is, after in-place ops and writes through views, the new content of."""
    node, out = place
    while out < len(targets(node)):
        before = trace.nodes[node].operands[targets(node)[out]]
        if before.kind != "node":
            return before.index if before.kind == "input" else None
        node, out = before.index, before.out
    return None


def _targets(node: Node) -> list[int]:
    """For each output that is the new content of an operand (they come first), that operand's number."""
    if node.graph is not None:
        return list(node.graph.written)
    if node.call is None:
        return [0] if node.kind == "update" else []
    names = written(node.call.op)
    targets: list[int] = []
    count = 0
    for argument, value in zip(node.call.op._schema.arguments, node.call.template, strict=True):
        tensors = _count_tensors(value)
        if argument.name in names:
            targets += range(count, count + tensors)
        count += tensors
    return targets


def _count_tensors(value: Any) -> int:
    if isinstance(value, list):
        return sum(map(_count_tensors, value))
    return int(isinstance(value, tuple) and value[:1] == ("$tensor",))


def _last_readers(trace: Trace, needed: Iterable[int]) -> dict[int, int]:
    """For each input that is read, the last node that does."""
    return {o.index: i for i in sorted(needed) for o in trace.nodes[i].operands if o.kind == "input"}
