"""Ops that are Python over device tensors instead of one node: the result's shape depends on data, or only PyTorch's
own ops can say what happens (a statistic updated that the schema does not name). What needs a size reads one number
from the device.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch._ops import OpOverload

from ... import _C
from ...lowering.apply import functional_twin
from ..checks import refusals
from ..cpu_probe import result_dtypes
from . import batch_norm, ctc, embedding, histogram, index, linalg, nested, sparse_indices, strided, unique
from .table import HOST_OPS, INDEX_OPS, HostOp, put

__all__ = ["HOST_OPS", "INDEX_OPS", "host_op_of"]

_ROOMS = (
    batch_norm,
    ctc,
    embedding,
    histogram,
    index,
    linalg,
    nested,
    sparse_indices,
    strided,
    unique,
)  # importing them fills the tables


def host_op_of(op: OpOverload) -> HostOp | None:
    """The implementation of a host op or of its `out=` overload, called with the schema's arguments by position."""
    fn = HOST_OPS.get(op.name())
    if fn is not None:
        return _refusing(op, fn)
    twin = functional_twin(op)
    inner = None if twin is None else HOST_OPS.get(twin.name())
    if inner is None or not all(a.is_out for a in op._schema.arguments if a.alias_info is not None):
        return None
    return _refusing(op, _into_outs(op, inner))


def _refusing(op: OpOverload, fn: HostOp) -> HostOp:
    names = [a.name for a in op._schema.arguments]

    def checked(*args: Any) -> Any:
        result_dtypes(op, dict(zip(names, args, strict=True)))
        return fn(*args)

    return checked


def _into_outs(op: OpOverload, fn: HostOp) -> HostOp:
    count = sum(a.is_out for a in op._schema.arguments)
    refused = refusals(op)

    def written(*args: Any) -> Any:
        outs: tuple[Tensor, ...] = args[-count:]
        for out in outs:
            _C.check_overlap(out, [a for a in args[:-count] if isinstance(a, Tensor)], refused)
        results = fn(*args[:-count])
        put([results] if isinstance(results, Tensor) else results, outs)
        return outs if count > 1 else outs[0]

    return written
