"""Putting the bodies of `nested_compile_region` back into the graph that calls them.

PyTorch keeps such a region as one node, `invoke_subgraph`, so that Inductor compiles it once. Regions that are called
often are compiled once here too (`segments.keeps_regions`); within a program XLA wants to see all operations.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from .bodies import bodies


def is_region(node: Node) -> bool:
    """Whether the node calls a region."""
    return node.op == "call_function" and node.target is torch.ops.higher_order.invoke_subgraph


def inline_regions(gm: GraphModule) -> None:
    """Replace every `invoke_subgraph` node of a graph by the nodes of its region, in place."""
    for node in gm.graph.nodes:
        if not is_region(node):
            for body in bodies(node):
                inline_regions(body)
    regions = [n for n in gm.graph.nodes if is_region(n)]
    for node in regions:
        _inline(gm, node)
    if regions:
        gm.graph.eliminate_dead_code()
        gm.graph.lint()
        gm.recompile()


def _inline(gm: GraphModule, call: Node) -> None:
    held, _, *operands = call.args
    assert isinstance(held, Node)
    body: GraphModule = getattr(gm, str(held.target))
    inline_regions(body)
    copies: dict[Node, Node] = dict(
        zip((n for n in body.graph.nodes if n.op == "placeholder"), operands, strict=True)  # type: ignore[arg-type]
    )
    outputs: Any = None
    with gm.graph.inserting_before(call):
        for node in body.graph.nodes:
            if node.op == "placeholder":
                continue
            if node.op == "output":
                outputs = map_arg(node.args[0], lambda n: copies[n])
                continue
            copies[node] = gm.graph.node_copy(node, lambda n: copies[n])
            if node.op == "get_attr":
                copies[node].target = _adopt(gm, body, f"{held.target}_{node.target}", str(node.target))
            if "partitioner_tag" in call.meta:
                copies[node].meta["partitioner_tag"] = call.meta["partitioner_tag"]
    for user in list(call.users):
        assert user.target is operator.getitem
        user.replace_all_uses_with(outputs[user.args[1]])
        gm.graph.erase_node(user)
    gm.graph.erase_node(call)


def _adopt(gm: GraphModule, body: GraphModule, name: str, attribute: str) -> str:
    """Make an attribute of a region's module one of the whole graph's."""
    name = name.replace(".", "_")
    if not hasattr(gm, name):
        setattr(gm, name, getattr(body, attribute))
    return name
