"""Random numbers: the keys that eager draws, new ones for every call, the forward pass's in the backward pass."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ..conftest import DEVICE

module = getattr(torch, DEVICE)


def test_a_seed_gives_the_numbers_that_eager_draws() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = nn.functional.dropout(x, 0.4)
        return y, torch.rand_like(x) + torch.randn(3, 4, device=x.device), y.bernoulli(0.5)

    x = torch.ones(3, 4, device=DEVICE)
    compiled = torch.compile(fn, backend="pjrt")
    torch.manual_seed(7)
    expected = [t.cpu() for t in (*fn(x), *fn(x))]
    after = module.get_rng_state()
    torch.manual_seed(7)
    got = [t.cpu() for t in (*compiled(x), *compiled(x))]
    for a, b in zip(got, expected, strict=True):
        assert torch.equal(a, b)
    assert torch.equal(module.get_rng_state(), after)
    assert not torch.equal(got[0], got[3])


def test_the_backward_pass_uses_the_mask_of_the_forward_pass() -> None:
    x = torch.ones(64, device=DEVICE, requires_grad=True)
    compiled = torch.compile(lambda t: nn.functional.dropout(t * 2, 0.5), backend="pjrt")
    for _ in range(2):
        x.grad = None
        y = compiled(x)
        y.sum().backward()
        assert torch.equal(x.grad.cpu(), y.detach().cpu())
        assert {0.0, 4.0} == set(y.tolist())


def test_a_checkpointed_region_recomputes_the_same_numbers() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 8)).to(DEVICE)

    def fn(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(net, x, use_reentrant=False)

    x = torch.randn(4, 8, device=DEVICE, requires_grad=True)
    torch.manual_seed(3)
    net(x).square().sum().backward()
    expected = [p.grad.cpu() for p in net.parameters()] + [x.grad.cpu()]
    for p in (*net.parameters(), x):
        p.grad = None
    torch.manual_seed(3)
    torch.compile(fn, backend="pjrt", fullgraph=True)(x).square().sum().backward()
    for p, e in zip((*net.parameters(), x), expected, strict=True):
        torch.testing.assert_close(p.grad.cpu(), e)


def test_equal_random_calls_draw_different_numbers() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.rand_like(x) * x, torch.rand_like(x) * x

    x = torch.ones(8, device=DEVICE, requires_grad=True)
    a, b = torch.compile(fn, backend="pjrt")(x)
    assert not torch.equal(a.cpu(), b.cpu())


def test_a_random_op_needed_by_the_backward_pass_alone_draws_there() -> None:
    class Noisy(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: object, g: torch.Tensor) -> torch.Tensor:
            return g + torch.rand_like(g)

    x = torch.ones(5, device=DEVICE, requires_grad=True)
    compiled = torch.compile(lambda t: Noisy.apply(t), backend="pjrt")
    seen = []
    for _ in range(2):
        x.grad = None
        compiled(x).sum().backward()
        seen.append(x.grad.cpu())
    assert not torch.equal(seen[0], seen[1])
    assert all(((g >= 1) & (g < 2)).all() for g in seen)
