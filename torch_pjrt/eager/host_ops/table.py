"""The table of host ops: overload name -> Python function over device tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

HostOp = Callable[..., Any]
HOST_OPS: dict[str, HostOp] = {}
# Ops that are recorded as they are, unless an index is a mask or lies on the CPU.
INDEX_OPS: dict[str, HostOp] = {}


def host_op(*names: str, table: dict[str, HostOp] = HOST_OPS) -> Callable[[HostOp], HostOp]:
    """Register the implementation of overloads, called with all of the schema's arguments by position."""

    def register(fn: HostOp) -> HostOp:
        table.update(dict.fromkeys(names, fn))
        return fn

    return register


def put(results: Sequence[Tensor], outs: Sequence[Tensor]) -> None:
    """Write results to `out=` tensors, which take the results' sizes."""
    for out, result in zip(outs, results, strict=True):
        out.resize_(result.shape).copy_(result)
