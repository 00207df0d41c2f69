"""A graph as one program, as a chain of equal blocks or, where ops have no lowering, with eager ops in between."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.fx.passes.split_module import split_module
from torch.utils._sympy.symbol import SymT, symbol_is_type

from . import collectives
from .blocks import symbolic
from .bodies import bodies, return_held_objects
from .buckets import Link
from .chain import chain
from .draws import op_of
from .evaluate import can_lower
from .graph import device_of
from .inline import inline_regions, is_region
from .options import Options
from .program import Program
from .report import REPORT
from .triton import refuse_triton_kernels

aten = torch.ops.aten
Boxed = Callable[[list[Any]], Sequence[Any]]


def compile_graph(
    gm: GraphModule, kind: str, options: Options, link: Link | None = None, visible: int | None = None
) -> Boxed:
    """A function that takes the graph's arguments in a list, which it empties, and returns its outputs.

    `link` and `visible` are `Program`'s.
    """
    refuse_triton_kernels(gm)
    return_held_objects(gm)
    if keeps_regions(gm, options):
        repeated = chain(gm, kind, options)
        if repeated is not None:
            return repeated
    inline_regions(gm)
    if options.inner_collectives:
        collectives.agree(gm, kind, lambda: device_of(list(gm.graph.nodes)))
    strangers = [n for n in gm.graph.nodes if n.op == "call_function" and not fits(n)]
    if not strangers:
        return _compiled(gm, kind, options, link, visible)
    return _Segmented(gm, kind, options, strangers)


def _compiled(
    gm: GraphModule, kind: str, options: Options, link: Link | None = None, visible: int | None = None
) -> Boxed:
    """A graph whose nodes all fit."""
    return chain(gm, kind, options) or Program(gm, kind, options, link, visible).call


def keeps_regions(gm: GraphModule, options: Options) -> bool:
    """Whether regions (`nested_compile_region`) stay whole until blocks are looked for, instead of being inlined.

    One that is called often is a block that PyTorch traced once; inlined, it would be taken apart to be found again.
    """
    calls = [n for n in gm.graph.nodes if is_region(n)]
    if not options.scan_blocks or len(calls) < options.scan_blocks:
        return False
    most = max(Counter(bodies(call)[0] for call in calls).values())
    return most >= options.scan_blocks and all(not symbolic(n) and _fits_whole(n) for n in gm.graph.nodes)


def _fits_whole(node: Node) -> bool:
    if not is_region(node):
        return node.op != "call_function" or fits(node)
    return all(not symbolic(n) and _fits_whole(n) for body in bodies(node) for n in body.graph.nodes)


def fits(node: Node) -> bool:
    """Whether the node can be part of a program: it has a lowering, and every size it has follows from arguments."""
    if not can_lower(node) or node.meta.get("unbacked_bindings") or any(map(_read, node.all_input_nodes)):
        return False
    op = op_of(node)
    return op is None or op is aten.copy_.default or not (isinstance(op, OpOverload) and op._schema.is_mutable)


def _read(node: Node) -> bool:
    """Whether the node is a float or a bool that was read from data (`item()`), or follows from such floats.

    No program takes one; what follows from sizes each program works out by itself.
    """
    value = node.meta.get("val")
    if not isinstance(value, (torch.SymFloat, torch.SymBool)):
        return False
    floats = (symbol_is_type(s, SymT.UNBACKED_FLOAT) for s in free_unbacked_symbols(value))
    return op_of(node) is aten._local_scalar_dense.default or any(floats)


class _Segmented:
    """Runs of nodes that are programs, and between them ops that PyTorch's dispatcher runs, on the CPU if need be."""

    def __init__(self, gm: GraphModule, kind: str, options: Options, strangers: Sequence[Node]) -> None:
        self._boxed_call = True  # it empties the list that it is called with
        apart = set(strangers)
        for node in gm.graph.nodes:
            if node.target is operator.getitem and node.args[0] in apart:
                apart.add(node)  # programs pass tensors to each other, not tuples
        number = 0
        parts: dict[Node, int] = {}
        before_was_apart = False
        for node in gm.graph.nodes:
            if node.op in ("placeholder", "output", "get_attr"):
                continue
            if (node in apart) != before_was_apart:
                number += 1
                before_was_apart = node in apart
            parts[node] = number
        eager = {parts[n] for n in apart if n in parts}
        self.whole = split_module(gm, None, lambda n: parts[n], keep_original_order=True)  # type: ignore[arg-type]
        programs = 0
        for name, part in list(self.whole.named_children()):
            if not name.startswith("submod_") or not isinstance(part, GraphModule):
                continue
            if int(name.removeprefix("submod_")) not in eager:
                setattr(self.whole, name, _Unboxed(_compiled(part, kind, options)))
                programs += 1
        record = REPORT.add_graph(kind, gm)
        record.segments = programs + len(eager)
        record.eager_ops = dict(Counter(str(n.target) for n in strangers))

    def __call__(self, args: list[Any]) -> Any:
        given = tuple(args)
        args.clear()
        with torch.no_grad():
            return self.whole(*given)


class _Unboxed(torch.nn.Module):
    """A program as a module: what `split_module` calls."""

    def __init__(self, call: Callable[[list[Any]], Any]) -> None:
        super().__init__()
        self.call = call

    def forward(self, *args: Any) -> Any:
        outputs = self.call(list(args))
        return outputs[0] if len(outputs) == 1 else outputs
