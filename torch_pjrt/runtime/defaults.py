"""XLA's options: those that every program is compiled with, and whether it takes one at all."""

from __future__ import annotations

import functools
import os
from typing import Any

import jax
import numpy as np
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
        options |= {name: value for name, value in _ON_CPU.items() if name not in flags and takes(name, value)}
    return options


def takes(name: str, value: Any) -> bool:
    """Whether XLA, as it is installed, has an option that can be this."""
    return refusal(name, value) is None


def refusal(name: str, value: Any) -> str | None:
    """What XLA says against an option; None if it takes it. It has no list of its options: it must be asked."""
    return _refusal(name, type(value).__name__, value)


@functools.cache
def _refusal(name: str, kind: str, value: Any) -> str | None:
    placement = SingleDeviceSharding(device(0))
    lowered = jax.jit(lambda x: x).lower(jax.ShapeDtypeStruct((), np.float32, sharding=placement))
    try:
        lowered.compile(compiler_options={name: value})
    except Exception as error:
        return str(error).removeprefix("INVALID_ARGUMENT: ")
    return None
