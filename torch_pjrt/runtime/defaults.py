"""XLA's options for every program."""

from __future__ import annotations

import functools
import os
from typing import Any

import jax
from jax.sharding import SingleDeviceSharding

from .client import device
from .platform import platform

# XLA may otherwise keep bfloat16 intermediates in float32 where it fuses, and results would depend on the trace.
_EVERYWHERE: dict[str, Any] = {"xla_allow_excess_precision": False}

# XLA:CPU hands dots, reductions and convolutions to YNNPACK. It is slower at convolutions than Eigen, which else has
# them: 3 × 3 with 64 channels, 32 images of 32 × 32, takes 34 ms instead of 20, its gradients 129 instead of 46
# (benchmarks/README.md).
_ON_CPU: dict[str, Any] = {
    "xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT,LIBRARY_FUSION_TYPE_REDUCE"
}


@functools.cache
def default_options() -> dict[str, Any]:
    """By XLA's names. Those that the installed XLA does not know, or that XLA_FLAGS sets, are left out."""
    options = dict(_EVERYWHERE)
    if platform() == "cpu":
        flags = os.environ.get("XLA_FLAGS", "")
        options |= {name: value for name, value in _ON_CPU.items() if name not in flags and _is_known(name, value)}
    return options


def _is_known(name: str, value: Any) -> bool:
    nothing = jax.jit(lambda: 0, out_shardings=SingleDeviceSharding(device(0))).lower()
    try:
        nothing.compile(compiler_options={name: value})
    except RuntimeError:
        return False
    return True
