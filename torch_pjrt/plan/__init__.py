"""Will a program fit, and how fast will it be, on TPUs that are not here: asked of the TPU's own compiler.

The module can be called: `torch_pjrt.plan(step, inputs, topology="v5e:4x4")` is `torch_pjrt.plan.plan(...)`. See
docs/plan.md.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from .answer import Collective, Cost, Memory, Plan, Row, Tensor, Time
from .compiled import CompilerMissing
from .cost import PriceError
from .planner import Settings, plan, plan_entry
from .sharding import MeshError
from .tape import Finding, PlanError
from .topology import TopologyError, known

__all__ = [
    "Collective", "CompilerMissing", "Cost", "Finding", "Memory", "MeshError", "Plan", "PlanError", "PriceError", "Row",
    "Settings", "Tensor", "Time", "TopologyError", "known", "plan", "plan_entry",
]  # fmt: skip


class _Callable(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Plan:
        return plan(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
