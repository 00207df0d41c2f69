"""Programs that make process groups are planned as one rank of as many as the topology has devices."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.experimental import context_parallel
from torch.nn.parallel import DistributedDataParallel

from torch_pjrt.plan.ranks import Rank, as_rank
from torch_pjrt.plan.tape import PlanError, Tape
from torch_pjrt.plan.trace import fake_mode, trace_step
from torch_pjrt.plan.transfers import PREFIX, partition

from ..conftest import DEVICE
from ..distributed.ranks import ROOT
from .check import Layers, Step, training
from .ranks import Way, ddp, fsdp, hybrid, sequence_parallel, tensor_parallel, two_dimensions

HERE = Path(__file__).parent


def traced(make: Callable[[], tuple[Step, list[torch.Tensor]]], size: int = 4) -> tuple[Tape, Rank]:
    fake = fake_mode()
    with as_rank(size) as rank:
        with fake:
            step, inputs = make()
        return trace_step(step, inputs, fake), rank


def trained(way: Way, size: int = 4) -> tuple[Tape, Rank]:
    def make() -> tuple[Step, list[torch.Tensor]]:
        step, inputs, _ = training(way(Layers(layers=3).to(DEVICE)))
        return step, [x.to(DEVICE) for x in inputs]

    return traced(make, size)


def called(operation: Callable[[torch.Tensor], object], size: int = 4) -> list[tuple[str, dict[str, object]]]:
    """The collectives of a step that calls this with a tensor of 8 numbers."""

    def make() -> tuple[Step, list[torch.Tensor]]:
        dist.init_process_group()
        return lambda x: operation(x.clone()), [torch.ones(8, device=DEVICE)]

    tape, _ = traced(make, size)
    return [(o.name.removeprefix(PREFIX), o.kwargs) for o in tape.operations if o.name.startswith(PREFIX)]


def collectives(tape: Tape) -> Counter[str]:
    return Counter(o.name.removeprefix(PREFIX) for o in tape.operations if o.name.startswith(PREFIX))


def test_the_programs_of_ranks_do_what_one_process_does_with_the_whole_batch() -> None:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "XLA_FLAGS"))}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", str(HERE / "ranks.py")]
    done = subprocess.run(
        [*command, "-k", "(small_buckets or two_dimensions) and True"], cwd=ROOT, capture_output=True, text=True,
        timeout=300, env=kept | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "4"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


@pytest.mark.parametrize("way", [hybrid, tensor_parallel, two_dimensions, sequence_parallel])
def test_the_collectives_are_those_that_pytorch_counts(way: Way) -> None:
    tape, _ = trained(way)
    with as_rank(4), torch.device("cpu"):
        torch.manual_seed(0)
        step, inputs, _ = training(on_cpu(way))
        step(*inputs)
        with CommDebugMode() as counting:
            step(*inputs)
    counted: Counter[str] = Counter()
    for packet, count in counting.get_comm_counts().items():
        counted[_KINDS[packet._qualified_op_name.partition("::")[2]]] += count
    assert collectives(tape) == counted


_KINDS = {
    "_allgather_base_": "all_gather", "all_gather_into_tensor": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter", "reduce_scatter_tensor": "reduce_scatter",
    "allreduce_": "all_reduce", "all_reduce": "all_reduce",
}  # fmt: skip


def on_cpu(way: Way) -> nn.Module:
    import tests.plan.ranks as ways

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ways, "DEVICE", "cpu")
        return way(Layers(layers=3))


def test_what_ddp_reduces_is_its_buckets() -> None:
    tape, rank = trained(ddp)
    assert collectives(tape) == {"all_reduce": 1}
    assert str(rank.mesh) == "rank=4" and rank.batches == 4
    sent = [o for o in tape.operations if o.name == PREFIX + "all_reduce"]
    sizes = [next(iter(o.reads())).view.sizes for o in sent]
    assert sizes == [(sum(s.elements for s in tape.storages if s.role == "parameter"),)]


def test_what_fsdp_gathers_is_no_argument_and_no_result() -> None:
    tape, rank = trained(fsdp)
    assert str(rank.mesh) == "dim0=4" and rank.batches == 4
    of_rank = sum(tape.storages[n].nbytes for n in tape.inputs if tape.storages[n].role in ("parameter", "optimizer"))
    whole = sum(p.nbytes for p in Layers(layers=3).parameters())
    assert of_rank < 2 * whole / 4 * 1.2  # parameters and momentum, a fourth of each, where 4 divides them
    assert all(tape.storages[n].nbytes <= 4 for n in tape.inputs if tape.storages[n].role == "other")
    assert len(tape.returned) == 1


def test_ranks_of_tensor_parallel_have_one_batch() -> None:
    tape, rank = trained(two_dimensions)
    assert str(rank.mesh) == "dp=2,tp=2" and rank.batches == 2
    groups = {o.kwargs["ranks"] for o in tape.operations if o.name.startswith(PREFIX)}
    assert groups == {(0, 1), (0, 2)}


def test_ddp_in_a_static_graph_with_buffers_reduces_and_broadcasts() -> None:
    def way(model: Layers) -> nn.Module:
        dist.init_process_group("nccl", init_method="tcp://10.0.0.1:1234", rank=0, world_size=4)
        model.register_buffer("mean", torch.zeros(3, device=DEVICE))
        return DistributedDataParallel(model, device_ids=[0], static_graph=True, bucket_cap_mb=1e-3)  # type: ignore[arg-type]

    tape, _ = trained(way)
    found = collectives(tape)
    assert found["broadcast"] == 1 and found["all_reduce"] > 2


def test_ddp_that_looks_for_parameters_out_of_use() -> None:
    def way(model: Layers, requires_grad: bool) -> nn.Module:
        dist.init_process_group()
        model.extra = nn.Linear(3, 3, device=DEVICE).requires_grad_(requires_grad)
        return DistributedDataParallel(model, find_unused_parameters=True)

    with pytest.raises(PlanError, match=r"2 parameter\(s\) that the step does not use, the first of shape \(3, 3\)"):
        trained(functools.partial(way, requires_grad=True))
    tape, _ = trained(functools.partial(way, requires_grad=False))
    assert collectives(tape) == {"all_reduce": 2}  # the gradients, and which parameters were in use


def test_fsdp_in_mixed_precision_accumulates_and_clips() -> None:
    def make() -> tuple[Step, list[torch.Tensor]]:
        with torch.device("meta"):
            model = Layers(layers=3)
        fsdp(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
        model.to_empty(device=DEVICE)
        for module in model.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)

        def step(ids: torch.Tensor, wanted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            for last in (False, True):
                model.set_requires_gradient_sync(last)  # type: ignore[operator]
                loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), wanted.flatten())
                loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            total = loss.detach().clone()
            dist.all_reduce(total, dist.ReduceOp.AVG)
            return total, norm.full_tensor()  # type: ignore[attr-defined]

        return step, [torch.zeros(4, 6, dtype=torch.int64, device=DEVICE) for _ in range(2)]

    tape, _ = traced(make)
    found = collectives(tape)
    assert found["reduce_scatter"] == 4 and found["all_reduce"] == 2
    moved = {o.name: next(iter(o.reads())).view.dtype for o in tape.operations if o.name.startswith(PREFIX)}
    assert moved[PREFIX + "all_gather"] == torch.bfloat16 and moved[PREFIX + "reduce_scatter"] == torch.float32


def test_a_ring_of_attention_shifts_keys_and_values() -> None:
    def make() -> tuple[Step, list[torch.Tensor]]:
        mesh = init_device_mesh(DEVICE, (4,), mesh_dim_names=("cp",))
        project = nn.Linear(8, 24, device=DEVICE)

        def step(x: torch.Tensor) -> torch.Tensor:
            with context_parallel(mesh, buffers=[x], buffer_seq_dims=[1]):
                heads = project(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
                out = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
                out.sum().backward()
            return out.detach()

        return step, [torch.zeros(2, 24, 8, device=DEVICE)]

    tape, rank = traced(make)
    shifts = [o.kwargs["by"] for o in tape.operations if o.name == PREFIX + "shift"]
    assert shifts and set(shifts) == {1}
    assert rank.batches == 1 and not tape.findings


def test_objects_are_those_of_rank_0() -> None:
    with as_rank(3), fake_mode():
        dist.init_process_group()
        everyones: list[object] = [None] * 3
        dist.all_gather_object(everyones, {"of": 0})
        given = ["a"]
        dist.broadcast_object_list(given)
        mine: list[object] = [None]
        dist.scatter_object_list(mine, ["x", "y", "z"])
    assert everyones == [{"of": 0}] * 3 and given == ["a"] and mine == ["x"]


def test_a_generator_does_not_take_a_state_without_content() -> None:
    with fake_mode():
        state = torch.zeros(16, dtype=torch.uint8)
    with pytest.raises(RuntimeError, match="without content"):
        torch.get_device_module(DEVICE).set_rng_state(state)


@pytest.mark.parametrize(
    ("operation", "kind", "settings"),
    [
        (lambda x: dist.all_reduce(x), "all_reduce", {"op": "SUM"}),
        (lambda x: dist.all_reduce(x, dist.ReduceOp.MAX, async_op=True).wait(), "all_reduce", {"op": "MAX"}),
        (lambda x: dist.reduce(x, 1, dist.ReduceOp.AVG), "all_reduce", {"op": "AVG"}),
        (lambda x: dist.broadcast(x, 2), "broadcast", {"root": 2}),
        (lambda x: dist.all_gather([torch.empty_like(x) for _ in range(4)], x), "all_gather/list", {}),
        (lambda x: dist.all_gather_into_tensor(x.new_empty(32), x), "all_gather", {}),
        (lambda x: dist.reduce_scatter_tensor(x.new_empty(2), x), "reduce_scatter", {"op": "SUM"}),
        (lambda x: dist.reduce_scatter(x.new_empty(2), list(x.split(2))), "reduce_scatter/list", {"op": "SUM"}),
        (lambda x: dist._all_gather_base(x.new_empty(32), x), "all_gather", {}),
        (lambda x: dist.all_to_all_single(torch.empty_like(x), x), "all_to_all", {}),
        (lambda x: dist.all_to_all([x.new_empty(2) for _ in range(4)], list(x.split(2))), "all_to_all/list", {}),
    ],
)
def test_a_collective_is_on_the_tape(
    operation: Callable[[torch.Tensor], object], kind: str, settings: dict[str, object]
) -> None:
    assert called(operation) == [(kind, {"members": 4, "ranks": None, "world": 4} | settings)]


def test_barriers_and_objects_that_wait_move_nothing() -> None:
    assert called(lambda x: dist.barrier()) == []


@pytest.mark.parametrize(
    ("operation", "said"),
    [
        (lambda x: dist.send(x, 1), "c10d::send: a plan is one program, which all ranks run alike"),
        (lambda x: dist.recv(x, 1), "c10d::recv_"),
        (lambda x: dist.all_to_all_single(x, x.clone(), [5, 1, 1, 1], [1, 1, 1, 5]), "parts of different sizes"),
        (lambda x: dist.all_reduce(x, group=dist.new_group([0, 1, 3])), r"the ranks \[0, 1, 3\] of 4"),
    ],
)
def test_what_not_all_ranks_do_alike_cannot_be_planned(operation: Callable[[torch.Tensor], object], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        called(operation)


@pytest.mark.parametrize(
    ("ranks", "world", "groups"),
    [
        ((0, 1), 4, ((0, 1), (2, 3))),
        ((0, 2), 4, ((0, 2), (1, 3))),
        ((0, 1, 4, 5), 8, ((0, 1, 4, 5), (2, 3, 6, 7))),
        ((0,), 3, ((0,), (1,), (2,))),
    ],
)
def test_the_groups_of_the_other_ranks(ranks: tuple[int, ...], world: int, groups: object) -> None:
    assert partition(ranks, world) == groups


def test_the_environment_and_pytorch_are_what_they_were() -> None:
    before = (os.environ.get("WORLD_SIZE"), DeviceMesh.__init__, dist.Reducer)  # type: ignore[attr-defined]
    with as_rank(16) as rank:
        assert os.environ["WORLD_SIZE"] == "16"
        dist.init_process_group("nccl", init_method="env://")
        assert (dist.get_world_size(), dist.get_rank()) == (16, 0)
        init_device_mesh(DEVICE, (4, 4), mesh_dim_names=("dp", "tp"))
    assert rank.batches == 4
    assert not dist.is_initialized()
    assert (os.environ.get("WORLD_SIZE"), DeviceMesh.__init__, dist.Reducer) == before  # type: ignore[attr-defined]


def test_another_number_of_ranks_than_devices() -> None:
    with as_rank(8), pytest.raises(PlanError, match="4 ranks, the topology has 8 devices"):
        dist.init_process_group(world_size=4, rank=0)


def test_a_process_that_is_a_rank_already(monkeypatch: pytest.MonkeyPatch) -> None:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        with as_rank(8) as rank:
            assert not rank.used
        monkeypatch.setattr(dist, "get_world_size", lambda: 2)
        with pytest.raises(PlanError, match="process group of 2 already"), as_rank(8):
            pass
    finally:
        dist.destroy_process_group()


def test_a_second_program_has_groups_of_its_own() -> None:
    def first(model: Layers) -> nn.Module:
        mesh = init_device_mesh(DEVICE, (2, 2), mesh_dim_names=("dp", "tp"))
        return tensor_parallel(model, mesh["tp"])

    def second(model: Layers) -> nn.Module:
        dist.init_process_group()
        for _ in range(3):
            dist.new_group([0, 1, 2, 3])
        return first(model)

    for way in (first, second):
        tape, _ = trained(way)
        assert {o.kwargs["ranks"] for o in tape.operations if o.name.startswith(PREFIX)} == {(0, 1)}


def test_a_model_on_the_cpu_is_sharded_on_the_device() -> None:
    def make() -> tuple[Step, list[torch.Tensor]]:
        step, inputs, _ = training(fsdp(Layers(layers=3)))
        return step, [x.to(DEVICE) for x in inputs]

    tape, _ = traced(make)
    assert collectives(tape)["reduce_scatter"] == 4
    assert {s.device for s in tape.storages if s.role == "parameter"} == {DEVICE}


@pytest.mark.parametrize(
    ("meshes", "mesh", "batches"),
    [
        ([((2, 2), ("dp", "tp")), ((1, 2, 2), ("pp", "efsdp", "ep"))], "dp=2,tp=2", 2),
        ([((4,), None)], "dim0=4", 4),
        ([((2, 2), ("dp", "cp"))], "dp=2,cp=2", 2),
    ],
)
def test_which_ranks_have_a_batch_of_their_own(meshes: list[tuple[Any, Any]], mesh: str, batches: int) -> None:
    with as_rank(4) as rank:
        for sizes, names in meshes:
            init_device_mesh(DEVICE, sizes, mesh_dim_names=names)
        assert (str(rank.mesh), rank.batches) == (mesh, batches)


def test_a_mesh_of_ranks_in_another_order() -> None:
    with as_rank(4) as rank, fake_mode():
        mesh = DeviceMesh(DEVICE, torch.tensor([[0, 2], [1, 3]]), mesh_dim_names=("dp", "tp"))
        assert dist.get_process_group_ranks(mesh["tp"].get_group()) == [0, 2]
        assert (str(rank.mesh), rank.batches) == ("rank=4", 2)


def test_a_dtensor_that_a_step_takes_is_this_ranks_part() -> None:
    def make() -> tuple[Step, list[torch.Tensor]]:
        mesh = init_device_mesh(DEVICE, (4,), mesh_dim_names=("dp",))
        given = DTensor.from_local(torch.ones(4, 16, device=DEVICE), mesh, [Shard(0)])
        return lambda x: (x * 2).to_local(), [given]

    tape, _ = traced(make)
    assert tape.examples == 4
    assert [(s.role, s.name) for s in tape.storages[:1]] == [("argument", "argument 0")]


def test_what_a_step_reads_and_then_frees_is_an_argument() -> None:
    def make() -> tuple[Step, list[torch.Tensor]]:
        kept = {"last": torch.ones(1000, device=DEVICE)}

        def step(x: torch.Tensor) -> torch.Tensor:
            last = kept["last"]
            total = x.sum() + last.sum()
            kept["last"] = x * 2
            last.untyped_storage().resize_(0)
            kept["freed"] = last
            return total

        return step, [torch.ones(1000, device=DEVICE)]

    tape, _ = traced(make)
    assert sum(tape.storages[n].nbytes for n in tape.inputs) == 8000
