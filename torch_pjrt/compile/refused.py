"""Calls in a graph that CPU PyTorch's kernels refuse and the meta kernels it was traced with let pass."""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.fx import Node
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves

from ..eager.checks import check, checked, number_check
from ..eager.cpu_probe import result_dtypes


def refuse(op: OpOverload, node: Node) -> None:
    """Raise what the op's CPU kernel raises for the node's arguments, if they are traced ones of constant sizes."""
    of_lists = op._schema.name.startswith("aten::_foreach_")  # whose meta kernels take all dtypes
    if not (of_lists or checked(op)) or any("val" not in n.meta for n in node.all_input_nodes):
        return
    own = node.args if node.target is op else node.args[1:]  # behind the key of a draw
    args, kwargs = map_arg((own, node.kwargs), lambda n: n.meta["val"])
    names = [a.name for a in op._schema.arguments]
    given = {a.name: a.default_value for a in op._schema.arguments if a.has_default_value()}
    given |= dict(zip(names, args, strict=False)) | dict(kwargs)
    if len(given) < len(names) or any(_varies(x) for x in tree_leaves(given)):
        return
    try:
        if of_lists:
            result_dtypes(op, given)
        check(op, given)
    except (DataDependentOutputException, DynamicOutputShapeException):
        return  # a mask's shape tells nothing of what it selects
    numbers = number_check(op)
    if numbers is not None:
        numbers(*(given[n] for n in names))


def _varies(x: Any) -> bool:
    """Whether it is a symbolic number or a tensor of symbolic sizes."""
    sizes = x.shape if isinstance(x, torch.Tensor) else [x]
    return any(isinstance(n, (torch.SymInt, torch.SymFloat, torch.SymBool)) for n in sizes)
