"""A tape has what a step does, and its program computes it."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from torch_pjrt.plan.program import signature
from torch_pjrt.plan.tape import PlanError
from torch_pjrt.plan.trace import fake_mode, trace_step

from ..conftest import DEVICE
from .check import Layers, contents, run, tape_of, training


@pytest.mark.parametrize("remat", [False, True])
@pytest.mark.parametrize("roll", [False, True])
def test_the_program_of_a_training_step_computes_the_step(remat: bool, roll: bool) -> None:
    torch.manual_seed(0)
    model = Layers(remat=remat)
    step, inputs, optimizer = training(model)
    step(*inputs)
    tape = tape_of(step, inputs)
    found = run(tape, contents(model, inputs, optimizer), roll)
    loss = step(*inputs)
    np.testing.assert_allclose(found["returned 0"], loss.numpy(), rtol=1e-5)
    for name, tensor in contents(model, inputs, optimizer).items():
        if not name.startswith("argument"):
            np.testing.assert_allclose(found[name], tensor.detach().numpy(), rtol=1e-4, atol=1e-6, err_msg=name)


def test_equal_layers_are_one_loop_forward_one_backward_one_in_the_optimizer() -> None:
    step, inputs, _ = training(Layers(layers=7))
    called = signature(tape_of(step, inputs))
    assert [loop.turns for loop in called.loops if loop.period * loop.turns > 30].count(7) >= 1
    assert len(called.loops) == 3
    stacked = [group for group in called.inputs if len(group) > 1]
    assert {len(group) for group in stacked} == {7}
    assert len(stacked) == 12  # 6 parameters of a layer, and the momentum of each


def test_real_tensors_gradients_and_states_stay_as_they_are() -> None:
    model = Layers(layers=2)
    step, inputs, optimizer = training(model)
    before = copy.deepcopy(model.state_dict())
    tape_of(step, inputs)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert not optimizer.state
    step(*inputs)
    states = copy.deepcopy(optimizer.state_dict())
    tape_of(step, inputs)
    after = optimizer.state_dict()
    for number, state in states["state"].items():
        assert torch.equal(state["momentum_buffer"], after["state"][number]["momentum_buffer"])
    assert not any(isinstance(p, FakeTensor) for p in model.parameters())


def test_a_model_made_under_the_fake_mode_takes_no_memory() -> None:
    fake = fake_mode()
    with fake:
        model = nn.Linear(1 << 20, 1 << 20, device=DEVICE)  # 4 TiB
        x = torch.empty(4, 1 << 20, device=DEVICE)
    tape = trace_step(lambda x: model(x).sum().backward(), [x], fake)
    assert sum(tape.storages[n].nbytes for n in tape.inputs if tape.storages[n].role == "parameter") == (1 << 42) + (
        1 << 22
    )


def test_a_fake_model_moves_to_the_device() -> None:
    with fake_mode():
        assert nn.Linear(2, 2).to(DEVICE).weight.device.type == DEVICE


def test_an_optimizer_state_is_an_argument_and_a_result_and_its_memory_is_donated() -> None:
    step, inputs, _ = training(nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 11)))
    tape = tape_of(step, inputs)
    called = signature(tape)
    roles = [tape.storages[group[0]].role for group in called.inputs]
    assert roles.count("optimizer") == 3
    assert [roles[i] for i in called.donated].count("optimizer") == 3
    assert called.outputs[: len(called.donated)] == tuple(called.inputs[i] for i in called.donated)


def test_gradients_that_the_next_step_throws_away_are_no_results() -> None:
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    assert len(tape_of(step, [torch.ones(2, 3)]).returned) == 1


def test_gradients_that_accumulate_are_arguments_and_results() -> None:
    model = nn.Linear(3, 3)

    def step(x: torch.Tensor) -> None:
        model(x).sum().backward()

    tape = tape_of(step, [torch.ones(2, 3)])
    assert [tape.storages[n].role for n in tape.written] == ["gradient", "gradient"]


def test_an_operation_of_the_backward_pass_has_the_line_of_the_forward_one() -> None:
    w = torch.ones(3, 3, requires_grad=True)

    def step(x: torch.Tensor) -> torch.Tensor:
        y = x @ w  # the line
        return torch.autograd.grad(y.exp().sum(), w)[0]

    backward = [o for o in tape_of(step, [torch.ones(2, 3)]).operations if o.backward and o.name == "aten::mm"]
    lines = step.__code__.co_firstlineno + 1
    assert [o.line for o in backward] == [f"{__file__}:{lines} in step"]


def test_in_place_operations_through_views_reach_the_storage() -> None:
    x = torch.zeros(4, 3)

    def step(x: torch.Tensor) -> torch.Tensor:
        x[1:3].t()[0].add_(2)
        x.mul_(3)
        return x.sum()

    found = run(tape_of(step, [x]), {"argument 0": x})
    assert found["argument 0"].tolist() == [[0, 0, 0], [6, 0, 0], [6, 0, 0], [0, 0, 0]]
    assert found["returned 0"] == 12


def test_a_host_sync_is_found_with_its_line_and_the_step_goes_on() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        loss = x.sum()
        if not torch.isfinite(loss):
            raise RuntimeError("diverged")
        if torch.isnan(loss):
            raise RuntimeError("diverged")
        return loss * loss.item()

    fake = fake_mode()
    with fake:
        x = torch.ones(3, device=DEVICE)
    findings = trace_step(step, [x], fake).findings
    first = step.__code__.co_firstlineno
    assert [(f.kind, f.line) for f in findings] == [("host sync", f"{__file__}:{first + k} in step") for k in (2, 4, 6)]


def test_copies_between_host_and_device_are_found() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        y = x + torch.ones(3).to(DEVICE)
        return y.cpu()

    fake = fake_mode()
    with fake:
        x = torch.ones(3, device=DEVICE)
    found = trace_step(step, [x], fake).findings
    assert [(f.kind, f.what) for f in found] == [
        ("upload", f"aten::_to_copy of 12 bytes to {DEVICE}"), ("host sync", "aten::_to_copy of 12 bytes to cpu"),
    ]  # fmt: skip


def test_a_size_that_depends_on_data_is_an_error_with_the_line() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return x[x > 0]

    with pytest.raises(PlanError, match=rf"{__file__}:{step.__code__.co_firstlineno + 1}"):
        tape_of(step, [torch.ones(3)])


def test_what_the_step_raises_is_raised() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        tape_of(step, [torch.ones(3)])


def test_an_operation_without_a_lowering_is_found() -> None:
    with torch.library._scoped_library("plantest", "DEF") as library:
        library.define("odd(Tensor x) -> Tensor")
        library.impl("odd", lambda x: torch.empty_like(x), "Meta")
        tape = tape_of(lambda x: torch.ops.plantest.odd(x) + 1, [torch.ones(3)])
    assert [(f.kind, f.what) for f in tape.findings] == [("fallback", "plantest::odd")]
    called = signature(tape)
    assert len(called.host_inputs) == len(called.host_outputs) == 1


def test_memory_that_autograd_keeps_is_found() -> None:
    model = nn.Sequential(*[nn.Linear(2048, 2048), nn.Tanh()] * 4)
    findings = tape_of(model, [torch.empty(4096, 2048)]).findings
    assert [f.kind for f in findings] == ["memory"]
    with torch.no_grad():
        assert not tape_of(model, [torch.empty(4096, 2048)]).findings


def test_the_flops_are_those_of_the_products() -> None:
    model = nn.Linear(64, 32, bias=False)
    assert tape_of(lambda x: model(x).sum().backward(), [torch.empty(16, 64)]).model_flops == 2 * 2 * 16 * 64 * 32
    with_input = torch.empty(16, 64, requires_grad=True)
    assert tape_of(lambda x: model(x).sum().backward(), [with_input]).model_flops == 3 * 2 * 16 * 64 * 32


def test_what_is_computed_again_counts_once() -> None:
    plain, again = (tape_of(*training(Layers(remat=remat))[:2]) for remat in (False, True))
    assert plain.model_flops == plain.flops == again.model_flops > 0
    layers = 5 * 2 * (2 * 24 * 8 * 16)  # two products of a layer, 24 tokens
    assert again.flops - again.model_flops in (layers, layers // 2)  # the last product's result is not needed again


def test_tokens_and_examples_are_those_of_the_first_argument() -> None:
    step, inputs, _ = training(Layers(layers=1))
    tape = tape_of(step, inputs)
    assert (tape.examples, tape.tokens) == (4, 24)


def test_random_numbers_are_drawn_under_keys() -> None:
    tape = tape_of(lambda x: nn.functional.dropout(x, 0.5), [torch.ones(3)])
    assert signature(tape).draws == 1


def test_a_parameter_that_is_not_used_is_noted() -> None:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(2, 2), nn.Linear(100, 100)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(x)

    assert tape_of(Unused(), [torch.ones(1, 2)]).idle == (("unused.weight", 40000), ("unused.bias", 400))


def test_a_model_on_the_meta_device_is_planned_as_it_is() -> None:
    with torch.device("meta"):
        step, inputs, _ = training(Layers(layers=2))
    step(*inputs)
    real, inputs_real, _ = training(Layers(layers=2))
    assert [o.name for o in tape_of(step, inputs).operations] == [o.name for o in tape_of(real, inputs_real).operations]


def test_attention_is_one_operation_with_the_flops_of_its_products() -> None:
    query = torch.empty(2, 4, 512, 64, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
    key, value = (torch.empty(2, 2, 256, 64, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))

    def step(query: torch.Tensor) -> None:
        nn.functional.scaled_dot_product_attention(query, key, value, enable_gqa=True).sum().backward()

    tape = tape_of(step, [query])
    names = [o.name for o in tape.operations if "attention" in o.name]
    whole = "aten::_scaled_dot_product_fused_attention_overrideable"
    assert names == [whole, f"{whole}_backward"]
    assert tape.model_flops == (2 + 5) * 2 * 2 * 4 * 512 * 256 * 64
