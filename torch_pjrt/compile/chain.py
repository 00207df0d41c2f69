"""A graph of equal blocks as a chain of programs: what lies before, one program called for each block, what lies after.

XLA compiles the block once, however deep the model is. Every call takes the block's own parameters and returns its own
results, so nothing is stacked or copied, and what the backward pass saved dies block by block.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import Graph, GraphModule, Node

from .blocks import Run, constants, find_runs, memory_of, references, symbolic
from .bodies import outputs
from .draws import draws, is_view, op_of
from .inline import inline_regions
from .options import Options
from .program import Program
from .report import REPORT

aten = torch.ops.aten

Boxed = Callable[[list[Any]], Sequence[Any]]


@dataclass(frozen=True, slots=True)
class _Segment:
    """Consecutive nodes; `run`: the run of equal blocks that they are one of."""

    nodes: Sequence[Node]
    run: Run | None


@dataclass(frozen=True, slots=True)
class _Step:
    """One call. Values are numbered: the graph's arguments, then what steps make.

    Attributes:
        call: of a program.
        takes: its arguments.
        makes: what its outputs are; None: nobody wants this one of this block's.
        last: the values that nobody wants any more once they have been taken.
    """

    call: Boxed
    takes: tuple[int, ...]
    makes: tuple[int | None, ...]
    last: tuple[int, ...]


class Chain:
    """A graph with runs of equal blocks, called like a `Program`. Its programs are compiled when they are called.

    Args:
        gm: as for `Program`, without symbolic sizes.
        kind: likewise.
        order: its operations, in an order in which they can run.
        runs: the equal blocks among them, in order.
        made_anew: further operations, which each program that needs them has for itself.
    """

    def __init__(
        self,
        gm: GraphModule,
        kind: str,
        options: Options,
        order: Sequence[Node],
        runs: Sequence[Run],
        made_anew: Collection[Node],
    ) -> None:
        self._boxed_call = True  # it empties the list that it is called with
        record = REPORT.add_graph(kind, gm)
        record.blocks = [(run.count, run.length) for run in runs]
        bodies: dict[Run, tuple[Boxed, list[int]]] = {}
        segments = list(_segments(order, runs))
        number = {n: i for i, n in enumerate(gm.graph.find_nodes(op="placeholder"))}
        taken: list[tuple[Boxed, list[Node], list[Node | None]]] = []
        for segment in segments:
            inside = set(segment.nodes)
            inputs = _inputs(segment.nodes, inside.union(made_anew))
            if segment.run is None:
                made = [n for n in segment.nodes if not inside.issuperset(n.users)]
                part = extract(gm, segment.nodes, inputs, made)
                taken.append((Program(part, kind, options, record=record).call, inputs, list(made)))
                continue
            if segment.run not in bodies:
                leaving = _leaving(order, segment.run)
                part = extract(gm, segment.nodes, inputs, [segment.nodes[i] for i in leaving])
                program = Program(part, kind, options, record=record, runs=segment.run.count)
                bodies[segment.run] = program.call, leaving
            call, leaving = bodies[segment.run]
            results = [segment.nodes[i] for i in leaving]
            taken.append((call, inputs, [n if not inside.issuperset(n.users) else None for n in results]))
        self._number(gm, number, taken)

    def _number(
        self, gm: GraphModule, number: dict[Node, int], taken: Sequence[tuple[Boxed, list[Node], list[Node | None]]]
    ) -> None:
        for _, _, made in taken:
            for node in made:
                if node is not None:
                    number[node] = len(number)
        returned = outputs(gm)
        self.count = len(number)
        self.outputs = [number[o] if isinstance(o, Node) else None for o in returned]
        self.constants = [None if isinstance(o, Node) else o for o in returned]
        last: dict[Node, int] = {n: i for i, (_, inputs, _) in enumerate(taken) for n in inputs}
        for node in returned:
            last.pop(node, None)
        self.steps = [
            _Step(
                call,
                tuple(number[n] for n in inputs),
                tuple(None if n is None else number[n] for n in made),
                tuple(number[n] for n in inputs if last.get(n) == i),
            )
            for i, (call, inputs, made) in enumerate(taken)
        ]

    def __call__(self, args: list[Any]) -> list[Any]:
        values: list[Any] = [*args, *((None,) * (self.count - len(args)))]
        args.clear()
        for step in self.steps:
            given = [values[i] for i in step.takes]
            for i in step.last:
                values[i] = None
            made = step.call(given)  # which empties `given`: what the step was the last to need dies
            for place, value in zip(step.makes, made, strict=True):
                if place is not None:
                    values[place] = value
            del made
        return [c if i is None else values[i] for i, c in zip(self.outputs, self.constants, strict=True)]


# So many operations from arguments to what all blocks share.
_FEW = 16


def chain(gm: GraphModule, kind: str, options: Options) -> Chain | None:
    """The graph as a chain; None if it has too few equal blocks in a row, and is to be one program."""
    nodes = list(gm.graph.nodes)
    if not options.scan_blocks or any(map(symbolic, nodes)) or any(_returns_apart(o) for o in outputs(gm)):
        return None
    with unset_fake_temporarily():  # the tensors that the module holds are real
        made_anew = constants(nodes)
        order = _views_moved_up([n for n in nodes if n.op == "call_function" and n not in made_anew])
        order = _writes_moved_up(_shared_moved_up(order, options.scan_blocks))
        runs = find_runs(order, options.scan_blocks, made_anew)
    if not runs or not _separable(list(_segments(order, runs))):
        return None
    return Chain(gm, kind, options, order, runs, made_anew)


def extract(gm: GraphModule, nodes: Sequence[Node], inputs: Sequence[Node], results: Sequence[Node]) -> GraphModule:
    """Some of a graph's nodes as a graph of their own: of `inputs`, returning `results`.

    What they need besides is copied: tensors and graphs that the module holds, constants.
    """
    graph = Graph()
    copies: dict[Node, Node] = {}
    for node in inputs:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = dict(node.meta)

    def copy(node: Node) -> Node:
        if node not in copies:
            assert node.op != "placeholder", node
            copies[node] = graph.node_copy(node, copy)
        return copies[node]

    for node in nodes:
        copy(node)
    graph.output([copies[n] for n in results])
    part = GraphModule(gm, graph)
    inline_regions(part)
    return part


def _segments(order: Sequence[Node], runs: Sequence[Run]) -> Iterator[_Segment]:
    at = 0
    for run in runs:
        if at < run.start:
            yield _Segment(order[at : run.start], None)
        for block in run.blocks():
            yield _Segment(order[block.start : block.stop], run)
        at = run.end
    if at < len(order):
        yield _Segment(order[at:], None)


def _inputs(nodes: Sequence[Node], inside: set[Node]) -> list[Node]:
    """What nodes read from outside, in the order in which they read it."""
    read = (source for node in nodes for source in references(node))
    return list(dict.fromkeys(s for s in read if s not in inside and s.op != "get_attr"))


def _leaving(order: Sequence[Node], run: Run) -> list[int]:
    """The places in a block whose values are used outside of it, in any block of the run."""
    found: set[int] = set()
    for block in run.blocks():
        inside = {order[i] for i in block}
        found |= {i - block.start for i in block if not inside.issuperset(order[i].users)}
    return sorted(found)


def _returns_apart(output: Any) -> bool:
    """Whether an output is something that no step makes."""
    return isinstance(output, Node) and output.op == "get_attr"


def _views_moved_up(order: list[Node]) -> list[Node]:
    """The same nodes, views that are only returned right after what they are views of.

    What the backward pass wants transposed, the partitioner puts behind all blocks.
    """
    among = set(order)
    late: set[Node] = set()
    for node in reversed(order):
        if is_view(node) and node.args[0] in among and all(u.op == "output" or u in late for u in node.users):
            late.add(node)
    after: dict[Node, list[Node]] = {}
    for node in order:
        source = node.args[0] if node in late else None
        if isinstance(source, Node):
            after.setdefault(source, []).append(node)
    found: list[Node] = []
    for node in order:
        stack = [] if node in late else [node]
        while stack:
            at = stack.pop()
            found.append(at)
            stack += reversed(after.get(at, []))
    return found


def _shared_moved_up(order: list[Node], fewest: int) -> list[Node]:
    """The same nodes, first those that come of arguments in a few steps and that are used in more than one block.

    Else what all blocks share (rotary tables, a tied weight transposed) is in the first. No block is longer than the
    graph over the number of blocks that there must be.
    """
    place = {node: i for i, node in enumerate(order)}
    sources: dict[Node, set[Node]] = {}
    front: set[Node] = set()
    for node in order:
        inside = [s for s in node.all_input_nodes if s in place]
        if op_of(node) is None or draws(node) or not all(s in sources for s in inside):
            continue
        found = {node}.union(*(sources[s] for s in inside))
        if len(found) <= _FEW:
            sources[node] = found
            used = [place[user] for user in node.users if user in place]
            if used and max(used) - min(used) > len(order) // fewest:
                front |= found
    return [n for n in order if n in front] + [n for n in order if n not in front]


def _writes_moved_up(order: list[Node]) -> list[Node]:
    """The same nodes, each write to an argument right after the last that has to do with the argument.

    AOTAutograd puts them all at the end; a block's own (batch norm's statistics, a cache) belong to the block.
    """
    place = {n: i for i, n in enumerate(order)}
    after: dict[int, list[Node]] = {}
    moved: set[Node] = set()
    for node in order:
        if op_of(node) is not aten.copy_.default:
            continue
        readers = {u for a in _aliases(node) for u in a.users} - {node}
        if readers <= place.keys():
            last = max([place[u] for u in readers] + [place[s] for s in node.all_input_nodes if s in place], default=-1)
            after.setdefault(last, []).append(node)
            moved.add(node)
    found = after.get(-1, [])
    for i, node in enumerate(order):
        found += [] if node in moved else [node]
        found += after.get(i, [])
    return found


def _aliases(copy: Node) -> set[Node]:
    """What a `copy_` writes to, and the views of it."""
    target = copy.args[0]
    assert isinstance(target, Node)
    found, stack = {target}, [target]
    while stack:
        for user in stack.pop().users:
            if user not in found and is_view(user) and user.args[0] in found:
                found.add(user)
                stack.append(user)
    return found


def _separable(segments: Sequence[_Segment]) -> bool:
    """Whether the segments compute one after the other what the graph computes as a whole."""
    of = {n: i for i, segment in enumerate(segments) for n in segment.nodes}
    for node, i in of.items():
        written = _aliases(node) if op_of(node) is aten.copy_.default else set()
        if any(of.get(user, len(segments)) > i for a in written for user in a.users):
            return False  # later segments, and who gets the outputs, would see the new content in place of the old
        if any(s.op == "call_function" and of.get(s, i) != i for s in memory_of(node)):
            return False
    # A program without results does not run, and its random ops would not take their keys.
    return not any(
        segment.run is None and any(map(draws, segment.nodes)) and not _has_results(segment) for segment in segments
    )


def _has_results(segment: _Segment) -> bool:
    inside = set(segment.nodes)
    return any(op_of(n) is aten.copy_.default or not inside.issuperset(n.users) for n in segment.nodes)
