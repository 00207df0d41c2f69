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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from .. import _C
from ..imported import when_imported

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor._dtensor_spec import DTensorSpec

    from ..runtime.meshes import LocalMesh

# Axes of a mesh's flattened dimensions, by the device index and the name.
_flattened: dict[tuple[int, str], str] = {}


def install(name: str) -> None:
    """Let `DeviceMesh` and `init_device_mesh` of the device `name` mean the process's own devices.

    They do where the process is alone: launched as one of one, or not at all, and in no process group of several.
    """
    from torch._C._distributed_c10d import HashStore
    from torch.distributed.device_mesh import DeviceMesh

    make, flatten = DeviceMesh.__init__, DeviceMesh._flatten

    @functools.wraps(make)
    def made(self: DeviceMesh, device_type: str, mesh: Any = None, **settings: Any) -> None:
        if device_type != name or not settings.get("_init_backend", True) or not _alone():
            return make(self, device_type, mesh, **settings)
        found = _asked_for(mesh, settings)
        if found is None:
            return make(self, device_type, mesh, **settings)
        if _C.current_device() < _C.device_count():
            _C.set_device(found.index)
        _take_in_dtensors(name)
        if not dist.is_initialized():
            dist.init_process_group(name, rank=0, world_size=1, store=HashStore())
        setattr(torch, f"{name}:{found.index}", getattr(torch, name))  # where DeviceMesh looks for the device's module
        only_rank = torch.zeros([1] * len(found.mesh.axis_names), device="cpu")
        return make(self, f"{name}:{found.index}", only_rank, mesh_dim_names=settings.get("mesh_dim_names"))

    @functools.wraps(flatten)
    def flattened(self: DeviceMesh, mesh_dim_name: str | None = None, backend_override: Any = None) -> DeviceMesh:
        index = _index_of(self)
        if index is not None and self.mesh_dim_names:
            _flattened[index, mesh_dim_name or "_".join(self.mesh_dim_names)] = ",".join(_axes(self, index))
        return flatten(self, mesh_dim_name, backend_override)

    when_imported("torch.distributed.fsdp._fully_shard._fsdp_init", _refuse_fsdp)
    DeviceMesh.__init__ = made  # type: ignore[method-assign]
    DeviceMesh._flatten = flattened  # type: ignore[method-assign]


def _take_in_storages(name: str) -> None:
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
        if _index_of(mesh) is not None:
            raise ValueError(
                f"fully_shard over {mesh}, a mesh of this process's own devices: it splits the batch between "
                "processes, of which there is one. Start one for each device (torchrun), or give parameters and "
                "inputs placements: distribute_module, and distribute_tensor(batch, mesh, [Shard(0)])"
            )
        found: torch.device = device_of(mesh)
        return found

    module._get_device_from_mesh = checked  # type: ignore[attr-defined]


def _alone() -> bool:
    """Whether this process is no rank of several."""
    if dist.is_initialized():
        return dist.get_world_size() == 1
    return int(os.environ.get("WORLD_SIZE", "1")) == 1


def _asked_for(mesh: Any, settings: dict[str, Any]) -> LocalMesh | None:
    """The devices that the arguments of `DeviceMesh` name; None for a single one in a process group of its own.

    Raises ValueError for more devices than the process has.
    """
    from ..runtime.meshes import local_mesh

    if mesh is not None:
        named = torch.as_tensor(mesh)
        numbers, shape = named.flatten().tolist(), tuple(named.shape)
    else:
        numbers, shape = settings["_rank_map"].tolist(), tuple(settings["_layout"].top_level_sizes)
    count = _C.device_count()
    if math.prod(shape) == 1 and (count == 1 or dist.is_initialized()):
        return None
    if not all(0 <= n < count for n in numbers):
        name = torch._C._get_privateuse1_backend_name()
        raise ValueError(
            f"a mesh of {' x '.join(map(str, shape))} devices: this process has {count} {name} device(s). Start "
            "several processes with torchrun for a mesh of theirs (on the CPU, JAX_NUM_CPU_DEVICES=N gives one process "
            "N devices)"
        )
    names = settings.get("mesh_dim_names") or tuple(map(str, range(len(shape))))
    return local_mesh(numbers, shape, names)


def _index_of(mesh: DeviceMesh) -> int | None:
    """The device index of a mesh of this process's devices; None for others."""
    _, _, index = mesh.device_type.partition(":")
    return int(index) if index else None


def _axes(mesh: DeviceMesh, index: int) -> list[str]:
    """For each dimension of the mesh, or of a part of it, the axes that it is: names joined by commas."""
    names = mesh.mesh_dim_names or tuple(map(str, range(mesh.ndim)))
    return [_flattened.get((index, n), n) for n in names]


def _take_in_dtensors(name: str) -> None:
    """Have DTensors that programs make (other than as results of ops, whose places XLA chooses) lie as they say."""
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor import _random as random

    if getattr(DTensor.__new__, "__wrapped__", None) is not None:
        return
    make = DTensor.__new__

    @functools.wraps(make)
    def made(cls: type, local_tensor: Tensor, spec: DTensorSpec, *args: Any, **settings: Any) -> Tensor:
        index = _index_of(spec.mesh)
        local = local_tensor if index is None else _placed(local_tensor, spec, index)
        dtensor: Tensor = make(cls, local, spec, *args, **settings)
        return dtensor

    DTensor.__new__ = made  # type: ignore[assignment]
    _take_in_storages(name)
    if random._rng_tracker is None:
        random._rng_tracker = _OneStream()  # type: ignore[assignment]


class _OneStream:
    """What DTensor asks about random numbers: they are drawn for the whole tensor, so there is nothing to arrange."""

    distribute_region_enabled = False

    @contextmanager
    def _distribute_region(self, spec: DTensorSpec, generator: torch.Generator | None = None) -> Iterator[None]:
        yield


def _placed(tensor: Tensor, spec: DTensorSpec, index: int) -> Tensor:
    """The tensor, lying over the mesh's devices as the spec says: itself, or a new one while a graph is traced.

    A view of a part of a storage stays where that is.
    """
    if tensor.is_meta or tensor.device.index != index or any(p.is_partial() for p in spec.placements):
        return tensor
    axes = _split(tensor.ndim, spec, _axes(spec.mesh, index))
    if type(tensor) is not Tensor or torch._C._len_torch_dispatch_stack():
        traced: Tensor = torch.ops.torch_pjrt.placed(tensor.detach(), index, axes)
        return traced.requires_grad_(tensor.requires_grad)
    array = _C.held_array(tensor)
    if array is None:
        _C.replace_value(tensor, torch.ops.torch_pjrt.placed(tensor.detach(), index, axes))
    else:
        _put(tensor, array, axes, index)
    return tensor


def _split(ndim: int, spec: DTensorSpec, axes: Sequence[str]) -> list[str]:
    """For each of a tensor's dimensions the axes that it lies along."""
    along: list[list[str]] = [[] for _ in range(ndim)]
    for placement, name in zip(spec.placements, axes, strict=True):
        dim = getattr(placement, "dim", None)
        if dim is not None:
            along[dim].append(name)
    return [",".join(names) for names in along]


def _put(tensor: Tensor, array: Any, axes: Sequence[str], index: int) -> None:
    import jax

    from ..runtime.meshes import mesh_of

    mesh = mesh_of(index)
    assert mesh is not None
    wanted = mesh.sharding(axes, array.shape)
    if not array.sharding.is_equivalent_to(wanted, array.ndim):
        with jax.enable_x64(True):
            _C.replace_array(tensor, jax.device_put(array, wanted))
