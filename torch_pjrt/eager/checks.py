"""What CPU PyTorch's kernels refuse and its meta kernels don't: dimensions and overlapping memory.

A shape is inferred on meta tensors, and many of PyTorch's meta kernels are Python references that check less than the
kernels they stand for. A program that is wrong must say so on every device, so the missing checks are here. What is
refused for its dtypes: cpu_probe.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._ops import OpOverload

Check = Callable[[Mapping[str, Any]], None]
_CHECKS: dict[str, Check] = {}
# Refusal in aliasing.h.
_REPEATS, _PARTIAL_OVERLAP, _OVERLAP = 1, 2, 4


def check(op: OpOverload, given: Mapping[str, Any]) -> None:
    """Raise what the op's CPU kernel raises for these arguments (meta tensors, by name) and its meta kernel may not."""
    name = base_name(op)
    if name in _CHECKS:
        _CHECKS[name](given)


def refusals(op: OpOverload) -> int:
    """The bits of the memory overlaps that the op's CPU kernel refuses: what TensorIterator does unless told not to."""
    name = base_name(op)
    if name in ("index_add", "index_copy", "cat", "gather") or name.startswith("scatter"):
        return _REPEATS | _OVERLAP
    if name in ("index_put", "_index_put_impl"):
        return _OVERLAP
    if name in ("masked_fill", "index_fill"):
        return _PARTIAL_OVERLAP
    if name in ("cumsum", "cumprod") or torch.Tag.nondeterministic_seeded in op.tags or name.startswith("_foreach_"):
        return _REPEATS
    if name == "copy" or torch.Tag.pointwise in op.tags:
        return _REPEATS | _PARTIAL_OVERLAP
    return 0


def base_name(op: OpOverload) -> str:
    """`aten::add_.Tensor` and `aten::add.out` -> "add"."""
    name: str = op._schema.name.partition("::")[2]
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


def _refuse_for(*names: str) -> Callable[[Check], Check]:
    def register(fn: Check) -> Check:
        _CHECKS.update(dict.fromkeys(names, fn))
        return fn

    return register


@_refuse_for("cat")
def _check_cat(given: Mapping[str, Any]) -> None:
    for i, t in enumerate(given["tensors"]):
        if t.dim() == 0:
            raise RuntimeError(f"zero-dimensional tensor (at position {i}) cannot be concatenated")


@_refuse_for("_softmax", "_log_softmax", "sort", "argsort", "topk")
def _check_dim(given: Mapping[str, Any]) -> None:
    d, rank = given["dim"], max(given["self"].dim(), 1)
    if not -rank <= d < rank:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-rank}, {rank - 1}], but got {d})")


@_refuse_for("max", "min", "median", "mode", "nanmedian", "amax", "amin")
def _check_not_empty(given: Mapping[str, Any]) -> None:
    self, dims = given["self"], given.get("dim")
    if self.numel() or dims is None:
        return
    for d in dims if isinstance(dims, list) else [dims]:
        if -self.dim() <= d < self.dim() and self.size(d) == 0:
            raise IndexError(f"Expected reduction dim {d} to have non-zero size.")


@_refuse_for("clamp")
def _check_clamp(given: Mapping[str, Any]) -> None:
    if given["min"] is None and given["max"] is None:
        raise RuntimeError("torch.clamp: At least one of 'min' or 'max' must not be None")
