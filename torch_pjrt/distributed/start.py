"""Joining processes: each starts its PJRT client knowing of the others.

The first process group (`init_process_group`) does it: its rank 0 starts JAX's coordination service and tells the
others through PyTorch's store where it listens. PJRT clients have to know of each other when they start, so the device
must not have been used before.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Any

import jax

from ..runtime import client
from ..runtime.platform import platform

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_ADDRESS = "torch_pjrt/coordinator"
# Seconds the coordination service waits for all processes to arrive (PyTorch's store has waited for them already), and,
# when a process ends, for the others to end too: one that died never will.
_ARRIVAL_S, _DEPARTURE_S = 120, 10

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
        if rank == 0:
            store.set(_ADDRESS, f"{_reachable_host()}:{_free_port()}")
        address = store.get(_ADDRESS).decode()
        # SIGTERM stays what it is, the end of the process; JAX's preemption service would take it for a notice.
        jax.config.update("jax_enable_preemption_service", False)
        jax.distributed.initialize(
            address,
            num_processes=size,
            process_id=rank,
            cluster_detection_method="deactivate",
            initialization_timeout=_ARRIVAL_S,
            shutdown_timeout_seconds=_DEPARTURE_S,
            coordinator_bind_address=f"{_any_address()}:{address.rpartition(':')[2]}",
        )
        if platform() == "cpu" and config.cpu_collectives_implementation.value == "gloo":
            _make_gloo_listen_where_others_reach_it(address)
    _joined = True


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


def _reachable_host() -> str:
    """How the other processes reach rank 0: where they found PyTorch's own rendezvous, which is on its machine."""
    return os.environ.get("MASTER_ADDR") or socket.gethostname()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port


def _any_address() -> str:
    """All of this machine's addresses: IPv6's, which has IPv4's in it, where the machine has IPv6."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::", 0))
    except OSError:
        return "0.0.0.0"
    return "[::]"
