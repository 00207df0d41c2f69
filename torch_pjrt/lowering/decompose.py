"""Ops without a lowering of their own, through PyTorch's decompositions into ops that have one.

The decomposition is traced once per (op, argument metadata) on meta tensors into an FX graph of ATen ops, and that
graph is interpreted with the lowerings.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import torch
from torch._ops import OpOverload
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_flatten, tree_unflatten

from .dtypes import to_torch
from .registry import Lowering, get


@functools.cache
def _table() -> dict[OpOverload, Callable[..., Any]]:
    from torch._decomp import core_aten_decompositions, decomposition_table

    return {**decomposition_table, **core_aten_decompositions()}


@functools.cache
def decomposed(op: OpOverload) -> Lowering | None:
    """A lowering that interprets PyTorch's decomposition of `op`, or None if PyTorch has none."""
    if op not in _table() or torch.Tag.nondeterministic_seeded in op.tags:
        return None  # the random ops inside would have no key of their own
    graphs: dict[Any, GraphModule] = {}

    def fn(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = tree_flatten((args, kwargs))
        arrays = [x for x in leaves if isinstance(x, jax.Array)]
        signature = tuple((x.shape, str(x.dtype)) if isinstance(x, jax.Array) else repr(x) for x in leaves)
        if signature not in graphs:
            graphs[signature] = _trace(op, leaves, tree)
        return interpret(graphs[signature], arrays)

    return Lowering(fn, static=frozenset(a.name for a in op._schema.arguments))


def _trace(op: OpOverload, leaves: list[Any], tree: Any) -> GraphModule:
    from torch.func import functionalize
    from torch.fx.experimental.proxy_tensor import make_fx

    metas = [torch.empty(x.shape, dtype=to_torch(x.dtype), device="meta") for x in leaves if isinstance(x, jax.Array)]

    def call(*tensors: torch.Tensor) -> Any:
        supply = iter(tensors)
        filled = [next(supply) if isinstance(x, jax.Array) else _on_meta(x) for x in leaves]
        args, kwargs = tree_unflatten(filled, tree)
        return op(*args, **kwargs)

    table = {o: f for o, f in _table().items() if o is op or get(o.name().removeprefix("aten::")) is None}
    with torch.no_grad():
        graph: GraphModule = make_fx(functionalize(call), decomposition_table=table)(*metas)
    return graph


def _on_meta(x: Any) -> Any:
    return torch.device("meta") if isinstance(x, torch.device) else x


def interpret(graph: GraphModule, arrays: list[jax.Array]) -> Any:
    """Run an FX graph of ATen ops on JAX arrays with the lowerings; its outputs in the graph's own structure."""
    env: dict[Node, Any] = {}
    supply: Iterator[jax.Array] = iter(arrays)

    def value(node: Node) -> Any:
        return env[node]

    for node in graph.graph.nodes:
        if node.op == "placeholder":
            env[node] = next(supply)
        elif node.op == "get_attr":
            env[node] = _constant(getattr(graph, node.target))
        elif node.op == "output":
            return torch.fx.node.map_arg(node.args[0], value)
        else:
            args = torch.fx.node.map_arg(node.args, value)
            kwargs = torch.fx.node.map_arg(node.kwargs, value)
            env[node] = call_node(node, args, kwargs)
    raise ValueError("the FX graph has no output node")


def call_node(node: Node, args: Any, kwargs: Any) -> Any:
    """The value of one call_function node, in the structure its schema returns."""
    from .apply import Spec, apply

    if not isinstance(node.target, OpOverload):
        assert callable(node.target)
        return node.target(*args, **kwargs)  # operator.getitem and friends
    promised = node.meta["val"]
    metas = [t for t in tree_flatten(promised)[0] if isinstance(t, torch.Tensor)]
    flat = apply(node.target, list(args), dict(kwargs), [Spec(tuple(t.shape), t.dtype) for t in metas])
    if isinstance(promised, torch.Tensor):
        return flat[0]
    supply = iter(flat)
    return [next(supply) if isinstance(t, torch.Tensor) else None for t in promised]


def _constant(tensor: torch.Tensor) -> jax.Array:
    import jax.numpy as jnp

    return jnp.asarray(tensor.numpy())
