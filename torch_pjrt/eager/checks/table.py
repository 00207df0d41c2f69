"""The tables of refusals: an op's base name -> what raises for arguments that its CPU kernel refuses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Check = Callable[[Mapping[str, Any]], None]
# Of the arguments' shapes, dtypes and constants, once for all calls that have the same.
CHECKS: dict[str, Check] = {}
# Of numbers that come at run time.
NUMBER_CHECKS: dict[str, Check] = {}


def refuse_for(*names: str, table: dict[str, Check] = CHECKS) -> Callable[[Check], Check]:
    """Register the check of ops by their base names, called with their arguments (meta tensors) by name."""

    def register(fn: Check) -> Check:
        if twice := table.keys() & set(names):
            raise ValueError(f"two checks for {twice}")
        table.update(dict.fromkeys(names, fn))
        return fn

    return register
