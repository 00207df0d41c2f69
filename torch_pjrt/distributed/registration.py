"""Making `init_process_group()` find the process group of the device."""

from __future__ import annotations

import functools
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from .. import _C
from ..runtime.unwatched import unwatched
from . import local_mesh

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Backend, _DistributedBackendOptions

    from .group import Collectives

# By the groups' names; a destroyed group's ends with it.
_GROUPS: WeakValueDictionary[str, Collectives] = WeakValueDictionary()


def register(name: str) -> None:
    """Register the backend `name` (the device's) as the one for tensors on the device `name`.

    From then on `init_process_group()` without a backend means it, as does `init_process_group(name)`. For collectives
    of CPU tensors as well: `init_process_group(f"cpu:gloo,{name}:{name}")`.
    """
    if dist.is_available():
        dist.Backend.register_backend(name, create, extended_api=True, devices=[name])
        _make_it_the_default(name)
        _give_it_timeouts(name)
        local_mesh.install(name)


def _make_it_the_default(name: str) -> None:
    """What a group asks its default backend for (DDP its name, say) goes to ours, if the group has ours.

    PyTorch looks for NCCL's and else names gloo's, which a group made without naming a backend does not have.
    """
    make_group = distributed_c10d._new_process_group_helper

    @functools.wraps(make_group)
    def make(*args: Any, **kwargs: Any) -> Any:
        made = make_group(*args, **kwargs)
        group = made[0]
        if isinstance(group, dist.ProcessGroup) and torch.device(name) in group._device_types:
            group._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
        return made

    distributed_c10d._new_process_group_helper = make


def _give_it_timeouts(name: str) -> None:
    """Changing a group's timeout changes that of our backend; PyTorch asks NCCL and gloo alone, and warns."""
    set_timeout = distributed_c10d._set_pg_timeout

    @functools.wraps(set_timeout)
    def set_all(timeout: timedelta, group: dist.ProcessGroup | None = None) -> None:
        chosen = distributed_c10d._get_default_group() if group is None else group
        if isinstance(chosen, dist.ProcessGroup) and torch.device(name) in chosen._device_types:
            ours = collectives_of(chosen.group_name)
            if ours is not None:
                ours.set_timeout(timeout)
            if chosen._device_types == [torch.device(name)]:
                return
        set_timeout(timeout, group)

    distributed_c10d._set_pg_timeout = set_all


class _Unwatched:
    """An object's methods, each hidden from Dynamo and modes: DDP calls them from hooks that it may be watching."""

    def __init__(self, of: object) -> None:
        self._of = of

    def __getattr__(self, name: str) -> Any:
        method = unwatched(getattr(self._of, name))
        setattr(self, name, method)
        return method


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
    from . import coordination

    coordination.begin(options.group_rank, options.group_size)  # before JAX is imported, which takes longer
    from .group import Collectives
    from .start import join

    if backend_options is not None:
        raise ValueError(f"pg_options: the {backend_name()} backend has no options, got {backend_options!r}")
    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    join(options.store, options.group_rank, options.group_size)
    collectives = Collectives(options.store, options.group_rank, ranks, options.timeout)
    made: Backend = _C.make_process_group(
        options.group_rank, options.group_size, backend_name(), _Unwatched(collectives)
    )
    _GROUPS[options.group_id] = collectives
    return made


def collectives_of(group: str) -> Collectives | None:
    """What this device's members of a process group, by its name, do together; None if they do nothing."""
    return _GROUPS.get(group)
