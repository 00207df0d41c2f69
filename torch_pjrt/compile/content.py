"""What a graph's program depends on, as text: graphs with equal texts are one program, in this process or another.

Nodes go by their number and sizes by their value in the call, so neither names nor the user's lines nor symbols keep
two instances of a model apart, nor a graph with symbolic sizes from one without. What the module holds (its constants)
are arguments of the program: only their shapes and dtypes count.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import torch
from torch.fx import GraphModule, Node

from ..eager.content import Unknown, lowering_state, name_of, text_of
from .bodies import attribute, hop_of, octets
from .collectives import is_collective
from .draws import draw_key, draws, op_of
from .evaluate import lowered_here
from .sizes import Sizes, UnboundSize


def content(
    nodes: Sequence[Node],
    part: Sequence[Node],
    sizes: Sizes,
    *,
    arguments: Sequence[tuple[Node, tuple[Any, ...]]],
    ints: Mapping[Node, int],
    constants: Mapping[Node, jax.Array | jax.ShapeDtypeStruct],
    results: Sequence[Node],
    writes: Sequence[tuple[Node, Node]],
    donated: Sequence[int],
    device: int,
) -> str | None:
    """All that a program depends on but for XLA's options, or None if that cannot be told (a lowering from elsewhere).

    Args:
        nodes: all of the graph's nodes, in order: each that draws takes a random key, needed or not.
        part: those of them that the program is made of, in order, placeholders among them.
        sizes: what the graph's symbolic sizes stand for.
        arguments: each tensor argument, with how it lies in memory.
        ints: the arguments that are sizes.
        constants: the tensors that the module holds.
        results: the nodes whose values the program returns.
        writes: argument and new content where that goes through a view.
        donated: the inputs whose memory the program may overwrite.
        device: its index.

    Example:
        >>> content(...)
        "('HIGHEST;torch.float32;None',0,...]\\n%0 = argument ((6,(4],(1]],...\\n%1 = aten::sin (%0] {}: ..."
    """
    number = {node: f"%{i}" for i, node in enumerate(part)}
    keys = {node: k for k, node in enumerate(n for n in nodes if draws(n))}
    given = {node: f"argument {text_of(how)}" for node, how in arguments}
    given |= {node: f"int {value}" for node, value in ints.items()}
    given |= {node: f"constant {c.shape} {c.dtype}" for node, c in constants.items()}
    try:
        head = (
            lowering_state(), device, list(donated), len(keys), [number[n] for n, _ in arguments],
            [number[n] for n in results], [(number[a], number[n]) for a, n in writes],
        )  # fmt: skip
        lines = [text_of(head)]
        for node in part:
            what = given.get(node) or call_text(node, number, sizes)
            key = f" key {keys[node]}" if node in keys else ""
            lines.append(f"{number[node]} = {what}{key}: {value_text(node.meta.get('val'), sizes)}")
        return "\n".join(lines)
    except Unknown:
        return None


def call_text(node: Node, number: Mapping[Node, str], sizes: Sizes) -> str:
    """What a node does, its arguments by `number`. Raises Unknown if that cannot be told."""
    if node.op == "get_attr":
        return _held(attribute(node), sizes)
    return f"{_target(node)} {_argument(node.args, number)} {_argument(dict(node.kwargs), number)}"


def _held(held: Any, sizes: Sizes) -> str:
    """A body, its nodes counted anew; a tensor that a body holds, by what is in it."""
    if not isinstance(held, GraphModule):
        return f"embedded {hashlib.sha256(octets(held).tobytes()).hexdigest()}: {value_text(held, sizes)}"
    number = {node: f"%{i}" for i, node in enumerate(held.graph.nodes)}
    lines = [
        f"{number[n]} = {'' if n.op == 'placeholder' else call_text(n, number, sizes)}: "
        f"{value_text(n.meta.get('val'), sizes)}"
        for n in held.graph.nodes
    ]
    return f"graph {{{'; '.join(lines)}}}"


def _target(node: Node) -> str:
    if node.op == "output":
        return "output"
    if node.target is draw_key:
        return "draw_key"
    hop = hop_of(node)
    if hop is not None:
        return f"higher_order.{hop}{'' if node.target is hop else ' keyed'}"
    op = op_of(node)
    if op is None:
        name = f"{getattr(node.target, '__module__', None)}.{getattr(node.target, '__qualname__', '<')}"
        if "<" in name:
            raise Unknown(f"{node.target} has no name that another process knows it by")
        return name
    # The same op takes its key from the program or, where that was drawn for several nodes, from its first argument.
    here = lowered_here(op) or is_collective(op)
    return f"{op.name() if here else name_of(op)}{'' if node.target is op else ' keyed'}"


def _argument(a: Any, number: Mapping[Node, str]) -> str:
    if isinstance(a, Node):
        return number[a]
    if isinstance(a, (list, tuple)):
        return f"{'(' if isinstance(a, tuple) else '['}{','.join(_argument(x, number) for x in a)}]"
    if isinstance(a, dict):
        return f"{{{','.join(f'{k!r}:{_argument(x, number)}' for k, x in a.items())}}}"
    if isinstance(a, slice):
        return f"slice{_argument((a.start, a.stop, a.step), number)}"
    return "..." if a is ... else text_of(a)


def value_text(value: Any, sizes: Sizes) -> str:
    """What PyTorch says of a node's value: dtypes, and sizes, strides and offsets as numbers."""
    if isinstance(value, torch.Tensor):
        layout = f"{_numbers(value.shape, sizes)} {_numbers(value.stride(), sizes)}"
        return f"{value.dtype} {layout} {_numbers([value.storage_offset()], sizes)}"
    if isinstance(value, (list, tuple)):
        return f"[{'; '.join(value_text(v, sizes) for v in value)}]"
    return "None" if value is None else "number"


def _numbers(symbolic: Sequence[Any], sizes: Sizes) -> str:
    def number(size: Any) -> str:
        try:
            return str(sizes.of([size])[0])
        except UnboundSize:  # no program comes of a graph that makes use of it
            return "?"

    return f"[{','.join(map(number, symbolic))}]"
