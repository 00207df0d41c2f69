"""Joining processes: each starts its PJRT client knowing of the others.

The first process group (`init_process_group`) does it: its rank 0 starts JAX's coordination service, in a process of
its own, and tells the others through PyTorch's store where it listens (`coordination.py`). PJRT clients have to know of
each other when they start, so the device must not have been used before.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Any

import jax

from ..runtime import client
from ..runtime.platform import platform
from . import coordination

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

# Seconds the processes wait for all to arrive; PyTorch's store has waited for them already.
_ARRIVAL_S = 120

_joined = False


def join(store: Store, rank: int, size: int) -> None:
    """Start JAX's distributed runtime for these processes, once; groups made later find it running.

    Raises:
        RuntimeError: the device was used before.
        ValueError: there is no such rank.
    """
    global _joined
    if not 0 <= rank < size:
        raise ValueError(f"rank {rank} of a process group of {size}: RANK must be 0 to {size - 1}")
    if _joined or size == 1:
        return
    from jax._src import config, distributed, xla_bridge

    if distributed.global_state.client is None:  # else the program has called jax.distributed.initialize itself
        if client.started() or xla_bridge.backends_are_initialized():
            raise RuntimeError(
                "init_process_group came after the first use of the device. PJRT clients of several processes have to "
                "know of each other when they start: call init_process_group before a tensor or a model is made on, or "
                "moved to, the device"
            )
        address = coordination.link(store, rank)
        _connect(address, rank, size)
        if platform() == "cpu" and config.cpu_collectives_implementation.value == "gloo":
            _make_gloo_listen_where_others_reach_it(address)
    _joined = True


def _connect(address: str, rank: int, size: int) -> None:
    """What jax.distributed.initialize does, but for the service, which that would start in rank 0's process."""
    from jax._src import distributed
    from jaxlib import _jax

    if visible := os.environ.get("JAX_LOCAL_DEVICE_IDS"):
        jax.config.update("jax_cuda_visible_devices", visible)
        jax.config.update("jax_rocm_visible_devices", visible)
    client = _jax.get_distributed_runtime_client(address, rank, init_timeout=_ARRIVAL_S, use_compression=True)
    client.connect()
    state = distributed.global_state
    state.coordinator_address, state.process_id, state.num_processes = address, rank, size
    partition = os.environ.get("JAX_PARTITION_INDEX")
    state.partition_index = int(partition) if partition is not None else None
    state.client = client


def device_of(rank: int, index: int) -> jax.Device:
    """The device with this index in the process that is global rank `rank`.

    Raises RuntimeError if that process has no such device.
    """
    mine = client.devices()  # which starts the client as this package wants it
    if _joined:
        mine = tuple(d for d in jax.devices(platform()) if d.process_index == rank)
    if index >= len(mine):
        raise RuntimeError(f"rank {rank} takes part with its device {index}, but it has {len(mine)} device(s)")
    return mine[index]


def _make_gloo_listen_where_others_reach_it(coordinator: str) -> None:
    """Have XLA:CPU's collectives listen at the address from which this machine reaches rank 0's.

    JAX lets gloo look the machine's own name up, which in /etc/hosts often is 127.0.0.1. As with PyTorch's gloo,
    GLOO_SOCKET_IFNAME names an interface instead.
    """
    from jax._src import distributed, xla_bridge
    from jaxlib import _jax

    interface = os.environ.get("GLOO_SOCKET_IFNAME") or None
    address = None if interface else _own_address(coordinator)

    def make() -> Any:
        client = distributed.global_state.client
        return xla_bridge.make_cpu_client(_jax.make_gloo_tcp_collectives(client, address, interface))

    xla_bridge.register_backend_factory("cpu", make, priority=0, fail_quietly=False)


def _own_address(peer: str) -> str:
    """This machine's address on the way to `peer`, "host:port"."""
    host, _, port = peer.rpartition(":")
    family, kind, protocol, _, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)  # sends nothing
        own: str = probe.getsockname()[0]
        return own
