"""A rank whose compiled graphs have collectives in them and options that change how a graph becomes programs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor, nn

from .rank import DEVICE, NAME, RANK, SIZE, kept_in, run_cases

CASES: dict[str, Callable[[], None]] = {}
case = kept_in(CASES)


class Block(nn.Module):
    """A residual layer whose inner product is summed over the ranks, as a tensor parallel one's is."""

    def __init__(self, gather: bool) -> None:
        super().__init__()
        self.up, self.down, self.gather = nn.Linear(6, 8), nn.Linear(8, 6), gather

    def forward(self, x: Tensor) -> Tensor:
        inner = torch.tanh(self.up(x))
        if self.gather:
            everyones = functional.all_gather_tensor_autograd(inner, 0, dist.group.WORLD)
            summed = functional.reduce_scatter_tensor_autograd(everyones, "sum", 0, dist.group.WORLD)
        else:
            summed = functional.all_reduce(inner, "sum", dist.group.WORLD)
        return x + self.down(summed) / SIZE


class Deep(nn.Module):
    def __init__(self, layers: int = 5, *, gather: bool = True) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(gather) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def made(layers: int = 5, *, gather: bool = True) -> nn.Module:
    torch.manual_seed(3)
    return Deep(layers, gather=gather).to(DEVICE)


def batch(number: int, rows: int = 4) -> Tensor:
    return torch.randn(rows, 6, generator=torch.Generator().manual_seed(10 * number + RANK)).to(DEVICE)


def trains_alike(options: dict[str, Any], steps: int = 3) -> None:
    """Hold training steps of a compiled model to the same steps op by op."""
    plain = made()
    model = copy.deepcopy(plain)
    compiled = torch.compile(model, backend=NAME, options=options)
    optimizers = [torch.optim.AdamW(net.parameters(), 0.05) for net in (plain, model)]
    for number in range(steps):
        losses = [net(batch(number)).pow(2).mean() for net in (plain, compiled)]
        for loss, optimizer in zip(losses, optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        torch.testing.assert_close(losses[1], losses[0], rtol=1e-4, atol=1e-5)
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-3, atol=1e-4)


@case
def equal_blocks_with_collectives_in_them_train() -> None:
    trains_alike({"scan_blocks": 4})


@case
def equal_blocks_with_collectives_between_programs_train() -> None:
    trains_alike({"scan_blocks": 4, "inner_collectives": False})


@case
def equal_blocks_are_one_program_with_the_collectives_inside() -> None:
    net = made(gather=False)
    reports = torch.get_device_module(NAME).compiler
    before = len(reports.report().graphs)
    with torch.no_grad():
        wanted = net(batch(0))
        got = torch.compile(net, backend=NAME, fullgraph=True, options={"scan_blocks": 4})(batch(0))
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
    graphs = reports.report().graphs[before:]
    assert not any(g.eager_ops for g in graphs), graphs


@case
def a_whole_step_with_collectives_in_its_graphs_trains() -> None:
    trains_alike({"whole_step": True})


@case
def a_whole_step_with_collectives_between_programs_trains() -> None:
    trains_alike({"whole_step": True, "inner_collectives": False})


@case
def a_whole_step_of_a_ddp_model_trains() -> None:
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6)).to(DEVICE)
    nets = [nn.parallel.DistributedDataParallel(n) for n in (net, copy.deepcopy(net))]
    optimizers = [torch.optim.AdamW(n.parameters(), 0.05) for n in nets]
    forwards = [nets[0], torch.compile(nets[1], backend=NAME, options={"whole_step": True})]
    for number in range(3):
        for forward, optimizer in zip(forwards, optimizers, strict=True):
            optimizer.zero_grad()
            forward(batch(number)).pow(2).mean().backward()
            optimizer.step()
    for p, q in zip(nets[1].parameters(), nets[0].parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-3, atol=1e-4)


@case
def sizes_that_change_are_padded_around_collectives() -> None:
    def move(x: Tensor) -> list[Tensor]:
        world = dist.group.WORLD
        centered = x - x.mean(0)  # what is padded may not be part of the mean
        whole = functional.all_gather_single(centered.exp(), 0, world)
        return [whole.sum(0), functional.reduce_scatter_single(whole.cos(), "sum", 0, world), whole.amin(0)]

    compiled = torch.compile(move, backend=NAME, dynamic=True)
    for rows in (3, 5, 9, 17, 5):
        torch.testing.assert_close(compiled(batch(rows, rows)), move(batch(rows, rows)), rtol=1e-4, atol=1e-5)


if __name__ == "__main__":
    run_cases(CASES, compiled=True)
