"""`torch.<name>`: the device's Python module.

The table below is the whole public API; each name is resolved on first use, so that importing torch stays cheap.
PyTorch's neutral spellings (`torch.accelerator`, `torch.Tensor.to`) come first: use these where PyTorch has none.
"""

from __future__ import annotations

import importlib
from typing import Any

PUBLIC_API: dict[str, str] = {
    # devices
    "is_available": "devices",
    "is_initialized": "devices",
    "init": "devices",
    "device_count": "devices",
    "current_device": "devices",
    "set_device": "devices",
    "device": "devices",
    "device_of": "devices",
    "synchronize": "devices",
    "get_device_name": "properties",
    "get_device_properties": "properties",
    "get_device_capability": "properties",
    "get_amp_supported_dtype": "properties",
    "is_bf16_supported": "properties",
    "can_device_access_peer": "properties",
    "ipc_collect": "devices",
    # streams and events
    "Stream": "streams",
    "Event": "streams",
    "StreamContext": "streams",
    "stream": "streams",
    "current_stream": "streams",
    "default_stream": "streams",
    "set_stream": "streams",
    # random numbers
    "random": "random",
    "manual_seed": "random",
    "manual_seed_all": "random",
    "seed": "random",
    "seed_all": "random",
    "initial_seed": "random",
    "get_rng_state": "random",
    "set_rng_state": "random",
    "get_rng_state_all": "random",
    "set_rng_state_all": "random",
    "default_generators": "random",
    # memory
    "memory": "memory",
    "memory_allocated": "memory",
    "max_memory_allocated": "memory",
    "memory_reserved": "memory",
    "max_memory_reserved": "memory",
    "reset_peak_memory_stats": "memory",
    "reset_accumulated_memory_stats": "memory",
    "memory_stats": "memory",
    "memory_stats_as_nested_dict": "memory",
    "memory_summary": "memory",
    "memory_snapshot": "memory",
    "mem_get_info": "memory",
    "get_per_process_memory_fraction": "memory",
    "set_per_process_memory_fraction": "memory",
    "empty_cache": "memory",
    # arrays of other libraries
    "to_jax": "interchange",
    "from_jax": "interchange",
    # precision
    "matmul_precision": "precision",
    # eager execution
    "eager_mode": "modes",
    "set_eager_mode": "modes",
    "get_eager_mode": "modes",
    "metrics": "figures",
    "reset_metrics": "figures",
    # torch.compile
    "compiler": "compiler",
}

__all__ = list(PUBLIC_API)

# torch.utils.checkpoint saves the random state of devices that say so. Ours exists before the client starts.
_initialized = True


def __getattr__(name: str) -> Any:
    if name.startswith("_") or name not in PUBLIC_API:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    room = importlib.import_module(f".{PUBLIC_API[name]}", __name__)
    value = room if name == PUBLIC_API[name] else getattr(room, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(PUBLIC_API)


def _is_in_bad_fork() -> bool:
    from .devices import in_bad_fork

    return in_bad_fork()


def register() -> None:
    """Make the device known to PyTorch. Idempotent."""
    from .registration import register_backend

    register_backend()
