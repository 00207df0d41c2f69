"""The PJRT client: started on first use of the device, in this process only."""

from __future__ import annotations

import functools
import os
import sys

import jax

from .platform import device_count_hint, installed_plugins, missing_platform, platform

_STARTED_IN: int | None = None
# Whether this is a forked child of a process whose client was running.
_FORKED = False


@functools.cache
def devices() -> tuple[jax.Device, ...]:
    """The devices of the platform, in the order of the device indices. Starts the client.

    Raises PlatformError if the platform is unknown or its plugin is missing or does not start.
    """
    global _STARTED_IN
    name = platform()
    if name not in installed_plugins():
        raise missing_platform(name, "no such plugin is installed")
    _confine(name)
    try:
        found = tuple(jax.local_devices(backend=name))
    except RuntimeError as error:
        raise missing_platform(name, str(error).splitlines()[0]) from error
    _STARTED_IN = os.getpid()
    return found


def device(index: int) -> jax.Device:
    """The device with this index."""
    check_not_forked()
    return devices()[index]


def device_count() -> int:
    """How many devices there are, starting the client only where nothing cheaper can tell."""
    if _STARTED_IN is None:
        hint = device_count_hint()
        if hint is not None:
            return hint
    return len(devices())


def _confine(name: str) -> None:
    """Keep JAX from starting (and warning about) plugins that nobody asked for.

    JAX's own settings win: JAX_PLATFORMS, or a backend that the program has already started.
    """
    from jax._src import xla_bridge

    if xla_bridge.backends_are_initialized():
        return
    count = device_count_hint()
    if name == "cpu" and count is not None and count > 1 and not os.environ.get("JAX_NUM_CPU_DEVICES"):
        jax.config.update("jax_num_cpu_devices", count)
    if os.environ.get("JAX_PLATFORMS"):
        return
    jax.config.update("jax_platforms", name if name == "cpu" else f"{name},cpu")


def started() -> bool:
    """Whether this process has a running client."""
    return os.getpid() == _STARTED_IN and "jax" in sys.modules


def started_before_fork() -> bool:
    """Whether a parent of this process had the client running when it forked."""
    return _FORKED


def check_not_forked() -> None:
    """Raise RuntimeError in a forked child: its threads stayed with the parent."""
    if _FORKED:
        raise RuntimeError(
            "the device cannot be used in a forked child of a process that has used it. Start the child with the "
            "'spawn' or 'forkserver' method (torch.multiprocessing.set_start_method), or use the device only in it"
        )


def _note_fork() -> None:
    global _FORKED
    _FORKED = _STARTED_IN is not None


os.register_at_fork(after_in_child=_note_fork)
