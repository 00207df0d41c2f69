"""Training steps: forward, backward and optimizer compiled, in the pieces that PyTorch makes of them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ..conftest import DEVICE

module = getattr(torch, DEVICE)


def train(device: str, optimizer: str, compile_what: str) -> list[float]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 3)).to(device)
    chosen = getattr(torch.optim, optimizer)(net.parameters(), lr=1e-2)
    x = torch.linspace(-1, 1, 48).reshape(8, 6).to(device)
    target = (torch.arange(8) % 3).to(device)

    def forward_backward() -> torch.Tensor:
        loss = nn.functional.cross_entropy(net(x), target)
        loss.backward()
        return loss.detach()

    def step() -> torch.Tensor:
        chosen.zero_grad()
        loss = forward_backward()
        chosen.step()
        return loss

    if compile_what == "step":
        step = torch.compile(step, backend="pjrt")
    elif compile_what == "optimizer":
        chosen.step = torch.compile(chosen.step, backend="pjrt")
    elif compile_what == "forward and backward":
        forward_backward = torch.compile(forward_backward, backend="pjrt", fullgraph=True)
    return [step().item() for _ in range(4)]


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
@pytest.mark.parametrize("what", ["step", "optimizer"])
def test_a_compiled_step_follows_the_cpu(optimizer: str, what: str) -> None:
    assert train(DEVICE, optimizer, what) == pytest.approx(train("cpu", optimizer, "nothing"), rel=1e-4)
    report = module.compiler.report()
    # Dynamo watches all Python frames after a graph break; it must not take ours, or JAX's, for the user's program.
    assert not [where for where, _ in report.graph_breaks if "torch_pjrt/" in where or "jax" in where]
    update = report.graphs[-1]
    assert update.kind == "inference"
    assert update.programs[-1].donated_bytes == (1 if optimizer == "SGD" else 3) * 4 * (6 * 16 + 16 + 32 + 16 * 3 + 3)


@torch._dynamo.config.patch(trace_autograd_ops=True)
def test_forward_and_backward_are_one_graph_where_dynamo_traces_backward() -> None:
    assert train(DEVICE, "SGD", "forward and backward") == pytest.approx(train("cpu", "SGD", "nothing"), rel=1e-4)
    assert module.compiler.report().graphs[0].kind == "inference"


@torch._dynamo.config.patch(compiled_autograd=True)
def test_compiled_autograd_captures_the_backward_pass() -> None:
    assert train(DEVICE, "SGD", "step") == pytest.approx(train("cpu", "SGD", "nothing"), rel=1e-4)
    assert {g.kind for g in module.compiler.report().graphs} == {"forward", "inference"}


def test_gradients_by_torch_func_are_one_graph_with_the_update() -> None:
    net = nn.Linear(4, 2)
    x, y = torch.randn(8, 4), torch.randn(8, 2)

    def step(weights: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        def loss(w: dict[str, torch.Tensor]) -> torch.Tensor:
            return (torch.func.functional_call(net, w, (x,)) - y).square().mean()

        gradients, value = torch.func.grad_and_value(loss)(weights)
        for name, w in weights.items():
            w.sub_(gradients[name], alpha=0.1)
        return value

    ours = {n: p.detach().to(DEVICE) for n, p in net.named_parameters()}
    theirs = {n: p.detach().clone() for n, p in net.named_parameters()}
    compiled = torch.compile(step, backend="pjrt", fullgraph=True)
    for _ in range(3):
        expected = step(theirs, x, y)
        assert compiled(ours, x.to(DEVICE), y.to(DEVICE)).item() == pytest.approx(expected.item(), rel=1e-4)
    for n, w in ours.items():
        torch.testing.assert_close(w.cpu(), theirs[n])
    (graph,) = module.compiler.report().graphs
    assert graph.programs[0].donated_bytes == 4 * 10
