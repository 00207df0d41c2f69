"""Planning programs that make process groups: when that is seen, what batch they get, what fails."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from torch_pjrt.plan.entry import Entry
from torch_pjrt.plan.planner import Settings, _Planner, _target, _Try
from torch_pjrt.plan.sharding import MeshError

from ..conftest import DEVICE
from .check import Layers, Step, training
from .ranks import fsdp, two_dimensions
from .test_ranks import collectives


def entry(make: Callable[..., object]) -> Entry:
    return Entry("make", make, True, False)  # type: ignore[arg-type]


def make_ranks(batch: int, remat: bool) -> tuple[Step, list[torch.Tensor]]:
    step, _, _ = training(two_dimensions(Layers(layers=3).to(DEVICE)))
    return step, [torch.zeros(batch, 6, dtype=torch.int64, device=DEVICE) for _ in range(2)]


def make_alone(batch: int, remat: bool) -> tuple[Step, list[torch.Tensor]]:
    step, _, _ = training(Layers(layers=3).to(DEVICE))
    return step, [torch.zeros(batch, 6, dtype=torch.int64, device=DEVICE) for _ in range(2)]


@pytest.mark.parametrize(("make", "batch"), [(make_ranks, 2), (make_alone, 8)])
def test_the_batch_that_is_asked_for_is_that_of_a_rank_or_of_all_devices(
    make: Callable[..., object], batch: int
) -> None:
    given: list[int] = []

    def counted(batch: int, remat: bool) -> object:
        given.append(batch)
        return make(batch, remat)

    settings = Settings(("v5e:2x2",), batch=2)
    traced = _Planner(entry(counted), settings, lambda text: None)._trace(_Try(_target("v5e:2x2", None), 2, False))
    assert batch in given
    assert traced.tape.examples == (4 if make is make_ranks else 8)
    assert traced.tape.tokens == (24 if make is make_ranks else 48)
    assert traced.tape.model_flops > 0


def planner(make: Callable[..., object], *topologies: str) -> _Planner:
    return _Planner(entry(make), Settings(topologies, batch=2), lambda text: None)


def test_a_program_that_makes_a_group_of_several_ranks_only() -> None:
    def make(batch: int, remat: bool) -> object:
        model: nn.Module = Layers(layers=3).to(DEVICE)
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            dist.init_process_group()
            model = DistributedDataParallel(model)
        step, _, _ = training(model)
        return step, [torch.zeros(batch, 6, dtype=torch.int64, device=DEVICE) for _ in range(2)]

    for names in (("v5e:1", "v5e:2x2"), ("v5e:2x2", "v5e:1")):
        plans = planner(make, *names)
        for name in names:
            of = plans._trace(_Try(_target(name, None), 2, False))
            assert (str(of.mesh), of.tape.examples) == (("None", 2) if name == "v5e:1" else ("rank=4", 8))


def test_a_group_that_the_step_makes() -> None:
    def make(batch: int, remat: bool) -> object:
        def step(x: torch.Tensor) -> torch.Tensor:
            if not dist.is_initialized():
                dist.init_process_group()
            total = x.sum()
            dist.all_reduce(total)
            return total

        return step, [torch.zeros(batch, 6, device=DEVICE)]

    of = planner(make, "v5e:2x2")._trace(_Try(_target("v5e:2x2", None), 2, False))
    assert collectives(of.tape) == {"all_reduce": 1} and of.tape.examples == 8


def test_a_target_that_the_program_does_not_fit_is_a_row() -> None:
    def make(batch: int, remat: bool) -> object:
        mesh = init_device_mesh(DEVICE, (4, 4), mesh_dim_names=("dp", "tp"))
        step, _, _ = training(fsdp(Layers(layers=3).to(DEVICE), mesh=mesh["dp"]))
        return step, [torch.zeros(batch, 6, dtype=torch.int64, device=DEVICE) for _ in range(2)]

    plans = planner(make, "v5e:4x4", "v5e:2x2", "v5e:8x8")
    plans._trace(_Try(_target("v5e:4x4", None), 2, False))
    small, large = plans.rows([_Try(_target(name, None), 2, False) for name in ("v5e:2x2", "v5e:8x8")])
    assert "16" in small.failure and "4" in small.failure
    assert "the program's mesh has 16 devices (4, 4), the topology 64" in large.failure


def test_a_mesh_beside_a_process_group() -> None:
    plans = _Planner(entry(make_ranks), Settings(("v5e:2x2",), mesh="fsdp=4"), lambda text: None)
    with pytest.raises(MeshError, match="leave --mesh out"):
        plans._trace(_Try(_target("v5e:2x2", "fsdp=4"), 1, False))
