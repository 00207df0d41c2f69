"""DistributedDataParallel's reducer on fake tensors: its C++ reads some, and asserts where they lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from .tape import PlanError


def _check_in_use(parameters: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
    """Raise PlanError if the outputs do not depend on all parameters: DDP asks other ranks whether theirs do."""
    nodes: dict[Any, None] = dict.fromkeys(t.grad_fn for t in outputs if t.grad_fn is not None)
    waiting = list(nodes)
    while waiting:
        fresh = [node for node, _ in waiting.pop().next_functions if node is not None and node not in nodes]
        nodes |= dict.fromkeys(fresh)
        waiting += fresh
    used = {id(node.variable) for node in nodes if hasattr(node, "variable")}
    unused = [tuple(p.shape) for p in parameters if id(p) not in used]
    if unused:
        raise PlanError(
            f"DistributedDataParallel with find_unused_parameters and {len(unused)} parameter(s) that the step does "
            f"not use, the first of shape {unused[0]}: whether other ranks use them is not known; set their "
            "requires_grad to False"
        )


class _RealCounts(TorchDispatchMode):
    """Zeros on the CPU are real tensors.

    DDP counts the parameters in use in one, copies it, and asserts that the copy lies elsewhere; fake ones lie nowhere.
    """

    def __torch_dispatch__(self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if func is torch.ops.aten.zeros.default and torch.device(given.get("device") or "cpu").type == "cpu":
            with _disable_current_modes():
                return func(*args, **given)
        return func(*args, **given)


def reducer() -> type:
    """A class to stand in for `torch.distributed.Reducer`."""

    class Reducer(dist.Reducer):  # type: ignore[name-defined]
        """DDP's, with the buckets that it has from the second step on.

        It begins with a single one, and then fills others in the order in which the gradients have come, for which
        it reads a tensor. Here that order is the parameters', from the last to the first.
        """

        def __init__(
            self, parameters: list[torch.Tensor], buckets: Any, limits: Any, group: Any, sparse: list[bool], cap: int,
            find_unused: bool, as_views: bool, names: Any, first_cap: int, *rest: Any,
        ) -> None:  # fmt: skip
            last = len(parameters) - 1
            assign: Any = dist._compute_bucket_assignment_by_size  # type: ignore[attr-defined]
            found, limits = assign(parameters[::-1], [first_cap, cap], sparse[::-1])
            ordered = [[last - i for i in bucket] for bucket in found]
            with _RealCounts():
                super().__init__(
                    parameters, ordered, limits, group, sparse, cap, find_unused, as_views, names, first_cap, *rest
                )
            self.checked = parameters if find_unused else []

        def _rebuild_buckets(self) -> bool:
            return False

        def _set_static_graph(self) -> None:
            with _RealCounts():
                super()._set_static_graph()

        def prepare_for_backward(self, outputs: list[torch.Tensor]) -> None:
            _check_in_use(self.checked, outputs)
            super().prepare_for_backward(outputs)

    return Reducer
