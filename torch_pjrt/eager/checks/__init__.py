"""What CPU PyTorch's kernels refuse and its meta kernels don't: dimensions, numbers and overlapping memory.

A shape is inferred on meta tensors, and many of PyTorch's meta kernels are Python references that check less than the
kernels they stand for. A program that is wrong must say so on every device, so the missing checks are here. What is
refused for its dtypes: cpu_probe.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._ops import OpOverload

from . import arithmetic, draws, indices, layers
from .table import CHECKS, NUMBER_CHECKS

_ROOMS = (arithmetic, draws, indices, layers)  # importing them fills the tables
# Refusal in aliasing.h.
_REPEATS, _PARTIAL_OVERLAP, _OVERLAP, _GROWTH = 1, 2, 4, 8


def checked(op: OpOverload) -> bool:
    """Whether anything here looks at the op's arguments."""
    return any(name in CHECKS or name in NUMBER_CHECKS for name in _names(op))


def _names(op: OpOverload) -> tuple[str, str]:
    """The base name, which all forms have, and one that only the in-place form has."""
    return base_name(op), op._schema.name.partition("::")[2]


def check(op: OpOverload, given: Mapping[str, Any]) -> None:
    """Raise what the op's CPU kernel raises for these arguments (meta tensors, by name) and its meta kernel may not."""
    for name in dict.fromkeys(_names(op)):
        if name in CHECKS:
            CHECKS[name](given)


def number_check(op: OpOverload) -> Callable[..., None] | None:
    """What to call with the op's arguments at every call: one entry serves all numbers that come at run time.

    None for most ops; the others draw from a distribution that has no meaning for some parameters.
    """
    found = NUMBER_CHECKS.get(base_name(op))
    names = [a.name for a in op._schema.arguments]
    return found and (lambda *args: found(dict(zip(names, args, strict=True))))


# Write only to memory that they do not read.
_SEPARATE = ("index_add", "index_copy", "index_select", "take", "masked_select", "nonzero")


def refusals(op: OpOverload) -> int:
    """The bits of the memory overlaps that the op's CPU kernel refuses: what TensorIterator does unless told not to."""
    name = base_name(op)
    if name in ("cat", "gather"):
        return _REPEATS | _OVERLAP | _GROWTH
    if name in _SEPARATE or name.startswith("scatter"):
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
