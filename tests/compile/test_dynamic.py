"""Sizes that change: Dynamo's graph is kept, each new size is a program of its own, and the values are the size's."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ..conftest import DEVICE
from .check import same

module = getattr(torch, DEVICE)


class Attention(nn.Module):
    """One causal block with everything in it that a padded size would get wrong: softmax, means, norms, masks."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.qkv = nn.Linear(8, 24)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 11)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        q, k, v = self.qkv(self.norm(x)).view(*ids.shape, 3, 2, 4).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + y.transpose(1, 2).reshape(x.shape)
        return self.head(x) - x.mean((1, 2), keepdim=True)


@pytest.mark.parametrize("dynamic", [None, True])
def test_every_length_matches_the_cpu_forward_and_backward(dynamic: bool | None) -> None:
    torch.manual_seed(0)
    net = Attention()
    there = Attention().to(DEVICE)
    there.load_state_dict(net.state_dict())
    compiled = torch.compile(there, backend="pjrt", dynamic=dynamic, fullgraph=True)
    for length in (5, 7, 3, 7, 1, 12):
        ids = torch.arange(2 * length).reshape(2, length) % 11
        loss = nn.functional.cross_entropy(net(ids).flatten(0, 1), ids.flatten())
        got = nn.functional.cross_entropy(compiled(ids.to(DEVICE)).flatten(0, 1), ids.flatten().to(DEVICE))
        net.zero_grad()
        there.zero_grad()
        loss.backward()
        got.backward()
        same(got, loss, rtol=1e-4, atol=1e-5)
        for p, q in zip(there.parameters(), net.parameters(), strict=True):
            same(p.grad, q.grad, rtol=1e-4, atol=1e-5)


def test_one_graph_serves_all_sizes_and_each_size_is_compiled_once() -> None:
    compiled = torch.compile(lambda x: torch.softmax(x, 0) * x.shape[0], backend="pjrt", dynamic=True)
    for n in (4, 9, 5, 9, 4):
        x = torch.randn(n)
        same(compiled(x.to(DEVICE)), torch.softmax(x, 0) * n)
    (graph,) = module.compiler.report().graphs
    assert sorted(p.sizes for p in graph.programs) == [(4,), (5,), (9,)]


def test_mark_dynamic_with_bounds() -> None:
    compiled = torch.compile(lambda x: x.cumsum(0) * x.shape[0], backend="pjrt", fullgraph=True)
    for n in (4, 6, 10):
        x = torch.randn(n)
        there = x.to(DEVICE)
        torch._dynamo.mark_dynamic(there, 0, min=2, max=64)
        same(compiled(there), x.cumsum(0) * n)
    assert len(module.compiler.report().graphs) == 1


def test_sizes_among_arguments_and_results() -> None:
    def fn(x: torch.Tensor, n: int) -> tuple[torch.Tensor, int, int]:
        return x.repeat(n).reshape(n, -1), x.shape[0] * n, n + 1

    compiled = torch.compile(fn, backend="pjrt", dynamic=True)
    for length, n in ((3, 2), (4, 5), (6, 3)):
        x = torch.randn(length)
        same(compiled(x.to(DEVICE), n), fn(x, n))


def test_a_growing_cache_that_is_written_to() -> None:
    cache, there = torch.zeros(8, 3), torch.zeros(8, 3, device=DEVICE)

    def append(cache: torch.Tensor, x: torch.Tensor, at: int) -> torch.Tensor:
        cache[at : at + x.shape[0]] = x
        return cache[: at + x.shape[0]].sum(0)

    compiled = torch.compile(append, backend="pjrt", dynamic=True)
    at = 0
    for n in (2, 1, 3):
        x = torch.randn(n, 3)
        same(compiled(there, x.to(DEVICE), at), append(cache, x, at))
        same(there, cache)
        at += n


@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True)
def test_shapes_that_depend_on_data() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        kept = (x * 2)[x > 0]
        return kept.sum() + kept.shape[0], x.nonzero() + 1

    compiled = torch.compile(fn, backend="pjrt", fullgraph=True)
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(9)
        same(compiled(x.to(DEVICE)), fn(x))


def test_a_float_argument_that_changes() -> None:
    compiled = torch.compile(lambda x, a: x * a + a, backend="pjrt")
    x = torch.randn(3)
    for a in (0.5, 0.25, -2.0, 1e-3):
        same(compiled(x.to(DEVICE), a), x * a + a)
