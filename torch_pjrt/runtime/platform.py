"""Which PJRT platform runs the device, found without starting it."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable
from glob import glob
from importlib import metadata, util

# How to get the plugin of a platform, for the error message of one that is missing.
_INSTALL = {
    "tpu": "pip install 'torch-pjrt[tpu]'",
    "cuda": "pip install 'torch-pjrt[cuda13]' (or cuda12)",
    "rocm": "pip install 'torch-pjrt[rocm]'",
    "neuron": "AWS's libneuronxla package",
    "METAL": "pip install jax-metal",
}


class PlatformError(RuntimeError):
    """The platform asked for cannot be had."""


@functools.cache
def platform() -> str:
    """The JAX platform name that runs the device: `TORCH_PJRT_PLATFORM`, else the best chip present, else "cpu"."""
    asked = os.environ.get("TORCH_PJRT_PLATFORM", "").strip()
    if asked:
        return {"gpu": "cuda"}.get(asked.lower(), asked)
    plugins = installed_plugins()
    for name, present in _PRESENT.items():
        if name in plugins and present():
            return name
    return "cpu"


@functools.cache
def installed_plugins() -> frozenset[str]:
    """Names of the platforms whose PJRT plugin is installed; "cpu" always is."""
    found = {"cpu"}
    if util.find_spec("libtpu") is not None:
        found.add("tpu")
    for entry in metadata.entry_points(group="jax_plugins"):
        found.add(_short(entry.name))
    namespace = util.find_spec("jax_plugins")
    for path in (namespace.submodule_search_locations or []) if namespace is not None else []:
        found.update(_short(name) for name in os.listdir(path) if not name.startswith("_"))
    return frozenset(found)


def missing_platform(name: str, reason: str) -> PlatformError:
    """The error for a platform that did not start: what there is, and how to get what there is not."""
    plugins = sorted(installed_plugins())
    how = _INSTALL.get(name)
    if name in plugins:
        hint = ""
    elif how:
        hint = f". Install the plugin of {name!r}: {how}"
    else:
        hint = f". Platforms with a known plugin: cpu, {', '.join(_INSTALL)}"
    return PlatformError(
        f"PJRT platform {name!r} (TORCH_PJRT_PLATFORM) did not start: {reason}. "
        f"PJRT plugins found: {', '.join(plugins)}{hint}"
    )


def device_count_hint() -> int | None:
    """How many devices the platform has, as far as can be told without a PJRT client; None if it can't.

    Autograd asks for this at the first backward pass of any program, one that only uses the CPU included.
    """
    count = _COUNT.get(platform())
    return None if count is None else count()


def _short(plugin: str) -> str:
    return re.sub(r"^xla_|_plugin$|\d+$", "", plugin)


def _cpu_devices() -> int:
    """As many as were asked for; under torchrun as many as it starts processes here, each of which uses its own."""
    forced = re.search(r"--xla_force_host_platform_device_count=(\d+)", os.environ.get("XLA_FLAGS", ""))
    asked = os.environ.get("JAX_NUM_CPU_DEVICES") or (forced.group(1) if forced else "")
    return int(asked or os.environ.get("LOCAL_WORLD_SIZE") or 1)


def _tpu_chips() -> int:
    return len(glob("/dev/accel[0-9]*")) or len(glob("/dev/vfio/[0-9]*"))


def _nvidia_gpus() -> int:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([v for v in visible.split(",") if v.strip() and v.strip() != "-1"])
    return len(glob("/dev/nvidia[0-9]*"))


_PRESENT: dict[str, Callable[[], int]] = {
    "tpu": _tpu_chips,
    "neuron": lambda: len(glob("/dev/neuron[0-9]*")),
    "cuda": _nvidia_gpus,
    "rocm": lambda: len(glob("/dev/kfd")),
}
# A TPU chip can be one or two devices, and a Neuron chip several cores: only their clients know.
_COUNT: dict[str, Callable[[], int]] = {"cpu": _cpu_devices, "cuda": _nvidia_gpus}
