"""Forward, backward and optimizer as one program, held against the same training with each as a program of its own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ..conftest import DEVICE
from ..process import output

module = getattr(torch, DEVICE)
WHOLE, PARTS = {"whole_step": True}, {"whole_step": False}


class Net(nn.Module):
    """Draws, has statistics, looks rows up."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(12, 16)
        self.body = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Dropout(0.25), nn.BatchNorm1d(16), nn.Linear(16, 3))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.body(self.table(rows))
        return made


@dataclass
class Training:
    """A net in training on the device, compiled with `options`."""

    options: dict[str, Any]
    optimizer: str = "AdamW"
    settings: dict[str, Any] = field(default_factory=dict)
    losses: list[torch.Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        self.net = Net().to(DEVICE)
        self.forward = torch.compile(self.net, backend="pjrt", options=self.options)
        self.optim = getattr(torch.optim, self.optimizer)(self.net.parameters(), lr=1e-2, **self.settings)
        self.rows = (torch.arange(24) * 7 % 12).to(DEVICE)
        self.target = (torch.arange(24) % 3).to(DEVICE)

    def loss(self) -> torch.Tensor:
        return nn.functional.cross_entropy(self.forward(self.rows), self.target)

    def step(self) -> None:
        self.optim.zero_grad()
        loss = self.loss()
        loss.backward()
        self.optim.step()
        self.losses.append(loss.detach())

    def state(self) -> dict[str, torch.Tensor]:
        """All that training changes, on the CPU."""
        found = {f"loss {i}": loss for i, loss in enumerate(self.losses)} | self.net.state_dict()
        for name, parameter in self.net.named_parameters():
            found |= {f"{name} {key}": t for key, t in self.optim.state[parameter].items()}
            if parameter.grad is not None:
                found[f"{name} grad"] = parameter.grad
        return {name: t.detach().cpu() for name, t in found.items() if isinstance(t, torch.Tensor)}


def equal(whole: Training, parts: Training, rtol: float = 1e-4, atol: float = 1e-6) -> None:
    ours, theirs = whole.state(), parts.state()
    assert ours.keys() == theirs.keys()
    for name, t in theirs.items():
        torch.testing.assert_close(ours[name], t, rtol=rtol, atol=atol, msg=lambda m, n=name: f"{n}: {m}")


def both(train: Callable[[Training], None], **settings: Any) -> Training:
    """The training as one program a step, once it is the same as in parts."""
    parts = Training(PARTS, **settings)
    train(parts)
    torch._dynamo.reset()
    assert not module.compiler.report().steps
    whole = Training(WHOLE, **settings)
    train(whole)
    equal(whole, parts)
    return whole


def steps() -> list[tuple[list[str], int]]:
    """Of each program of several graphs, or of a graph and ops: the graphs' kinds, and how many ops."""
    return [([g.kind for g in s.graphs], s.ops) for s in module.compiler.report().steps]


def compiled() -> int:
    return int(module.metrics()["executables_compiled"])


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path


def plain(training: Training) -> None:
    for _ in range(4):
        training.step()


@pytest.mark.parametrize("settings", [{}, {"fused": True}, {"foreach": False}, {"capturable": True}], ids=str)
def test_a_step_is_one_program_and_changes_what_the_parts_do(settings: dict[str, Any]) -> None:
    both(plain, settings=settings)
    ((kinds, ops),) = steps()
    assert kinds == ["forward", "backward"] and ops > 0


@pytest.mark.parametrize("optimizer", ["SGD", "RMSprop", "Adafactor"])
def test_other_optimizers(optimizer: str) -> None:
    both(plain, optimizer=optimizer)
    assert all(kinds == ["forward", "backward"] for kinds, _ in steps())


def test_parameters_and_optimizer_state_are_donated() -> None:
    training = Training(WHOLE)
    plain(training)
    (step,) = module.compiler.report().steps
    trained = sum(p.nbytes for p in training.net.parameters())
    assert step.program.donated_bytes is not None
    assert step.program.donated_bytes >= 3 * trained


def test_later_steps_and_a_second_model_compile_nothing() -> None:
    plain(Training(WHOLE))
    before = compiled()
    plain(Training(WHOLE))
    assert compiled() == before


def test_a_compiled_step_function_is_one_program() -> None:
    def train(training: Training) -> None:
        def step() -> torch.Tensor:
            training.optim.zero_grad(set_to_none=True)
            loss = nn.functional.cross_entropy(training.net(training.rows), training.target)
            loss.backward()
            training.optim.step()
            return loss.detach()

        run = torch.compile(step, backend="pjrt", options=training.options)
        training.losses += [run() for _ in range(4)]

    both(train)
    assert steps()[-1][0] == ["forward", "backward", "inference"]


def test_a_compiled_optimizer_joins_the_step() -> None:
    def train(training: Training) -> None:
        training.optim.step = torch.compile(training.optim.step, backend="pjrt", options=training.options)
        plain(training)

    both(train)
    assert steps()[-1][0] == ["forward", "backward", "inference"]


@pytest.mark.parametrize("read", ["loss", "gradient", "hook"])
def test_a_value_read_in_the_middle_parts_the_step(read: str) -> None:
    seen: list[float] = []

    def train(training: Training) -> None:
        if read == "hook":
            training.net.table.weight.register_hook(lambda g: seen.append(g.sum().item()))
        for _ in range(4):
            training.optim.zero_grad()
            loss = training.loss()
            if read == "loss":
                seen.append(loss.item())
            loss.backward()
            if read == "gradient":
                seen.append(training.net.table.weight.grad.square().sum().item())  # type: ignore[union-attr]
            training.optim.step()
            training.losses.append(loss.detach())

    both(train)
    assert seen[:4] == pytest.approx(seen[4:], rel=1e-4, abs=1e-6)
    kinds = [kinds for kinds, _ in steps()]
    assert ["forward", "backward"] not in kinds if read == "loss" else ["forward", "backward"] in kinds


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


def test_gradient_accumulation() -> None:
    def train(training: Training) -> None:
        for _ in range(3):
            training.optim.zero_grad()
            for _ in range(2):
                loss = training.loss() / 2
                loss.backward()
                training.losses.append(loss.detach())
            training.optim.step()

    both(train)
    assert max(kinds.count("forward") for kinds, _ in steps()) == 1


def test_gradients_that_are_zeroed_in_place() -> None:
    def train(training: Training) -> None:
        for _ in range(4):
            training.step()
            training.optim.zero_grad(set_to_none=False)

    both(train)


def test_clipping_and_a_learning_rate_schedule_compile_nothing_new() -> None:
    made: list[int] = []

    def train(training: Training) -> None:
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(training.optim, 10)
        for _ in range(5):
            training.optim.zero_grad()
            loss = training.loss()
            loss.backward()
            nn.utils.clip_grad_norm_(training.net.parameters(), 0.1)
            training.optim.step()
            schedule.step()
            training.losses.append(loss.detach())
            made.append(compiled())

    both(train)
    assert made[-1] == made[-4]


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


def test_recomputed_activations_stay_recomputed() -> None:
    def train(training: Training) -> None:
        def forward(rows: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = torch.utils.checkpoint.checkpoint(training.net, rows, use_reentrant=False)
            return made

        training.forward = torch.compile(forward, backend="pjrt", options=training.options)
        plain(training)

    both(train)
    assert not steps()  # XLA:CPU would find the two computations equal


def test_a_block_that_is_compiled_by_itself_stays_a_program_of_its_own() -> None:
    def train(training: Training) -> None:
        blocks = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(4))).to(DEVICE)
        for block in blocks:
            block.compile(backend="pjrt", options=training.options)
        optimizer = torch.optim.SGD(blocks.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            loss = blocks(torch.ones(2, 8, device=DEVICE)).square().mean()
            loss.backward()
            optimizer.step()
            training.losses.append(loss.detach())

    both(train)
    assert not steps()


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


def test_a_wrong_index_is_named_and_spoils_what_depends_on_it() -> None:
    training = Training(WHOLE)
    training.step()
    training.rows = torch.tensor([3, 12] * 12).to(DEVICE)
    training.step()
    with pytest.raises(IndexError, match=r"aten::embedding: index 12 is out of bounds .*test_whole_step.py"):
        module.synchronize()
    with pytest.raises(IndexError, match="index 12"):
        training.net.table.weight.sum().item()


def test_options_of_xla_hold_for_the_whole_step() -> None:
    def train(training: Training) -> None:
        options = {**training.options, "xla_cpu_enable_fast_math": False}
        training.forward = torch.compile(training.net, backend="pjrt", options=options)
        plain(training)

    both(train)
    assert steps()


def test_the_report_lists_graphs_of_a_step_under_it() -> None:
    plain(Training(WHOLE))
    text = str(module.compiler.report())
    assert "program of forward graph 0 + backward graph 1 + " in text
    assert "graph 0 (forward)" in text


def test_the_option_is_a_bool() -> None:
    with pytest.raises(Exception, match="whole_step='yes': expected True or False"):
        torch.compile(nn.Linear(2, 2).to(DEVICE), backend="pjrt", options={"whole_step": "yes"})(
            torch.ones(1, 2, device=DEVICE)
        )


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


def test_a_step_by_torch_func_is_one_graph() -> None:
    def loss_of(net: nn.Module, weights: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(torch.func.functional_call(net, weights, (x,)), y)

    def step(
        weights: dict[str, torch.Tensor],
        first: dict[str, torch.Tensor],
        second: dict[str, torch.Tensor],
        turn: torch.Tensor,
        x: torch.Tensor,
        y: torch.Tensor,
    ) -> torch.Tensor:
        """AdamW (Loshchilov & Hutter 2019), in place."""
        gradients, loss = torch.func.grad_and_value(lambda w: loss_of(net, w, x, y))(weights)
        turn.add_(1)
        for name, w in weights.items():
            m, v, g = first[name], second[name], gradients[name]
            m.lerp_(g, 0.1)
            v.mul_(0.999).addcmul_(g, g, value=0.001)
            w.mul_(1 - 1e-2 * 1e-2)
            w.sub_(1e-2 * (m / (1 - 0.9**turn)) / ((v / (1 - 0.999**turn)).sqrt() + 1e-8))
        return loss

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 3))
    x, y = torch.randn(8, 6), torch.arange(8) % 3
    reference = torch.optim.AdamW(net.parameters(), lr=1e-2)
    weights = {n: p.detach().to(DEVICE) for n, p in net.named_parameters()}
    state = [{n: torch.zeros_like(w) for n, w in weights.items()} for _ in range(2)]
    turn = torch.zeros((), device=DEVICE)
    net_there = net
    compiled_step = torch.compile(step, backend="pjrt", fullgraph=True)
    for _ in range(3):
        got = compiled_step(weights, *state, turn, x.to(DEVICE), y.to(DEVICE))
        reference.zero_grad()
        expected = nn.functional.cross_entropy(net_there(x), y)
        expected.backward()
        reference.step()
        torch.testing.assert_close(got.cpu(), expected.detach(), rtol=1e-4, atol=1e-5)
    for n, p in net.named_parameters():
        torch.testing.assert_close(weights[n].cpu(), p.detach(), rtol=1e-3, atol=1e-4)
    (graph,) = module.compiler.report().graphs
    (program,) = graph.programs
    assert program.donated_bytes == 3 * sum(w.nbytes for w in weights.values()) + 4
