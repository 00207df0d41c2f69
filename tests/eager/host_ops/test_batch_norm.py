"""The parts of synchronized batch normalization, put together for one process, are batch normalization."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from torch_pjrt.runtime.metrics import METRICS

from ...conftest import DEVICE
from ..agree import agree


def test_the_parts_make_batch_norm_and_its_gradient() -> None:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(6, 3, 4), torch.rand(3) + 0.5, torch.randn(3)
    grad, mean, var = torch.randn(6, 3, 4), torch.randn(3), torch.rand(3)
    leaves = [t.clone().requires_grad_() for t in (x, weight, bias)]
    expected_mean, expected_var = mean.clone(), var.clone()
    expected = F.batch_norm(leaves[0], expected_mean, expected_var, leaves[1], leaves[2], training=True, momentum=0.2)
    expected.backward(grad)

    x, weight, bias, grad, mean, var = (t.to(DEVICE) for t in (x, weight, bias, grad, mean, var))
    # Two "processes" of three samples each.
    stats = [torch.batch_norm_stats(part, 1e-5) for part in x.chunk(2)]
    counts = torch.tensor([12.0, 12.0], device=DEVICE)
    m, invstd = torch.batch_norm_gather_stats_with_counts(
        x, torch.stack([s[0] for s in stats]), torch.stack([s[1] for s in stats]), mean, var, 0.2, 1e-5, counts
    )
    torch.testing.assert_close(torch.batch_norm_elemt(x, weight, bias, m, invstd, 1e-5).cpu(), expected.detach())
    torch.testing.assert_close(mean.cpu(), expected_mean)
    torch.testing.assert_close(var.cpu(), expected_var)
    sums = torch.batch_norm_backward_reduce(grad, x, m, invstd, weight, True, True, True)
    dx = torch.batch_norm_backward_elemt(grad, x, m, invstd, weight, sums[0], sums[1], counts.int())
    for got, leaf in zip((dx, sums[2], sums[3]), leaves, strict=True):
        assert leaf.grad is not None
        torch.testing.assert_close(got.cpu(), leaf.grad, rtol=1e-4, atol=1e-5)


def test_update_stats_moves_the_running_ones() -> None:
    x, mean, var = torch.randn(6, 3, 4), torch.zeros(3), torch.ones(3)
    given = [t.to(DEVICE) for t in (x, mean, var)]
    expected = torch.batch_norm_update_stats(x, mean, var, 0.3)
    got = torch.batch_norm_update_stats(*given, 0.3)
    for g, e in zip((*got, *given[1:]), (*expected, mean, var), strict=True):
        torch.testing.assert_close(g.cpu(), e)


def test_results_and_running_statistics_are_written_on_the_device() -> None:
    def program(device: str) -> list[Tensor]:
        x, ones = torch.arange(24.0, device=device).reshape(2, 3, 4), torch.ones(3, device=device)
        mean, var = torch.zeros(3, device=device), torch.ones(3, device=device)
        outs = [torch.empty(0, device=device), torch.empty(3, 2, device=device)[:, 0], torch.empty(3, device=device)]
        made = torch._native_batch_norm_legit(x, ones, ones, mean, var, True, 0.1, 1e-5, out=outs)
        assert all(m is o for m, o in zip(made, outs, strict=True))
        out, m, s = (torch.empty(0, device=device) for _ in range(3))
        reserve = torch.empty(0, dtype=torch.uint8, device=device)
        with_update = torch.ops.aten._batch_norm_with_update.out
        with_update(x, ones, ones, mean, var, 0.1, 1e-5, out=out, save_mean=m, save_invstd=s, reserve=reserve)
        return [*outs, out, m, s, mean, var]

    before = sum(METRICS.fallbacks.values())
    agree(program)
    assert sum(METRICS.fallbacks.values()) == before
