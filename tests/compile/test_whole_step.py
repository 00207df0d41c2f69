"""Forward, backward and optimizer as one program, held against the same training with each as a program of its own.

More of it, minutes: `make whole-step` (whole_step.py).
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ..conftest import DEVICE
from .training import WHOLE, Training, both, compiled, module, plain, steps


def test_a_step_is_one_program_that_donates_and_later_steps_compile_nothing() -> None:
    training = both(plain)
    report = module.compiler.report()
    (step,) = report.steps
    assert [g.kind for g in step.graphs] == ["forward", "backward"] and step.ops > 0
    assert f"program of forward graph 2 + backward graph 3 + {step.ops} ops" in str(report)
    # Parameters, both moments, statistics: all is updated in place.
    donated = step.program.donated_bytes
    assert donated is not None and donated >= 3 * sum(p.nbytes for p in training.net.parameters())
    before = compiled()
    training.step()
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


def test_a_wrong_index_is_named_and_spoils_what_depends_on_it() -> None:
    training = Training(WHOLE)
    training.step()
    training.rows = torch.tensor([3, 12] * 12).to(DEVICE)
    training.step()
    with pytest.raises(IndexError, match=r"aten::embedding: index 12 is out of bounds .*training.py"):
        module.synchronize()
    with pytest.raises(IndexError, match="index 12"):
        training.net.table.weight.sum().item()


def test_the_option_is_a_bool() -> None:
    with pytest.raises(Exception, match="whole_step='yes': expected True or False"):
        torch.compile(nn.Linear(2, 2).to(DEVICE), backend="pjrt", options={"whole_step": "yes"})(
            torch.ones(1, 2, device=DEVICE)
        )


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
