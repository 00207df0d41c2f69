"""Equal blocks are one program, called for each: the values are those of the whole graph, at every depth."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ..conftest import DEVICE
from .check import check_module, on_device, same

module = getattr(torch, DEVICE)
# The default is 8; fewer blocks test faster.
FROM_FOUR = {"scan_blocks": 4}


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.qkv = nn.Linear(8, 24)
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)
        self.dropout = dropout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).view(*x.shape[:2], 3, 2, 4).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + F.dropout(y.transpose(1, 2).reshape(x.shape), self.dropout, self.training)
        return x + F.dropout(self.down(F.gelu(self.up(x))), self.dropout, self.training)


class Tower(nn.Module):
    """Equal blocks between two layers of their own."""

    def __init__(self, depth: int, block: Callable[[], nn.Module] = Block) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.blocks = nn.ModuleList(block() for _ in range(depth))
        self.last = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, *more: Any) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x, *more)
        return self.last(x)


def check_inference(net: nn.Module, *args: torch.Tensor) -> None:
    """Assert that a module's output on the device, compiled, without gradients, is the CPU's."""
    there = copy.deepcopy(net).to(DEVICE)
    with torch.no_grad():
        compiled = torch.compile(there, backend="pjrt", fullgraph=True, options=FROM_FOUR)
        for _ in range(2):
            same(compiled(*map(on_device, args)), net(*args), rtol=1e-3, atol=1e-4)


def blocks() -> list[list[int]]:
    """How many blocks each graph has that are one program, by runs."""
    return [[count for count, _ in g.blocks] for g in module.compiler.report().graphs]


def programs() -> list[tuple[str, int]]:
    return [(p.origin, p.runs) for g in module.compiler.report().graphs for p in g.programs]


def test_outputs_and_gradients_are_the_cpus_and_blocks_are_found_in_both_passes() -> None:
    torch.manual_seed(0)
    check_module(Tower(6), torch.randn(2, 5, 8), rtol=1e-4, atol=1e-5, fullgraph=True, options=FROM_FOUR)
    forward, backward = blocks()
    assert forward == [6]
    assert len(backward) == 1
    assert backward[0] >= 5
    assert "6 equal blocks of" in str(module.compiler.report())


def test_a_deeper_model_compiles_the_same_number_of_programs() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 5, 8).to(DEVICE)
    made = []
    for depth in (5, 9):
        module.compiler.reset()
        torch.compile(Tower(depth).to(DEVICE), backend="pjrt", options=FROM_FOUR)(x).sum().backward()
        made.append(sum(origin == "compiled" for origin, _ in programs()))
        assert max(runs for _, runs in programs()) == depth
    # The deeper model's block is the other's, and what lies before and after it too.
    assert made == [made[0], 0]


def test_one_program_if_the_user_says_so_and_the_results_are_the_same() -> None:
    torch.manual_seed(0)
    net, x = Tower(5).to(DEVICE), torch.randn(2, 5, 8).to(DEVICE)
    found = []
    for scan in (False, 4):
        torch._dynamo.reset()
        module.compiler.reset()
        net.zero_grad()
        y = torch.compile(net, backend="pjrt", options={"scan_blocks": scan})(x)
        y.square().sum().backward()
        found.append([y.detach().cpu(), *(p.grad.cpu() for p in net.parameters())])
        assert [len(runs) for runs in blocks()] == [int(bool(scan))] * 2
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("wrong", [1, 2.5, "yes"])
def test_the_option_takes_a_bool_or_a_number_of_blocks(wrong: Any) -> None:
    with pytest.raises(Exception, match=f"option scan_blocks={wrong!r}: expected a bool, or a number of blocks"):
        torch.compile(lambda t: t * 2, backend="pjrt", options={"scan_blocks": wrong})(torch.ones(2, device=DEVICE))


def test_dropout_in_blocks_draws_what_eager_draws() -> None:
    torch.manual_seed(0)
    net, x = Tower(5, lambda: Block(0.4)).to(DEVICE), torch.randn(2, 5, 8).to(DEVICE)
    compiled = torch.compile(net, backend="pjrt", fullgraph=True, options=FROM_FOUR)
    results = []
    for call in (net, compiled):
        net.zero_grad()
        torch.manual_seed(7)
        y = [call(x), call(x)]
        assert not torch.equal(*y)
        y[0].sum().backward()
        results.append([*(t.detach().cpu() for t in y), *(p.grad.cpu() for p in net.parameters())])
    for got, expected in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    assert blocks()[0] == [5]


class Normed(nn.Module):
    """A residual block with batch norm: it writes to its own statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.norm(self.linear(x)).relu()


def test_each_block_updates_its_own_batch_norm_statistics() -> None:
    torch.manual_seed(0)
    check_module(Tower(6, Normed), torch.randn(12, 8), rtol=1e-4, atol=1e-5, fullgraph=True, options=FROM_FOUR)
    assert sum(blocks()[0]) >= 4
    body = next(p for p in module.compiler.report().graphs[0].programs if p.runs > 1)
    assert body.donated_bytes


class Cached(nn.Module):
    """A block that keeps what it has seen: row `at` of its cache is written, all of it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("cache", torch.zeros(6, 8))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        x = self.block(x[None])[0]
        self.cache.index_copy_(0, at, self.linear(x).tanh())
        return x + torch.softmax(x @ self.cache.T, -1) @ self.cache


def test_each_block_writes_to_its_own_cache_in_place() -> None:
    torch.manual_seed(0)
    net = Tower(5, Cached)
    there = copy.deepcopy(net).to(DEVICE)
    compiled = torch.compile(there, backend="pjrt", fullgraph=True, options=FROM_FOUR)
    with torch.no_grad():
        for i in range(3):
            x, at = torch.randn(1, 8), torch.tensor([i])
            same(compiled(x.to(DEVICE), at.to(DEVICE)), net(x, at), rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(there.buffers(), net.buffers(), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-4, atol=1e-5)
    assert blocks() == [[5]]
    body = next(p for p in module.compiler.report().graphs[0].programs if p.runs == 5)
    assert body.donated_bytes == 6 * 8 * 4


class Looked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 8)
        self.block = Block()

    def forward(self, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return self.block(x) + self.table(rows).cos()


def test_an_index_out_of_range_in_a_block_names_the_op_and_the_line() -> None:
    torch.manual_seed(0)
    net = Tower(5, Looked).to(DEVICE)
    compiled = torch.compile(net, backend="pjrt", options=FROM_FOUR)
    x = torch.randn(1, 3, 8).to(DEVICE)
    compiled(x, torch.tensor([0, 1, 3]).to(DEVICE)).sum().item()
    assert blocks()[0] == [5]
    with pytest.raises(IndexError, match=r"index 4 is out of bounds.*test_scanned_blocks.py"):
        compiled(x, torch.tensor([0, 4, 3]).to(DEVICE)).cpu()
    module.synchronize()  # the later blocks found it too, and it is said once


def test_one_block_applied_again_and_again_gets_all_its_gradients() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Block()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(6):
                x = self.block(x)
            return x

    torch.manual_seed(0)
    check_module(Recurrent(), torch.randn(2, 5, 8), rtol=1e-4, atol=1e-5, fullgraph=True, options=FROM_FOUR)
    assert blocks()[0][0] >= 5


class Ladder(nn.Module):
    """A U-Net's way: the k-th block of the way back takes what the k-th last of the way there made."""

    def __init__(self) -> None:
        super().__init__()
        self.there, self.back = (nn.ModuleList(Block() for _ in range(5)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        seen = []
        for block in self.there:
            x = block(x)
            seen.append(x)
        for block, before in zip(self.back, reversed(seen), strict=True):
            x = block(x * before.sigmoid())
        return [*seen, x]


def test_blocks_may_read_what_any_earlier_block_made() -> None:
    torch.manual_seed(0)
    check_inference(Ladder(), torch.randn(2, 5, 8))
    assert len(blocks()[0]) == 2


def test_layers_that_differ_are_not_taken_for_equal() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Block() for _ in range(9))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for i, block in enumerate(self.blocks):
                x = block(x) * 2 if i != 3 else block(x).relu() + x
            return x

    torch.manual_seed(0)
    check_inference(Scaled(), torch.randn(2, 5, 8))
    assert 4 <= sum(blocks()[0]) <= 5


def test_short_blocks_are_taken_together() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(*(layer for _ in range(40) for layer in (nn.Linear(8, 8), nn.Tanh())))
    check_inference(net, torch.randn(3, 8))
    assert 0 < sum(blocks()[0]) < 20


def test_a_branch_in_each_block() -> None:
    class Branched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)
            self.block = Block()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.linear(self.block(x))
            return x + torch.cond(y.sum() > 0, lambda t: t.sin(), lambda t: t.cos(), (y,))

    torch.manual_seed(0)
    check_inference(Tower(5, Branched), torch.randn(2, 5, 8))
    assert blocks() == [[5]]


def test_sizes_that_change_are_left_to_padding() -> None:
    torch.manual_seed(0)
    net = Tower(4)
    there = copy.deepcopy(net).to(DEVICE)
    compiled = torch.compile(there, backend="pjrt", dynamic=True, fullgraph=True, options=FROM_FOUR)
    with torch.no_grad():
        x = torch.randn(2, 5, 8)
        same(compiled(x.to(DEVICE)), net(x), rtol=1e-4, atol=1e-5)
    assert blocks() == [[]]


def test_an_op_without_a_lowering_between_blocks() -> None:
    @torch.library.custom_op("torch_pjrt_tests::in_between", mutates_args=())
    def in_between(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @in_between.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    class Interrupted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Block() for _ in range(5))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = block(x)
            return in_between(x).sin()

    check_inference(Interrupted(), torch.randn(2, 5, 8))
    assert [run for runs in blocks() for run in runs] == [5]


def test_the_memory_is_not_more_than_that_of_one_program() -> None:
    def peak(scan: bool) -> int:
        torch._dynamo.reset()
        module.compiler.reset()
        torch.manual_seed(0)
        net = nn.Sequential(*(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(16)))
        net = net.to(DEVICE)
        compiled = torch.compile(net, backend="pjrt", options={"scan_blocks": 4 if scan else False})
        x = torch.randn(256, 64).to(DEVICE)
        for _ in range(2):
            net.zero_grad()
            torch.accelerator.synchronize()
            module.reset_peak_memory_stats()
            compiled(x).sum().backward()
            torch.accelerator.synchronize()
        assert any(blocks()) == scan
        graphs = module.compiler.report().graphs
        return int(module.max_memory_allocated()) + max(p.temporary_bytes for g in graphs for p in g.programs)

    assert peak(True) <= 1.05 * peak(False)


def test_a_view_of_what_a_later_block_writes_is_not_overwritten() -> None:
    def fn(x: torch.Tensor, stores: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        before = [s.t().cos() + 1 for s in stores]
        kept = stores[-1].t() * 1
        for s, b in zip(stores, before, strict=True):
            y = F.layer_norm(x @ s, (8,)) + b.sum()
            s.add_(y.mean() + b)
            x = torch.tanh(y) + F.gelu(x)
        return x, kept

    torch.manual_seed(0)
    x, stores = torch.randn(8, 8), [torch.randn(8, 8) for _ in range(6)]
    ours = [on_device(s) for s in stores]
    compiled = torch.compile(fn, backend="pjrt", fullgraph=True, options=FROM_FOUR)
    for _ in range(2):
        same(compiled(x.to(DEVICE), ours), fn(x, stores), rtol=1e-4, atol=1e-4)
        same(ours, stores, rtol=1e-4, atol=1e-4)


def test_regions_stay_whole_and_are_one_program() -> None:
    class Region(Block):
        forward = torch.compiler.nested_compile_region(Block.forward)

    torch.manual_seed(0)
    check_module(
        Tower(5, lambda: Region(0.0)), torch.randn(2, 5, 8), rtol=1e-4, atol=1e-5, fullgraph=True, options=FROM_FOUR
    )
    assert [run for runs in blocks() for run in runs] == [5, 5]
