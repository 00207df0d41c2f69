"""The persistent cache of compiled programs, across processes."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import jax


@functools.cache
def enable_persistent_cache() -> None:
    """Let XLA keep its executables in `TORCH_PJRT_CACHE_DIR`, if that is set.

    A directory that the program has already given to JAX is left alone.
    """
    directory = os.environ.get("TORCH_PJRT_CACHE_DIR")
    if not directory or jax.config.jax_compilation_cache_dir:  # type: ignore[attr-defined]
        return
    path = Path(directory).expanduser()
    path.mkdir(parents=True, exist_ok=True)
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
