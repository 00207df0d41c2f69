"""Further training programs as whole steps: minutes, so not a part of `make test`. `make whole-step` runs them."""

from __future__ import annotations

import copy
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ..conftest import DEVICE
from ..process import output
from .training import PARTS, WHOLE, Training, both, equal, module, plain, steps


@pytest.mark.parametrize("settings", [{}, {"fused": True}, {"foreach": False}, {"capturable": True}], ids=str)
def test_a_step_is_one_program_and_changes_what_the_parts_do(settings: dict[str, Any]) -> None:
    both(plain, settings=settings)
    ((kinds, ops),) = steps()
    assert kinds == ["forward", "backward"] and ops > 0


@pytest.mark.parametrize("optimizer", ["SGD", "RMSprop", "Adafactor"])
def test_other_optimizers(optimizer: str) -> None:
    both(plain, optimizer=optimizer)
    assert all(kinds == ["forward", "backward"] for kinds, _ in steps())


def test_a_compiled_optimizer_joins_the_step() -> None:
    def train(training: Training) -> None:
        training.optim.step = torch.compile(training.optim.step, backend="pjrt", options=training.options)
        plain(training)

    both(train)
    assert steps()[-1][0] == ["forward", "backward", "inference"]


def test_reading_now_here_now_there_compiles_a_bounded_number_of_large_programs() -> None:
    def train(training: Training) -> None:
        for n in range(14):
            training.optim.zero_grad()
            loss = training.loss()
            loss.backward()
            with torch.no_grad():
                for parameter in list(training.net.parameters())[:n]:
                    parameter.grad *= 0.5  # type: ignore[operator]
            loss.item()
            training.optim.step()
            training.losses.append(loss.detach())

    both(train)
    assert sum("forward" in kinds for kinds, _ in steps()) <= 8


def test_gradients_that_are_zeroed_in_place() -> None:
    def train(training: Training) -> None:
        for _ in range(4):
            training.step()
            training.optim.zero_grad(set_to_none=False)

    both(train)


@pytest.mark.parametrize("fused", [False, True])
def test_autocast_and_a_gradient_scaler_that_finds_infinities(fused: bool) -> None:
    scales: list[float] = []

    def train(training: Training) -> None:
        scaler = torch.amp.GradScaler(DEVICE, init_scale=2.0**10, growth_interval=2)
        for n in range(5):
            training.optim.zero_grad()
            with torch.autocast(DEVICE, dtype=torch.bfloat16):
                loss = training.loss() * (float("inf") if n == 2 else 1.0)
            scaler.scale(loss).backward()
            scaler.step(training.optim)
            scaler.update()
            training.losses.append(loss.detach())
            scales.append(scaler.get_scale())

    parts, whole = Training(PARTS, settings={"fused": fused}), None
    train(parts)
    whole = Training(WHOLE, settings={"fused": fused})
    train(whole)
    equal(whole, parts, rtol=5e-2, atol=5e-3)
    assert scales[:5] == scales[5:] == [1024, 2048, 1024, 1024, 2048]


def test_gradients_stay_readable_and_state_dicts_load() -> None:
    training = both(plain)
    held = copy.deepcopy(training.optim.state_dict())
    fresh = Training(WHOLE)
    fresh.net.load_state_dict(training.net.state_dict())
    fresh.optim.load_state_dict(held)
    fresh.losses = list(training.losses)
    for each in (training, fresh):
        torch.manual_seed(1)
        each.step()
    equal(fresh, training)


def test_a_graph_that_is_kept_can_be_gone_through_again() -> None:
    def train(training: Training) -> None:
        for _ in range(2):
            training.optim.zero_grad()
            loss = training.loss()
            loss.backward(retain_graph=True)
            loss.backward()
            training.optim.step()
            training.losses.append(loss.detach())

    both(train)


def test_an_optimizer_that_steps_in_the_backward_pass() -> None:
    def train(training: Training) -> None:
        ours = {p: torch.optim.SGD([p], lr=0.1) for p in training.net.parameters()}

        def update(parameter: torch.Tensor) -> None:
            ours[parameter].step()  # type: ignore[index]
            ours[parameter].zero_grad()  # type: ignore[index]

        for parameter in training.net.parameters():
            parameter.register_post_accumulate_grad_hook(update)
        for _ in range(3):
            loss = training.loss()
            loss.backward()
            training.losses.append(loss.detach())

    both(train)


def test_two_networks_that_train_each_other() -> None:
    def train(training: Training) -> None:
        judge = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)).to(DEVICE)
        judged = torch.compile(judge, backend="pjrt", options=training.options)
        other = torch.optim.SGD(judge.parameters(), lr=0.1)
        for _ in range(3):
            made = training.forward(training.rows)
            other.zero_grad()
            (judged(made.detach()).mean() - judged(-made.detach()).mean()).backward()
            other.step()
            training.optim.zero_grad()
            (-judged(made).mean()).backward()
            training.optim.step()
            training.losses.append(judged(made.detach()).mean().detach())

    both(train)


def test_a_forward_pass_that_no_backward_pass_follows_is_a_program_of_its_own() -> None:
    training = Training(WHOLE)
    for n in range(3):
        (training.forward(training.rows) * float(n)).sum().item()
    assert not steps()
    assert [len(g.programs) for g in module.compiler.report().graphs] == [1]


def test_sizes_that_change_keep_their_programs() -> None:
    def train(training: Training) -> None:
        for n in (9, 24, 12, 18):
            training.rows = (torch.arange(n) * 7 % 12).to(DEVICE)
            training.target = (torch.arange(n) % 3).to(DEVICE)
            training.step()

    both(train)


def test_strict_mode_runs_each_graph_at_its_call() -> None:
    def train(training: Training) -> None:
        with module.eager_mode("strict"):
            plain(training)

    both(train)
    assert not steps()


def test_options_of_xla_hold_for_the_whole_step() -> None:
    def train(training: Training) -> None:
        options = {**training.options, "xla_cpu_enable_fast_math": False}
        training.forward = torch.compile(training.net, backend="pjrt", options=options)
        plain(training)

    both(train)
    assert steps()


def test_targets_that_arrive_after_the_forward_pass_do_not_part_the_step() -> None:
    def train(training: Training) -> None:
        training.rows = (torch.arange(2400) * 7 % 12).to(DEVICE)
        for _ in range(3):
            training.optim.zero_grad()
            made = training.forward(training.rows)
            loss = nn.functional.cross_entropy(made, (torch.arange(2400) % 3).to(DEVICE))
            loss.backward()
            training.optim.step()
            training.losses.append(loss.detach())

    both(train)
    assert len(steps()) == 1


def test_outputs_that_are_views_and_weights_that_are_tied() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(12, 8)

        def forward(self, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
            y = nn.functional.linear(self.table(rows), self.table.weight)
            return y, y.view(-1), y[:, :3], rows

    def train(training: Training) -> None:
        torch.manual_seed(1)
        net = Tied().to(DEVICE)
        forward = torch.compile(net, backend="pjrt", options=training.options)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.05)
        for _ in range(3):
            optimizer.zero_grad()
            y, flat, part, _ = forward(training.rows)
            (y.square().mean() + flat.sum() * 0.01 + part.mean()).backward()
            optimizer.step()
            with torch.no_grad():
                part.zero_()
            training.losses.append(y.detach().sum())
        training.losses.append(net.table.weight.detach())

    both(train)


def test_a_hook_that_raises_leaves_what_came_before_it() -> None:
    def refuse(gradient: torch.Tensor) -> None:
        raise ValueError("no")

    def train(training: Training) -> None:
        training.step()
        hook = training.net.table.weight.register_hook(refuse)
        with pytest.raises(ValueError, match="no"):
            training.step()
        hook.remove()
        training.step()

    both(train)


def test_threads_that_train_at_once() -> None:
    def train(number: int, options: dict[str, Any], into: dict[int, torch.Tensor]) -> None:
        net = nn.Linear(8, 4).to(DEVICE)
        with torch.no_grad():
            net.weight.fill_(0.1 * number)
            net.bias.zero_()
        forward = torch.compile(net, backend="pjrt", options=options)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(10):
            optimizer.zero_grad()
            forward(torch.ones(2, 8, device=DEVICE)).square().mean().backward()
            optimizer.step()
        into[number] = net.weight.detach().cpu()

    alone: dict[int, torch.Tensor] = {}
    together: dict[int, torch.Tensor] = {}
    for number in range(1, 4):
        train(number, PARTS, alone)
    threads = [threading.Thread(target=train, args=(n, WHOLE, together)) for n in range(1, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, weight in alone.items():
        torch.testing.assert_close(together[number], weight)


def test_a_dump_has_the_graphs_of_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_PJRT_DUMP", str(tmp_path))
    plain(Training(WHOLE))
    (text,) = (t for t in (f.read_text() for f in tmp_path.glob("trace_*.txt")) if "forward graph" in t)
    assert "backward graph" in text and "aten::embedding" in text and "training.py" in text


PROGRAM = """
import torch
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2)).to("pjrt")
forward = torch.compile(net, backend="pjrt", options={"whole_step": True})
optimizer = torch.optim.AdamW(net.parameters())
for _ in range(3):
    optimizer.zero_grad()
    loss = forward(torch.ones(3, 4).to("pjrt")).square().mean()
    loss.backward()
    optimizer.step()
print(loss.item(), net[0].weight.sum().item())
metrics = torch.pjrt.metrics()
print(metrics["executables_compiled"], metrics["executables_loaded"])
print([s.program.origin for s in torch.pjrt.compiler.report().steps])
"""


def test_another_process_loads_the_step(tmp_path: Path) -> None:
    first, second = (output(PROGRAM, TORCH_PJRT_CACHE_DIR=str(tmp_path)).splitlines() for _ in range(2))
    assert first[0] == second[0]
    assert second[1].startswith("0 ")
    assert second[2] == "['loaded']"


INTERRUPTED = """
import os, signal, threading, time, torch
from torch import nn
from torch_pjrt.runtime import executable
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)).to("pjrt")
forward = torch.compile(net, backend="pjrt", options={"whole_step": True})
optimizer = torch.optim.AdamW(net.parameters())
x = torch.linspace(-1, 1, 12).reshape(3, 4).to("pjrt")
compile, wanted = executable._compile, {wanted}
def slowly(*args):
    global wanted
    wanted -= 1
    if wanted == 0:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.5)
    return compile(*args)
executable._compile = slowly
def step():
    optimizer.zero_grad()
    loss = forward(x).square().mean()
    {read}
    loss.backward()
    optimizer.step()
    return loss
try:
    step()
    print("not interrupted")
except KeyboardInterrupt:
    print("interrupted")
print(step().item(), net[0].weight.sum().item(), net[1].running_mean.sum().item(), int(net[1].num_batches_tracked))
"""


@pytest.mark.parametrize(("read", "wanted"), [("", 2), ("loss.item()", 1), ("loss.item()", 2)])
def test_ctrl_c_while_a_step_is_compiled_loses_nothing(read: str, wanted: int) -> None:
    lines = output(INTERRUPTED.replace("{read}", read).replace("{wanted}", str(wanted))).splitlines()
    undisturbed = output(INTERRUPTED.replace("{read}", read).replace("{wanted}", "-1")).splitlines()
    assert lines[0] == "interrupted" and undisturbed[0] == "not interrupted"
    # The pass that was interrupted at its loss is a forward pass more, the one interrupted at its end a step more.
    assert lines[1].split()[-1] == undisturbed[1].split()[-1] == "2"
