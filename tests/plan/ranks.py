"""Programs of ranks: the plan's program, run on four devices, does what one process does with the whole batch."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import pytest
import torch
import torch.distributed as dist
from jax.sharding import PartitionSpec
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from torch_pjrt.lowering.target import Target
from torch_pjrt.plan.content import abstract
from torch_pjrt.plan.program import program, signature
from torch_pjrt.plan.ranks import as_rank
from torch_pjrt.plan.sharding import Mesh
from torch_pjrt.plan.tape import Storage, Tape
from torch_pjrt.plan.trace import fake_mode, trace_step
from torch_pjrt.runtime.members import AXIS

from ..conftest import DEVICE
from .check import Layers, training

RANKS = 4
Way = Callable[[Layers], nn.Module]


def ddp(model: Layers) -> nn.Module:
    dist.init_process_group()
    return DistributedDataParallel(model)


def small_buckets(model: Layers) -> nn.Module:
    dist.init_process_group("gloo")
    return DistributedDataParallel(model, bucket_cap_mb=1e-3, gradient_as_bucket_view=True)  # type: ignore[arg-type]


def fsdp(model: Layers, **settings: Any) -> nn.Module:
    for block in model.blocks:
        fully_shard(block, **settings)
    return fully_shard(model, **settings)


def fsdp_kept(model: Layers) -> nn.Module:
    return fsdp(model, reshard_after_forward=False)


def fsdp_by_hand(model: Layers) -> nn.Module:
    dist.init_process_group(world_size=int(os.environ["WORLD_SIZE"]), rank=int(os.environ["RANK"]))
    return fsdp(model, mesh=init_device_mesh(DEVICE, (dist.get_world_size(),)))


def hybrid(model: Layers) -> nn.Module:
    return fsdp(model, mesh=init_device_mesh(DEVICE, (2, 2), mesh_dim_names=("replicate", "shard")))


def tensor_parallel(model: Layers, mesh: Any = None) -> nn.Module:
    mesh = init_device_mesh(DEVICE, (RANKS,), mesh_dim_names=("tp",)) if mesh is None else mesh
    for block in model.blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


def sequence_parallel(model: Layers) -> nn.Module:
    mesh = init_device_mesh(DEVICE, (2, 2), mesh_dim_names=("dp", "tp"))
    split = Shard(1)
    ends = {
        "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=split),
        "head": ColwiseParallel(input_layouts=split, output_layouts=Replicate()),
    }
    parallelize_module(model, mesh["tp"], ends)
    for block in model.blocks:
        inner = {
            "norm": SequenceParallel(),
            "up": ColwiseParallel(input_layouts=split),
            "down": RowwiseParallel(output_layouts=split),
        }
        parallelize_module(block, mesh["tp"], inner)
    return fsdp(model, mesh=mesh["dp"])


def two_dimensions(model: Layers) -> nn.Module:
    mesh = init_device_mesh(DEVICE, (2, 2), mesh_dim_names=("dp", "tp"))
    return fsdp(tensor_parallel(model, mesh["tp"]), mesh=mesh["dp"])  # type: ignore[arg-type]


@pytest.mark.parametrize("roll", [True, False])
@pytest.mark.parametrize(
    "way",
    [ddp, small_buckets, fsdp, fsdp_kept, fsdp_by_hand, hybrid, tensor_parallel, two_dimensions],
)
def test_a_program_of_ranks_trains_as_one_process_does(way: Way, roll: bool) -> None:
    torch.manual_seed(0)
    model = Layers(layers=3)
    with as_rank(RANKS) as rank:
        fake = fake_mode()
        with fake:
            step, inputs, _ = training(way(Layers(layers=3).to(DEVICE)))
            tape = trace_step(step, [x.to(DEVICE) for x in inputs], fake)
        mesh, batches = rank.mesh, rank.batches
        assert rank.used
    ids, wanted = (torch.randint(0, 11, (4 * batches, 6)) for _ in range(2))
    found = run(tape, mesh, {**dict(model.named_parameters()), "argument 0": ids, "argument 1": wanted}, batches, roll)
    whole_step, _, _ = training(model)
    loss = whole_step(ids, wanted)
    returned = np.stack([of_rank["returned 0"] for of_rank in found])
    np.testing.assert_allclose(returned.mean(), loss.item(), rtol=1e-5)
    for name, parameter in model.named_parameters():
        for number, of_rank in enumerate(found):
            storage = next(s for s in tape.storages if s.role == "parameter" and known(s.name) == name)
            want = part(storage, parameter.detach(), mesh, number, batches).numpy()
            np.testing.assert_allclose(
                of_rank[name].reshape(-1)[: want.size],
                want.reshape(-1),
                rtol=1e-4,
                atol=1e-6,
                err_msg=f"{name} of {number}",
            )


def known(name: str) -> str:
    """The name that the model itself has for it."""
    return name.removeprefix("module.").partition(" (")[0]


def place(mesh: Mesh, rank: int) -> dict[str, int]:
    """Where a rank is along each axis of the mesh."""
    sizes = [n for _, n in mesh.axes]
    return dict(zip(mesh.names, map(int, np.unravel_index(rank, sizes)), strict=True))


def part(storage: Storage, whole: Tensor, mesh: Mesh, rank: int, batches: int) -> Tensor:
    """What a rank has of a tensor: of the batch's its rows; of a sharded one its shard (`tp` was cut first)."""
    at = place(mesh, rank)
    if storage.role == "argument":
        number = 0
        for axis, n in mesh.axes:
            number = number if axis == "tp" else number * n + at[axis]
        return whole.chunk(batches)[number]
    for axis, dimension in sorted(storage.placements, key=lambda p: p[0] != "tp"):
        chunks = whole.chunk(mesh.size([axis]), dimension)
        whole = chunks[at[axis]] if at[axis] < len(chunks) else whole.narrow(dimension, 0, 0)
    return whole


def run(tape: Tape, mesh: Mesh, content: dict[str, Tensor], batches: int, roll: bool) -> list[dict[str, np.ndarray]]:
    """Run a rank's program on all devices, each with its part of the content: by rank, the new content by name."""
    called = signature(tape, roll)
    size = mesh.devices

    def array(number: int, rank: int) -> np.ndarray:
        storage = tape.storages[number]
        of = abstract(tape, (number,))
        given = np.zeros(of.size, of.dtype)
        if storage.role in ("parameter", "argument"):
            mine = part(storage, content[known(storage.name)].detach(), mesh, rank, batches).numpy().reshape(-1)
            given[: mine.size] = mine
        return given.reshape(of.shape)

    def group(numbers: Sequence[int]) -> np.ndarray:
        of_ranks = ([array(n, rank) for n in numbers] for rank in range(size))
        return np.stack([np.stack(arrays) if len(arrays) > 1 else arrays[0] for arrays in of_ranks])

    devices = jax.sharding.Mesh(np.array(jax.devices()), (AXIS,))
    along = PartitionSpec(AXIS)

    # Small arrays XLA:CPU exchanges in ways of its own (`distributed/exchange.py`): not so where it is not the target.
    def place(index: int) -> Target | None:
        return None if roll else Target("tpu")

    def each(*arrays: jax.Array) -> list[jax.Array]:
        return [x[None] for x in program(tape, called, place=place)([a[0] for a in arrays], [], None)]

    with jax.enable_x64(True):
        spread = jax.shard_map(each, mesh=devices, in_specs=along, out_specs=along, check_vma=False)
        results = jax.jit(spread)(*(group(g) for g in called.inputs))
    found: list[dict[str, np.ndarray]] = [{} for _ in range(size)]
    for numbers, result in zip(called.outputs, results, strict=True):
        for i, number in enumerate(numbers):
            storage = tape.storages[number]
            name = f"returned {tape.returned.index(number)}" if storage.role == "made" else storage.name
            name = known(name) if storage.role == "parameter" else name
            for rank in range(size):
                found[rank][name] = np.asarray(result[rank] if len(numbers) == 1 else result[rank][i])
    return found
