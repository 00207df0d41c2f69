"""`torch-pjrt plan` with the TPU's compiler: `make plan-tests`, minutes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

import torch_pjrt
from torch_pjrt.plan import Plan, plan
from torch_pjrt.plan.compiled import compile_job
from torch_pjrt.plan.entry import Entry
from torch_pjrt.plan.hugging_face import Recipe, hugging_face_entry
from torch_pjrt.plan.planner import Settings, plan_entry
from torch_pjrt.plan.sharding import layouts, parse_mesh
from torch_pjrt.plan.topology import CHIPS, parse_topology
from torch_pjrt.plan.worker import Job

from ..conftest import DEVICE
from .check import Layers, tape_of, training
from .ranks import two_dimensions

pytest.importorskip("libtpu")


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch_pjrt.runtime.cache.directory", lambda: tmp_path)


def mlp(width: int, batch: int) -> Plan:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)).bfloat16()
        x = torch.empty(batch, width, dtype=torch.bfloat16)
    return plan(torch.no_grad()(model), [x], topology="v5e:1")


def test_a_small_network_fits_one_chip_and_its_arguments_are_its_tensors() -> None:
    row = mlp(256, 64).rows[0]
    assert row.fits is True
    assert row.memory is not None and row.time is not None
    numbers = 2 * 4 * 256 * 256 + 5 * 256 + 64 * 256
    assert row.memory.arguments == pytest.approx(2 * numbers, rel=0.02)  # bf16, and what layouts pad
    assert row.model_flops == 2 * 2 * 64 * 4 * 256 * 256
    assert 0 < row.time.best < 1e-3


def test_a_large_product_is_near_the_documented_peak() -> None:
    """The clock of each chip in our table, against its documented peak: a product of two large matrices."""
    a = torch.empty(4096, 4096, dtype=torch.bfloat16)
    for name in (name for name, chip in CHIPS.items() if chip.platform == "tpu"):
        row = plan(lambda x, y: x @ y, [a, a], topology=name, mesh="tp").rows[0]
        assert row.mfu is not None
        share = row.mfu * CHIPS[name].devices  # each device of a chip computes all of it
        assert 0.8 < share <= 1.0, (name, share)


def test_what_does_not_fit_says_so() -> None:
    row = mlp(32768, 8).rows[0]  # 16 GiB of parameters and 16 GiB there are
    assert row.fits is False
    assert row.memory is not None and row.memory.total > row.memory.capacity > 15 << 30


def test_fully_sharded_training_gathers_and_scatters_along_its_axis() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters())

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    x = torch.empty(2048, 1024, dtype=torch.bfloat16)
    row = torch_pjrt.plan(step, [x], topology="v6e:2x2").rows[0]  # type: ignore[operator]
    kinds = {c.kind: c for c in row.collectives}
    assert {"all-gather", "reduce-scatter"} <= kinds.keys()
    assert {c.axes for c in row.collectives} == {"fsdp"}
    weights = 2 * 4 * 1024 * 1024 * 2
    assert kinds["all-gather"].nbytes == pytest.approx(weights * 3 / 4, rel=0.3)
    assert row.memory is not None
    assert row.memory.arguments == pytest.approx((3 * weights + x.nbytes) / 4, rel=0.05)


def test_a_loop_over_equal_layers_needs_what_the_layers_need() -> None:
    tape = tape_of(*training(Layers(layers=8))[:2])
    target = parse_topology("v5e:1")
    mesh = parse_mesh(None, 1)
    job = Job(tape, layouts(tape, None, mesh), mesh, "tpu", target.name, target.host, "highest", clock=1.5e9)
    rolled, plain = (compile_job(replace(job, roll=roll), 600).answer for roll in (True, False))
    assert rolled is not None and plain is not None
    assert rolled["loops"] and not plain["loops"]
    assert rolled["accessed_bytes"] > 0 and rolled["argument_bytes"] == pytest.approx(plain["argument_bytes"], rel=0.5)


def test_a_time_limit_is_a_row_and_an_answer_is_kept(tmp_path: Path) -> None:
    model = nn.Linear(64, 64)
    entry_settings = {"topology": "v5e:1"}
    late = plan(model, [torch.empty(8, 64)], timeout=0.01, **entry_settings).rows[0]
    assert "longer than 0.01 s" in late.failure and late.fits is None
    again = [plan(model, [torch.empty(8, 64)], **entry_settings).rows[0] for _ in range(2)]  # the same line
    assert [row.cached for row in again] == [False, True]
    assert again[0].memory == again[1].memory


def test_a_hugging_face_configuration_is_planned_without_weights(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    config = {
        "model_type": "qwen3", "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 64, "num_hidden_layers": 4, "vocab_size": 1024,
    }  # fmt: skip
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    entry = hugging_face_entry(str(file), Recipe(sequence=128))
    found = plan_entry(entry, Settings(("v5e:2x2",), batch=1, remat=True))
    row = found.rows[0]
    assert row.failure == "" and row.fits is True
    assert row.tokens == 4 * 128
    layer = 256 * (4 + 2 + 2 + 4) * 64 + 3 * 256 * 512 + 2 * 256 + 2 * 64
    assert found.parameters == 2 * 1024 * 256 + 4 * layer + 256


def test_fit_finds_a_batch_that_fits(tmp_path: Path) -> None:
    from torch_pjrt.plan.entry import Entry

    def make(batch: int, remat: bool):  # type: ignore[no-untyped-def]
        model = nn.Linear(4096, 65536, dtype=torch.bfloat16)
        return (lambda x: model(x).float().exp().sum(1)), [torch.empty(batch, 4096, dtype=torch.bfloat16)]

    rows = plan_entry(Entry("wide", make, True, False), Settings(("v5e:1",), batch=1 << 18, fit=True)).rows
    assert rows[0].fits is False
    assert rows[-1].fits is True and rows[-1].batch is not None and rows[-1].batch < 1 << 18


class Attention(nn.Module):
    """Grouped-query attention over (N, T, 512): 4 heads of 128, of which two share a key head."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.out = (nn.Linear(512, 512, bias=False, dtype=torch.bfloat16) for _ in range(2))
        self.key, self.value = (nn.Linear(512, 256, bias=False, dtype=torch.bfloat16) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (p(x).unflatten(-1, (-1, 128)).transpose(1, 2) for p in (self.query, self.key, self.value))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out(y.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("topology", ["v5e:2x2", "v5p:2x2x1", "v6e:2x2", "tpu7x:1x1x1"])
def test_attention_is_a_kernel_forward_and_backward_and_no_score_lies_in_memory(topology: str) -> None:
    model = Attention().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    length = 4096
    row = plan(step, [torch.empty(4, length, 512, dtype=torch.bfloat16, device=DEVICE)], topology=topology).rows[0]
    assert row.failure == "" and row.memory is not None and row.time is not None
    scores = 4 // row.devices * 4 * length * length * 2
    assert row.memory.temporaries < scores / 2
    assert not any("no estimate" in note for note in row.notes)
    assert row.time.roofline < row.time.best < 20 * row.time.roofline


def test_a_program_of_ranks_has_its_collectives_along_its_own_mesh() -> None:
    def make(batch: int, remat: bool) -> tuple[object, list[torch.Tensor]]:
        step, _, _ = training(two_dimensions(Layers(layers=3).to(DEVICE)))
        return step, [torch.zeros(batch, 6, dtype=torch.int64, device=DEVICE) for _ in range(2)]

    entry = Entry("make", make, True, False)  # type: ignore[arg-type]
    found = plan_entry(entry, Settings(("v5e:2x2",), batch=2))
    (row,) = found.rows
    assert (row.mesh, row.batch, row.fits) == ("dp=2,tp=2", 4, True)
    assert {c.axes for c in row.collectives} == {"dp", "tp"}
    assert found.parameters == sum(p.numel() for p in Layers(layers=3).parameters())


def test_what_is_gathered_again_for_the_backward_pass_is_gathered_again() -> None:
    def gathers(reshard: bool) -> int:
        def make(batch: int, remat: bool) -> tuple[object, list[torch.Tensor]]:
            model = nn.Sequential(nn.Linear(512, 2048), nn.Linear(2048, 1024), nn.Linear(1024, 768)).to(DEVICE)
            for block in model:
                fully_shard(block, reshard_after_forward=reshard)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

            def step(x: torch.Tensor) -> None:
                model(x).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()

            return step, [torch.empty(64, 512, device=DEVICE)]

        (row,) = plan_entry(Entry("make", make, False, False), Settings(("v5e:2x2",), roll=False)).rows  # type: ignore[arg-type]
        return next(c.count for c in row.collectives if c.kind == "all-gather")

    assert gathers(reshard=True) >= gathers(reshard=False) + 3  # whole or in parts


def test_the_attention_of_a_rank_is_the_kernels_own() -> None:
    def make(batch: int, remat: bool) -> tuple[object, list[torch.Tensor]]:
        model = fully_shard(nn.Linear(256, 3 * 256, dtype=torch.bfloat16, device=DEVICE))

        def step(x: torch.Tensor) -> torch.Tensor:
            heads = model(x).unflatten(-1, (3, 2, 128)).permute(2, 0, 3, 1, 4)
            return nn.functional.scaled_dot_product_attention(*heads, is_causal=True)

        return torch.no_grad()(step), [torch.empty(batch, 1024, 256, dtype=torch.bfloat16, device=DEVICE)]

    (row,) = plan_entry(Entry("make", make, True, False), Settings(("v6e:2x2",))).rows  # type: ignore[arg-type]
    assert row.memory is not None
    assert row.memory.temporaries < 2 * 1024 * 1024 * 2  # the scores of two heads, which are nowhere
