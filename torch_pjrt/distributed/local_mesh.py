"""DTensor over a mesh of this process's own devices: one SPMD program instead of a process for each device.

To PyTorch the process is the only member of such a mesh, as wide as all the devices: each dimension of the `DeviceMesh`
has size 1, and the local part of a DTensor is the whole tensor. So PyTorch's own code for DTensors, the parallel styles
built on it and whatever a program computes from `mesh.size()` hold as they are, and no dimension has to divide. How the
tensors lie over the devices is told to XLA, whose partitioner spreads the program and puts in the collectives.
"""

from __future__ import annotations

import functools
import math
import os
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from .. import _C
from ..imported import when_imported

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

# The attribute of a mesh of this process's devices that is no part of another mesh.
_LAID = "_torch_pjrt_laid"


@dataclass(frozen=True, slots=True)
class Laid:
    """The grid of devices that a `DeviceMesh` stands for.

    Attributes:
        numbers: the devices' indices, the grid's last axis fastest.
        grid: its sizes.
        flattened: axes of the grid by the name of the dimension that they were made into.
    """

    numbers: tuple[int, ...]
    grid: tuple[int, ...]
    flattened: dict[str, tuple[int, ...]] = field(default_factory=dict)


# The process group that the first mesh made, if it did.
_own_group: Any = None


def install(name: str) -> None:
    """Let `DeviceMesh` and `init_device_mesh` of the device `name` mean the process's own devices.

    They do where the process is alone: launched as one of one, or not at all, and in no process group of several.
    """
    from torch.distributed.device_mesh import DeviceMesh

    make, flatten, restore = DeviceMesh.__init__, DeviceMesh._flatten, DeviceMesh.__setstate__

    @functools.wraps(make)
    def made(self: DeviceMesh, device_type: str, mesh: Any = None, **settings: Any) -> None:
        if device_type != name or not settings.get("_init_backend", True) or not _alone():
            return make(self, device_type, mesh, **settings)
        laid = _asked_for(name, mesh, settings)
        users = dist.is_initialized() and dist.group.WORLD is not _own_group
        if math.prod(laid.grid) == 1 and (users or _C.device_count() == 1):
            _have_a_group(name)
            return make(self, device_type, mesh, **settings)
        device_type = _taken_in(name, laid)
        override = settings.get("backend_override")
        if torch.device(name) not in _have_a_group(name)._device_types and override is None:
            override = ((name, None),) * len(laid.grid)
        only_rank = torch.zeros([1] * len(laid.grid), device="cpu")
        names = settings.get("mesh_dim_names")
        make(self, device_type, only_rank, mesh_dim_names=names, backend_override=override)
        setattr(self, _LAID, laid)

    @functools.wraps(flatten)
    def flattened(self: DeviceMesh, mesh_dim_name: str | None = None, backend_override: Any = None) -> DeviceMesh:
        result = flatten(self, mesh_dim_name, backend_override)
        laid = laid_of(self)
        if laid is not None and result.mesh_dim_names is not None:
            laid.flattened[result.mesh_dim_names[0]] = tuple(n for numbers in axes_of(self, laid) for n in numbers)
        return result

    @functools.wraps(restore)
    def restored(self: DeviceMesh, state: dict[str, Any]) -> None:
        restore(self, state)
        laid = laid_of(self)
        if laid is not None:
            _check(name, laid)
            self._device_type = _taken_in(name, laid)
            self._hash = None

    when_imported("torch.distributed.fsdp._fully_shard._fsdp_init", _refuse_fsdp)
    DeviceMesh.__init__ = made  # type: ignore[method-assign]
    DeviceMesh._flatten = flattened  # type: ignore[method-assign]
    DeviceMesh.__setstate__ = restored  # type: ignore[method-assign]


def laid_of(mesh: DeviceMesh) -> Laid | None:
    """The devices behind a mesh, or behind the one that it is a part of; None if it is one of processes."""
    found: Laid | None = getattr(mesh._root_mesh or mesh, _LAID, None)
    return found


def axes_of(mesh: DeviceMesh, laid: Laid) -> list[tuple[int, ...]]:
    """For each dimension of the mesh the axes of the grid that it is."""
    root = mesh._root_mesh
    if root is None or mesh.mesh_dim_names is None:
        return [(n,) for n in range(mesh.ndim)]
    known = {name: (n,) for n, name in enumerate(root.mesh_dim_names or ())} | laid.flattened
    return [known[name] for name in mesh.mesh_dim_names]


def index_of(laid: Laid) -> int:
    """The device index of the devices together."""
    from ..runtime.meshes import together

    return together(laid.numbers).index


def _alone() -> bool:
    """Whether this process is no rank of several."""
    if dist.is_initialized():
        return dist.get_world_size() == 1
    return int(os.environ.get("WORLD_SIZE") or "1") == 1


def _have_a_group(name: str) -> Any:
    """The default process group, made of this process alone if there is none."""
    global _own_group
    from torch._C._distributed_c10d import HashStore

    if not dist.is_initialized():
        dist.init_process_group(name, rank=0, world_size=1, store=HashStore())
        _own_group = dist.group.WORLD
    return dist.group.WORLD


def _asked_for(name: str, mesh: Any, settings: dict[str, Any]) -> Laid:
    """The devices that the arguments of `DeviceMesh` name. Raises ValueError where they can't be."""
    if mesh is not None:
        named = torch.as_tensor(mesh, device="cpu")
        laid = Laid(tuple(map(int, named.flatten().tolist())), tuple(named.shape))
    else:
        laid = Laid(tuple(settings["_rank_map"].tolist()), tuple(settings["_layout"].top_level_sizes))
    _check(name, laid)
    names = settings.get("mesh_dim_names")
    if names is not None and len(names) != len(laid.grid):
        raise ValueError(f"mesh_dim_names {tuple(names)}: the mesh has {len(laid.grid)} dimension(s)")
    return laid


def _check(name: str, laid: Laid) -> None:
    """Raise ValueError where the devices can't be a mesh of this process's."""
    count = _C.device_count()
    if not all(0 <= n < count for n in laid.numbers):
        raise ValueError(
            f"a mesh of {' x '.join(map(str, laid.grid))} devices, {list(laid.numbers)}: this process has {count} "
            f"{name} device(s). Start several processes with torchrun for a mesh of theirs (on the CPU, "
            "JAX_NUM_CPU_DEVICES=N gives one process N devices)"
        )
    if len(set(laid.numbers)) < len(laid.numbers):
        raise ValueError(f"a mesh of the devices {list(laid.numbers)}: each can be there once")


def _taken_in(name: str, laid: Laid) -> str:
    """The devices' name as one device, which PyTorch knows from now on."""
    from .placing import have_dtensors_placed

    index = index_of(laid)
    if _C.current_device() < _C.device_count():
        _C.set_device(index)
    setattr(torch, f"{name}:{index}", getattr(torch, name))  # where DeviceMesh looks for the device's module
    _know_storages(name)
    have_dtensors_placed()
    return f"{name}:{index}"


@functools.cache
def _know_storages(name: str) -> None:
    """Let `torch.load` know meshes as devices. What was on one is saved without its number, for the current device."""

    def tag(storage: Any) -> str | None:
        ours = storage.device.type == name and (storage.device.index or 0) >= _C.device_count()
        return name if ours else None

    def restore(storage: Any, location: str) -> Any:
        kind, _, index = location.partition(":")
        is_mesh = kind == name and index.isdigit() and int(index) >= _C.device_count()
        return storage.to(device=torch.device(location)) if is_mesh else None

    torch.serialization.register_package(15, tag, restore)  # PyTorch's own for the device has 23


def _refuse_fsdp(module: ModuleType) -> None:
    """FSDP splits parameters between processes, each of which has a batch of its own; here there is one of both."""
    device_of = module._get_device_from_mesh

    @functools.wraps(device_of)
    def checked(mesh: DeviceMesh) -> torch.device:
        if laid_of(mesh) is not None:
            raise ValueError(
                f"fully_shard over {mesh}, a mesh of this process's own devices: it splits the batch between "
                "processes, of which there is one. Start one for each device (torchrun), or give parameters and "
                "inputs placements: distribute_module, and distribute_tensor(batch, mesh, [Shard(0)])"
            )
        found: torch.device = device_of(mesh)
        return found

    module._get_device_from_mesh = checked  # type: ignore[attr-defined]
