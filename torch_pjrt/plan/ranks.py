"""Running a program as one rank of many: the process group that it makes is PyTorch's fake one, a rank a device."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from .data_parallel import reducer
from .sharding import Mesh
from .tape import PlanError
from .trace import content_of
from .transfers import answer, is_collective

# Dimensions of a mesh whose ranks work on one batch together; the ranks along all others have each a batch of its own.
_ONE_BATCH = frozenset({"tp", "sp", "cp", "pp", "tensor", "sequence", "context", "pipeline", "model"})
# The name of the only axis where a program makes no DeviceMesh of all ranks.
_RANKS = "rank"


@dataclass(frozen=True)
class _Made:
    """A DeviceMesh of all ranks that the program made: names and sizes, and whether the ranks are there in order."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    in_order: bool

    @property
    def axes(self) -> tuple[tuple[str, int], ...]:
        return tuple(zip(self.names, self.sizes, strict=True))

    @property
    def says(self) -> tuple[bool, int]:
        """How much it says: whether ranks along a dimension have one batch together; how many have several ranks."""
        real = [name for name, n in self.axes if n > 1]
        return not _ONE_BATCH.isdisjoint(real), len(real)


@dataclass
class Rank:
    """Rank 0 of a program.

    Attributes:
        size: how many ranks there are.
        used: whether the program has made a process group.
        meshes: the DeviceMeshes of all ranks that it made.
        smaller: the sizes of those of fewer ranks.
    """

    size: int
    used: bool = False
    meshes: list[_Made] = field(default_factory=list)
    smaller: list[tuple[int, ...]] = field(default_factory=list)

    @property
    def mesh(self) -> Mesh:
        """The mesh of all ranks, in order, with the most dimensions; of one dimension if the program made none.

        Raises PlanError if it only made meshes of fewer ranks.
        """
        if self.smaller and not self.meshes:
            raise PlanError(
                f"the program's mesh has {prod(self.smaller[0])} devices {self.smaller[0]}, the topology {self.size}: "
                "make it of WORLD_SIZE devices"
            )
        ordered = [m for m in self.meshes if m.in_order]
        found = max(ordered, key=lambda m: m.says, default=_Made((_RANKS,), (self.size,), True))
        return Mesh(found.axes)

    @property
    def batches(self) -> int:
        """How many ranks have a batch of their own."""
        found = max(self.meshes, key=lambda m: m.says, default=None)
        return self.size if found is None else prod(n for name, n in found.axes if name not in _ONE_BATCH)


@contextmanager
def as_rank(size: int) -> Iterator[Rank]:
    """Have what runs within be rank 0 of `size`, as torchrun starts it.

    A process group that it makes is of `size` ranks that do nothing, whichever backend it names; it is destroyed at the
    end. Collectives of fake tensors return at once.

    Raises PlanError where the program asks for another number of ranks, or is another rank.
    """
    rank = Rank(size)
    if not dist.is_available():
        yield rank
        return
    users = dist.is_initialized()
    if users and dist.Backend.FAKE in dist.get_backend():
        rank.used = True
        _check_size(dist.get_world_size(), size)
    elif users and dist.get_world_size() > 1:
        name = torch._C._get_privateuse1_backend_name()
        raise PlanError(
            f"this process is one of a process group of {dist.get_world_size()} already (backend "
            f"{dist.get_backend()}): plan in a process that has none, or one of backend 'cpu:fake,{name}:fake'"
        )
    _forget_meshes()
    with _replaced(rank), _environment(size), Inert():
        try:
            yield rank
        finally:
            if dist.is_initialized() and not users:
                dist.destroy_process_group()
            _forget_meshes()


def _forget_meshes() -> None:
    """Have DTensor forget what it knows of meshes: the next program's may look the same and have other groups."""
    from torch.distributed.tensor import _redistribute, debug

    debug._clear_python_sharding_prop_cache()
    debug._clear_fast_path_sharding_prop_cache()
    _redistribute._gen_transform_infos.cache_clear()


class Inert(TorchDispatchMode):
    """Collectives that are over when they are called."""

    def __torch_dispatch__(self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return answer(func, args, kwargs or {}) if is_collective(func) else func(*args, **(kwargs or {}))


def _check_size(asked: int, size: int) -> None:
    if asked != size:
        raise PlanError(
            f"the program makes a process group of {asked} ranks, the topology has {size} devices: take the number "
            "from WORLD_SIZE, as under torchrun, or plan for a topology of so many"
        )


@contextmanager
def _replaced(rank: Rank) -> Iterator[None]:
    """Our functions in the place of PyTorch's that make groups and meshes, and that compare what ranks have."""
    from torch._C._distributed_c10d import HashStore
    from torch.distributed import distributed_c10d
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp._fully_shard import _fsdp_init
    from torch.distributed.tensor import _random as random
    from torch.nn.parallel import distributed as data_parallel

    from ..distributed.placing import OneStream

    backend = _fake_backend()
    make_group: Callable[..., Any] = distributed_c10d._new_process_group_helper
    make_mesh: Callable[..., Any] = DeviceMesh.__init__
    unflattened: Callable[..., Any] = DeviceMesh._unflatten
    moved: Callable[..., Any] = _fsdp_init._move_states_to_device

    def group(
        size: int, number: int, ranks: Sequence[int], asked: Any, store: Any, group_name: Any,
        backend_options: Any = None, *rest: Any, **settings: Any,
    ) -> Any:  # fmt: skip
        rank.used = True
        if not ranks:
            _check_size(size, rank.size)
            if number > 0:
                raise PlanError(f"the program is rank {number}: what is planned is rank 0, as RANK says")
        return make_group(size, number, ranks, backend, HashStore(), group_name, None, *rest, **settings)

    def meet(url: str, number: int = -1, size: int = -1, **settings: Any) -> Iterator[Any]:
        yield HashStore(), max(number, 0), size if size > 0 else rank.size

    def mesh(self: Any, device_type: str, mesh: Any = None, **settings: Any) -> None:
        with _disable_current_modes():
            if isinstance(mesh, FakeTensor):
                known = content_of(mesh)
                mesh = torch.arange(mesh.numel(), device="cpu").view(mesh.shape) if known is None else known
            if isinstance(settings.get("_rank_map"), FakeTensor):
                settings["_rank_map"] = torch.arange(settings["_rank_map"].numel(), dtype=torch.int, device="cpu")
            make_mesh(self, device_type, mesh, **settings)
            names = self.mesh_dim_names or tuple(f"dim{d}" for d in range(self.ndim))
            ranks, sizes = self.mesh.flatten().tolist(), tuple(self.mesh.shape)
        if self._root_mesh is None and len(ranks) < rank.size:
            rank.smaller.append(sizes)
        elif sorted(ranks) == list(range(rank.size)):
            rank.meshes.append(_Made(tuple(names), sizes, ranks == sorted(ranks)))

    def unflatten(self: Any, *args: Any, **settings: Any) -> Any:
        with _disable_current_modes():
            return unflattened(self, *args, **settings)

    def move(parameters: Any, buffers: Any, device: torch.device) -> None:
        moved(parameters, buffers, device)
        for tensor in (*parameters, *buffers):
            if isinstance(tensor, FakeTensor) and tensor.fake_device.type != "meta":
                tensor.fake_device = device  # which setting its data leaves as it was

    replacing: list[tuple[Any, str, Any]] = [
        (distributed_c10d, "_new_process_group_helper", group),
        (distributed_c10d, "rendezvous", meet),
        (DeviceMesh, "__init__", mesh),
        (DeviceMesh, "_unflatten", unflatten),
        (_fsdp_init, "_move_states_to_device", move),
        (dist, "Reducer", reducer()),
        (random, "_rng_tracker", OneStream()),
        *((owner, name, ours) for owner in (dist, distributed_c10d) for name, ours in _OF_OBJECTS.items()),
        (data_parallel, "_verify_param_shape_across_processes", lambda *_: True),
    ]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in replacing]
    for owner, name, ours in replacing:
        setattr(owner, name, ours)
    try:
        yield
    finally:
        for owner, name, theirs in before:
            setattr(owner, name, theirs)


def _gather_objects(into: list[Any] | None, given: Any) -> None:
    if into is not None:
        into[:] = [given] * len(into)


def _scatter_objects(
    scatter_object_output_list: list[Any], scatter_object_input_list: list[Any] | None = None, *_: Any, **__: Any
) -> None:
    scatter_object_output_list[0] = (scatter_object_input_list or [None])[0]


# All ranks have the objects that rank 0 has.
_OF_OBJECTS: dict[str, Callable[..., None]] = {
    "all_gather_object": lambda object_list, obj, group=None: _gather_objects(object_list, obj),
    "gather_object": lambda obj, object_gather_list=None, *_, **__: _gather_objects(object_gather_list, obj),
    "broadcast_object_list": lambda object_list, *_, **__: None,
    "scatter_object_list": _scatter_objects,
}


def _fake_backend() -> str:
    """The names of a backend that does nothing, for tensors of the CPU and of the device."""
    import torch.testing._internal.distributed.fake_pg  # which registers it

    name = torch._C._get_privateuse1_backend_name()
    return f"cpu:{dist.Backend.FAKE},{name}:{dist.Backend.FAKE}"


@contextmanager
def _environment(size: int) -> Iterator[None]:
    """What torchrun tells rank 0 of `size`."""
    told = {
        "RANK": "0", "LOCAL_RANK": "0", "GROUP_RANK": "0", "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "localhost", "MASTER_PORT": "0",
    }  # fmt: skip
    before = {name: os.environ.get(name) for name in told}
    os.environ.update(told)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
