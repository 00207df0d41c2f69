"""Making `init_process_group()` find the process group of the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from .. import _C

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Backend, _DistributedBackendOptions


def register(name: str) -> None:
    """Register the backend `name` (the device's) as the one for tensors on the device `name`.

    From then on `init_process_group()` without a backend gives CPU tensors gloo, as ever, and the device's tensors ours;
    `init_process_group(name)` gives ours only.
    """
    if dist.is_available():
        dist.Backend.register_backend(name, create, extended_api=True, devices=[name])


def create(options: _DistributedBackendOptions, backend_options: Any) -> Backend:
    """The process group of one rank, as PyTorch's registry calls for it.

    Args:
        options: store, rank, size, timeout and the global ranks of the group's members.
        backend_options: `pg_options` of `init_process_group` or `new_group`; there are none.

    Raises:
        ValueError: `backend_options` was given.
        RuntimeError: the processes can't be joined: see `start.join`.
    """
    from ..device.registration import backend_name
    from .group import Collectives
    from .start import join

    if backend_options is not None:
        raise ValueError(f"pg_options: the {backend_name()} backend has no options, got {backend_options!r}")
    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    join(options.store, options.group_rank, options.group_size)
    collectives = Collectives(options.store, options.group_rank, ranks, options.timeout)
    made: Backend = _C.make_process_group(options.group_rank, options.group_size, backend_name(), collectives)
    return made
