"""The graphs inside a graph: what a higher-order op (`cond`, `scan`, ...) is called with beside its operands."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import numpy as np
import torch
from torch._library.fake_class_registry import maybe_unwrap_fake_script_object
from torch._ops import HigherOrderOperator
from torch.fx import GraphModule, Node

_Op = TypeVar("_Op")
_PART_OF_GRAPHS = (torch.Tensor, GraphModule)


def called(node: Node, kind: type[_Op]) -> _Op | None:
    """What a node calls, with or without a key before its arguments, if it is of this kind."""
    if node.op != "call_function":
        return None
    target = node.target if isinstance(node.target, kind) else getattr(node.target, "op", None)
    return target if isinstance(target, kind) else None


def hop_of(node: Node) -> HigherOrderOperator | None:
    """The higher-order op of a node, with or without a key; None for anything else."""
    return called(node, HigherOrderOperator)  # type: ignore[type-abstract]


def attribute(node: Node) -> Any:
    """What a `get_attr` node gets: a tensor or a graph that the module holds."""
    value: Any = node.graph.owning_module
    for part in str(node.target).split("."):
        value = getattr(value, part)
    return value


def bodies(node: Node) -> list[GraphModule]:
    """The graphs among a node's arguments."""
    held = [attribute(n) for n in node.all_input_nodes if n.op == "get_attr"]
    return [g for g in held if isinstance(g, GraphModule)]


def outputs(body: GraphModule) -> list[Any]:
    """What a graph returns: nodes, None, numbers."""
    returned: Any = next(iter(body.graph.find_nodes(op="output"))).args[0]
    return list(returned) if isinstance(returned, (list, tuple)) else [returned]


def return_held_objects(gm: GraphModule) -> None:
    """Where the graph returns an object that its module holds, no tensor, make it return that as it does a number.

    A gradient that is a DTensor comes with its mesh, another object than the argument's if the program has made an
    equal mesh twice.
    """
    end = next(iter(gm.graph.find_nodes(op="output")))
    held = {n: attribute(n) for n in end.all_input_nodes if n.op == "get_attr"}
    objects = {n: maybe_unwrap_fake_script_object(o) for n, o in held.items() if not isinstance(o, _PART_OF_GRAPHS)}
    if objects:
        returned = outputs(gm)
        end.args = ([objects.get(o, o) if isinstance(o, Node) else o for o in returned],)
        for node in objects:
            if not node.users:
                gm.graph.erase_node(node)


def octets(tensor: torch.Tensor) -> np.ndarray:
    """The content of a tensor that a graph holds."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


def asserts(node: Node) -> bool:
    """Whether the node is there for what it says of its data: nothing depends on it, and it has to run."""
    return node.target in (torch.ops.aten._assert_async.default, torch.ops.aten._assert_async.msg)


def wanted(body: GraphModule, only: int | None = None) -> set[Node]:
    """What has to run for the graph's results (the first `only` of them) and its assertions."""
    made = [o for o in outputs(body)[:only] if isinstance(o, Node)]
    return reached([*made, *filter(asserts, body.graph.nodes)])


def reached(nodes: Iterable[Node]) -> set[Node]:
    """Nodes and all that they depend on."""
    found: set[Node] = set()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack += node.all_input_nodes
    return found
