"""`torch-pjrt plan` with XLA's compiler for NVIDIA GPUs: `make plan-tests`, where JAX's CUDA plugin is installed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from torch_pjrt.plan import plan
from torch_pjrt.plan.entry import Entry
from torch_pjrt.plan.planner import Settings, plan_entry
from torch_pjrt.plan.topology import CHIPS
from torch_pjrt.runtime.platform import installed_plugins

from ..conftest import DEVICE
from .check import Layers, training
from .ranks import two_dimensions

if "cuda" not in installed_plugins():
    pytest.skip("JAX's CUDA plugin is not installed", allow_module_level=True)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch_pjrt.runtime.cache.directory", lambda: tmp_path)


@pytest.mark.parametrize("name", ["a100", "h100", "h200"])
def test_a_product_is_bound_by_the_peak(name: str) -> None:
    a = torch.empty(8192, 8192, dtype=torch.bfloat16)
    (row,) = plan(lambda x, y: x @ y, [a, a], topology=name, mesh="tp").rows
    assert row.failure == "" and row.fits is True
    assert row.memory is not None and row.time is not None
    assert row.memory.arguments == 2 * 8192**2
    assert row.time.compiler is None and row.time.bound == "compute"
    assert row.time.roofline == pytest.approx(2 * 8192**3 / CHIPS[name].peak)
    assert any("no estimate of time" in note for note in row.notes)


def test_what_does_not_fit_says_so() -> None:
    model = nn.Linear(210_000, 210_000, bias=False, device="meta", dtype=torch.bfloat16)  # 88 GB
    x = torch.empty(64, 210_000, dtype=torch.bfloat16, device="meta")
    (row,) = plan(torch.no_grad()(model), [x], topology="h100", mesh="tp").rows
    assert row.fits is False


def test_training_along_fsdp_on_two_hosts_crosses_the_network() -> None:
    step, inputs, _ = training(Layers(layers=3))
    inputs = [torch.zeros(16, 6, dtype=torch.int64) for _ in inputs]
    near, far = plan(step, inputs, topology=["h100:8", "h100:16"]).rows
    assert near.collectives and far.collectives

    def speed(row: object) -> float:
        return max(c.nbytes / c.seconds for c in row.collectives)  # type: ignore[attr-defined]

    assert speed(near) == pytest.approx(450e9, rel=1e-3) and speed(far) == pytest.approx(50e9, rel=1e-3)


def test_a_program_of_ranks() -> None:
    def make(batch: int, remat: bool) -> tuple[object, list[torch.Tensor]]:
        step, _, _ = training(two_dimensions(Layers(layers=3).to(DEVICE)))
        return step, [torch.zeros(batch, 6, dtype=torch.int64, device=DEVICE) for _ in range(2)]

    (row,) = plan_entry(Entry("make", make, True, False), Settings(("h100:4",), batch=2)).rows  # type: ignore[arg-type]
    assert (row.mesh, row.fits) == ("dp=2,tp=2", True)
    assert {c.axes for c in row.collectives} == {"dp", "tp"}
