"""Evaluate an FX graph of ATen ops on JAX arrays, with the lowerings that eager uses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch._ops import OpOverload
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves

from ..lowering import Spec, apply, find, view
from ..lowering.dtypes import in_array, to_numpy
from ..lowering.rng import subkeys
from ..lowering.view_dtype import seen_as
from . import collectives, control_flow
from .bodies import attribute, hop_of, octets, outputs, wanted
from .draws import draw_key, draws, is_random, op_of
from .refused import refuse
from .sizes import Sizes
from .strided import Memory, as_strided, as_strided_scatter

aten = torch.ops.aten

# Ops that say something to the compiler and compute nothing. What they assert of sizes is checked by `Program`.
_IGNORED = frozenset(
    {
        aten._assert_scalar.default, aten._assert_tensor_metadata.default, aten.sym_constrain_range.default,
        aten.sym_constrain_range_for_size.default,
    }
)  # fmt: skip
_PYTHON = frozenset({"_operator", "operator", "math", "builtins", "torch", "torch.fx.experimental.sym_node"})


def can_lower(node: Node) -> bool:
    """Whether a node can be part of a program: an op with a lowering, or arithmetic on sizes."""
    if node.op in ("placeholder", "output"):
        return True
    if node.op == "get_attr":
        return isinstance(attribute(node), (torch.Tensor, GraphModule))
    if node.target is draw_key:
        return True
    if hop_of(node) is not None:
        return control_flow.lowered(node, can_lower)
    op = op_of(node)
    if op is None:
        return getattr(node.target, "__module__", None) in _PYTHON
    return lowered_here(op) or collectives.inside(node) is not None or find(op) is not None


def lowered_here(op: OpOverload) -> bool:
    """Whether the op means something of its own to a graph, whatever the table of lowerings says."""
    return op in _IGNORED or op in _SPECIAL


class Evaluation:
    """One evaluation of a graph's nodes, on tracers or arrays.

    Args:
        values: what is known already: the arrays (numbers) of the placeholders.
        sizes: the numbers that the graph's symbolic sizes stand for.
        keys: uint32[n, 4], one row for each node that draws, in graph order; None if there is none.
        constants: arrays of the tensors that are attributes of the graph's module.
        wide: whether half types are float32.
        memories: what lies under the placeholders that are arguments of the program.
    """

    def __init__(
        self,
        values: Mapping[Node, Any],
        sizes: Sizes,
        keys: jax.Array | None,
        constants: Mapping[Node, jax.Array],
        wide: bool = False,
        memories: Mapping[Node, Memory] = MappingProxyType({}),
    ) -> None:
        self.wide = wide
        self.memories = memories
        self.values: dict[Node, Any] = {**values, **constants}
        self.sizes = sizes
        self.required_by: list[Node] = []
        self.keys: Iterator[jax.Array] = iter([] if keys is None else [keys[i] for i in range(keys.shape[0])])

    def run(self, nodes: Iterable[Node], needed: set[Node], required: Callable[[], int] = lambda: 0) -> dict[Node, Any]:
        """The values of `nodes`, which are in graph order; those not `needed` are passed over.

        `required` counts what the lowerings have required so far: `required_by` then names the node of each.
        """
        for node in nodes:
            if node in self.values or node.op in ("placeholder", "output"):
                continue
            key = next(self.keys) if draws(node) else None
            if node not in needed:
                continue
            try:
                with jax.named_scope(describe_place(node)):
                    self.values[node] = self._value(node, key)
                self.required_by += [node] * (required() - len(self.required_by))
            except Exception as error:
                error.add_note(f"while lowering {describe(node)}")
                raise
        return self.values

    def _value(self, node: Node, key: jax.Array | None) -> Any:
        if node.target is draw_key:
            return key
        if node.op == "get_attr":
            return _embedded(attribute(node))
        found: Any = map_arg((node.args, node.kwargs), lambda n: self.values[n])
        args: tuple[Any, ...] = found[0]
        kwargs: dict[str, Any] = found[1]
        if hop_of(node) is not None:
            if not is_random(node) and getattr(node.target, "op", None) is not None:
                key, args = args[0], args[1:]
            return control_flow.evaluate(self, node, key, args, kwargs)
        op = op_of(node)
        if op is None:
            assert callable(node.target)
            return node.target(*args, **kwargs)
        if op in _IGNORED:
            return None
        if collectives.inside(node) is not None:
            return collectives.evaluate(node, args)
        refuse(op, node)
        if op in _SPECIAL:
            return _SPECIAL[op](self, node, *args, **kwargs)
        if not is_random(node) and node.target is not op:
            key, args = args[0], args[1:]
        promised = node.meta.get("val")  # an assertion has none
        if isinstance(promised, (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)):
            raise NotImplementedError(f"{op.name()} returns a number, which no program can")
        metas = [t for t in tree_leaves(promised) if isinstance(t, torch.Tensor)]
        flat = apply(op, list(args), dict(kwargs), [self._spec(t) for t in metas], key)
        if isinstance(promised, torch.Tensor):
            return flat[0]
        supply = iter(flat)
        return [_fill(t, supply) for t in promised or ()]

    def body(
        self,
        graph: GraphModule,
        operands: Sequence[Any],
        key: jax.Array | None,
        step: jax.Array | None = None,
        *,
        wide: bool = False,
        only: int | None = None,
    ) -> list[Any]:
        """The results of a graph that the evaluated one calls.

        Args:
            graph: its nodes draw from `key`, in turn `step` of a loop.
            operands: arrays, numbers.
            wide: half types in it are float32.
            only: how many of its results, the first, are wanted.
        """
        nodes = list(graph.graph.nodes)
        placeholders = [n for n in nodes if n.op == "placeholder"]
        sizes = Sizes(self.sizes.known)
        for node, operand in zip(placeholders, operands, strict=True):
            fake = node.meta["val"]
            if isinstance(fake, torch.Tensor):
                sizes.bind(fake.shape, operand.shape)
            elif isinstance(fake, torch.SymInt):
                sizes.bind([fake], [operand])
        drawn = sum(draws(n) for n in nodes)
        keys = None if key is None or not drawn else subkeys(key, drawn, step)
        inner = Evaluation(dict(zip(placeholders, operands, strict=True)), sizes, keys, {}, wide)
        inner.run(nodes, wanted(graph, only))
        return [inner.values[o] if isinstance(o, Node) else o for o in outputs(graph)[:only]]

    def promised(self, node: Node) -> list[Spec | None]:
        """What PyTorch promises of each of the node's results; None where it has none."""
        leaves = tree_leaves(node.meta["val"])
        return [self._spec(t) if isinstance(t, torch.Tensor) else None for t in leaves]

    def layout(self, node: Node) -> view.Layout:
        """How the node's tensor lies in memory in PyTorch, from its own first element on."""
        fake = node.meta["val"]
        return view.Layout(fake.dtype, self.sizes.of(fake.shape), self.sizes.of(fake.stride()))

    def _spec(self, fake: torch.Tensor) -> Spec:
        half = self.wide and fake.dtype in (torch.bfloat16, torch.float16)
        return Spec(self.sizes.of(fake.shape), torch.float32 if half else fake.dtype)


def _fill(promised: Any, supply: Iterator[Any]) -> Any:
    if isinstance(promised, (list, tuple)):
        return [_fill(t, supply) for t in promised]
    return next(supply) if isinstance(promised, torch.Tensor) else None


def describe(node: Node) -> str:
    """A node as an error or a dump shows it: the op, its arguments, the user's line."""
    name = name_of(node)
    arguments = ", ".join([*map(str, node.args), *(f"{k}={v}" for k, v in node.kwargs.items())])
    line = user_line(node)
    return f"{name}({arguments})" + (f"  # {line}" if line else "")


def describe_place(node: Node) -> str:
    """A node's name in the program: the user's line and the op. StableHLO and HLO carry it as the location."""
    op = op_of(node)
    return f"{user_line(node) or node.name} {op.name() if op is not None else node.name}".replace("/", "|")


def name_of(node: Node) -> str:
    """The name of the node's op, of whatever kind."""
    op = op_of(node)
    return op.name() if op is not None else str(hop_of(node) or node.target)


def user_line(node: Node) -> str:
    """ "file:line in function" of the user's program that made the node, "" if it is not known."""
    frames = [f.strip() for f in (node.meta.get("stack_trace") or "").splitlines() if f.strip().startswith("File ")]
    if not frames:
        return ""
    file, line, function = (part.strip() for part in frames[-1].removeprefix("File ").rsplit(",", 2))
    where = f"{file.strip(chr(34))}:{line.removeprefix('line ')} {function}"
    return f"{where} (backward)" if node.meta.get("partitioner_tag") == "is_backward" else where


def constants(nodes: Iterable[Node]) -> dict[Node, torch.Tensor]:
    """The tensors that are attributes of the graph's module."""
    held = {n: attribute(n) for n in nodes if n.op == "get_attr"}
    return {n: t for n, t in held.items() if isinstance(t, torch.Tensor)}


def _embedded(held: Any) -> Any:
    """A graph as it is; a tensor that a body's module holds as a constant of the program."""
    if not isinstance(held, torch.Tensor):
        return held
    held = in_array(held)
    return jnp.asarray(octets(held).view(to_numpy(held.dtype)).reshape(tuple(held.shape)))


# --- ops that mean something else, or more, to a graph than to an array ---


def _sym_size(run: Evaluation, node: Node, x: jax.Array, dim: int) -> int:
    return int(x.shape[dim])


def _sym_numel(run: Evaluation, node: Node, x: jax.Array) -> int:
    return int(x.size)


def _sym_stride(run: Evaluation, node: Node, x: jax.Array, dim: int) -> int:
    source = node.args[0]
    assert isinstance(source, Node)
    return run.sizes.of(source.meta["val"].stride())[dim]


def _sym_storage_offset(run: Evaluation, node: Node, x: jax.Array) -> int:
    source = node.args[0]
    assert isinstance(source, Node)
    return run.sizes.of([source.meta["val"].storage_offset()])[0]


def _to_device(run: Evaluation, node: Node, x: jax.Array, *device: Any, **named: Any) -> jax.Array:
    return x


def _copy(run: Evaluation, node: Node, x: jax.Array, source: jax.Array, non_blocking: bool = False) -> jax.Array:
    """`copy_` to a placeholder: its new content, which the program returns."""
    made: jax.Array = apply(aten.copy.default, [x, source], {}, [Spec(tuple(x.shape), node.meta["val"].dtype)])[0]
    return made


def _view_dtype(run: Evaluation, node: Node, x: jax.Array, dtype: torch.dtype) -> jax.Array:
    """The node knows the dtype it views better than the array does, which is complex64 for complex32 too."""
    source = node.args[0]
    assert isinstance(source, Node)
    return seen_as(x, source.meta["val"].dtype, dtype)


def _efficient_attention(run: Evaluation, node: Node, *args: Any, **kwargs: Any) -> list[jax.Array]:
    """PyTorch promises what CUDA's kernel gives: the logarithms padded to whole blocks of 32."""
    promised = run.promised(node)
    assert promised[1] is not None
    length = args[0].shape[-2] if promised[1].shape[-1] else 0
    assert promised[0] is not None
    wide = torch.promote_types(promised[0].dtype, promised[1].dtype)
    own = [promised[0], Spec((*promised[1].shape[:-1], length), wide), *promised[2:]]
    out, logsumexp, *rest = apply(aten._scaled_dot_product_efficient_attention.default, args, kwargs, own)
    padding = promised[1].shape[-1] - length
    return [out, jnp.pad(logsumexp, [(0, 0)] * (logsumexp.ndim - 1) + [(0, padding)]), *rest]


_SPECIAL: dict[OpOverload, Callable[..., Any]] = {
    aten.sym_size.int: _sym_size,
    aten.sym_numel.default: _sym_numel,
    aten.sym_stride.int: _sym_stride,
    aten.sym_storage_offset.default: _sym_storage_offset,
    aten.as_strided.default: as_strided,
    aten.as_strided_copy.default: as_strided,
    aten.as_strided_scatter.default: as_strided_scatter,
    aten.copy_.default: _copy,
    aten.view.dtype: _view_dtype,
    aten.view_copy.dtype: _view_dtype,
    aten._scaled_dot_product_efficient_attention.default: _efficient_attention,
    torch.ops.prims.device_put.default: _to_device,
}
