"""Eight ranks that train one model in two or three ways at once, held to one process on the CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

from .rank import DEVICE, NAME, RANK, SIZE, kept_in, run_cases

CASES: dict[str, Callable[[], None]] = {}
case = kept_in(CASES)
WIDTH = 8


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def blocks(count: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(count)))


def batch(step: int, rows: int) -> tuple[Tensor, Tensor]:
    drawn = torch.Generator().manual_seed(step)
    return torch.randn(rows, 8, WIDTH, generator=drawn), torch.randn(rows, 8, WIDTH, generator=drawn)


def split(net: nn.Sequential, mesh: dist.DeviceMesh, *, sequence: bool) -> nn.Sequential:
    """Tensor parallel, with the norms and what lies between blocks split along the sequence."""
    for block in net:
        if sequence:
            plan = {
                "norm": SequenceParallel(),
                "up": ColwiseParallel(input_layouts=Shard(1)),
                "down": RowwiseParallel(output_layouts=Shard(1)),
            }
        else:
            plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        parallelize_module(block, mesh, plan)
    return net


def whole(t: Tensor) -> Tensor:
    return (t.full_tensor() if isinstance(t, DTensor) else t).detach().cpu()


def alone(net: nn.Module, rows: int, steps: int) -> tuple[list[float], list[Tensor]]:
    """Losses, and parameters afterwards."""
    optimizer = torch.optim.AdamW(net.parameters(), 0.01)
    losses = []
    for step in range(steps):
        x, y = batch(step, rows)
        loss = nn.functional.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, [p.detach() for p in net.parameters()]


@case
def fsdp_by_tensor_parallel() -> None:
    mesh = dist.init_device_mesh(NAME, (2, SIZE // 2), mesh_dim_names=("dp", "tp"))
    net = split(blocks(2).to(DEVICE), mesh["tp"], sequence=False)
    for block in net:
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(net, mesh=mesh["dp"])
    optimizer = torch.optim.AdamW(net.parameters(), 0.01)
    rows, mine = 4, mesh["dp"].get_local_rank()
    losses = []
    for step in range(3):
        x, y = (t[2 * mine : 2 * mine + 2].to(DEVICE) for t in batch(step, rows))
        loss = nn.functional.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean, dist.ReduceOp.AVG, group=mesh["dp"].get_group())
        losses.append(mean.item())
    expected, parameters = alone(blocks(2), rows, 3)
    torch.testing.assert_close(losses, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close([whole(p) for p in net.parameters()], parameters, rtol=1e-3, atol=1e-4)


@case
def pipeline_by_fsdp_by_tensor_parallel() -> None:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    mesh = dist.init_device_mesh(NAME, (2, 2, SIZE // 4), mesh_dim_names=("pp", "dp", "tp"))
    stage_of, mine = mesh["pp"].get_local_rank(), mesh["dp"].get_local_rank()
    net = blocks(4)
    part = split(copy.deepcopy(net[2 * stage_of : 2 * stage_of + 2]).to(DEVICE), mesh["tp"], sequence=False)
    for block in part:
        fully_shard(block, mesh=mesh["dp"], reshard_after_forward=False)
    fully_shard(part, mesh=mesh["dp"], reshard_after_forward=False)
    stage = PipelineStage(part, stage_of, 2, torch.device(DEVICE), group=mesh["pp"].get_group())
    schedule = Schedule1F1B(stage, 2, loss_fn=nn.functional.mse_loss)
    x, y = batch(0, 8)
    x_mine, y_mine = (t[4 * mine : 4 * mine + 4].to(DEVICE) for t in (x, y))
    losses: list[Tensor] = []
    if stage_of == 0:
        schedule.step(x_mine)
    else:
        schedule.step(target=y_mine, losses=losses)
    expected = nn.functional.mse_loss(net(x), y)
    expected.backward()
    for p, q in zip(part.parameters(), net[2 * stage_of : 2 * stage_of + 2].parameters(), strict=True):
        assert p.grad is not None
        torch.testing.assert_close(whole(p.grad), q.grad, rtol=1e-3, atol=1e-4)
    if stage_of == 1:
        mean = torch.stack([loss.detach() for loss in losses]).mean()
        dist.all_reduce(mean, dist.ReduceOp.AVG, group=mesh["dp"].get_group())
        torch.testing.assert_close(mean.item(), expected.item(), rtol=1e-4, atol=1e-5)


@case
def data_by_sequence_and_tensor_parallel_compiled() -> None:
    mesh = dist.init_device_mesh(NAME, (2, SIZE // 2), mesh_dim_names=("dp", "tp"))
    net = split(blocks(2).to(DEVICE), mesh["tp"], sequence=True)
    mine, ours = mesh["dp"].get_local_rank(), mesh["tp"].get_local_rank()
    step = torch.compile(net, backend="pjrt", fullgraph=True)
    rows, length = 4, 8 // mesh["tp"].size()
    x, y = (t[2 * mine : 2 * mine + 2, ours * length : (ours + 1) * length].to(DEVICE) for t in batch(0, rows))
    loss = nn.functional.mse_loss(step(x), y)  # the mean over this rank's part of the sequence
    loss.backward()
    reference = blocks(2)
    nn.functional.mse_loss(reference(batch(0, rows)[0]), batch(0, rows)[1]).backward()
    for p, q in zip(net.parameters(), reference.parameters(), strict=True):
        assert p.grad is not None
        gradient = p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad
        dist.all_reduce(gradient, dist.ReduceOp.AVG, group=mesh["dp"].get_group())
        torch.testing.assert_close(gradient.cpu() / mesh["tp"].size(), q.grad, rtol=1e-3, atol=1e-4)


@case
def experts_by_data_parallel() -> None:
    """Four experts, each on one rank of each of two halves: tokens move within a half, gradients between the halves."""
    import torch.distributed._functional_collectives as fc

    mesh = dist.init_device_mesh(NAME, (2, SIZE // 2), mesh_dim_names=("dp", "ep"))
    mine, size = mesh["ep"].get_local_rank(), mesh["ep"].size()
    torch.manual_seed(0)
    experts = [nn.Linear(WIDTH, WIDTH) for _ in range(size)]
    tokens, to = torch.randn(SIZE, 6, WIDTH), torch.randint(size, (SIZE, 6))
    order = to[RANK].argsort(stable=True)
    sent = torch.bincount(to[RANK], minlength=size)
    received = torch.empty(size, dtype=torch.int64, device=DEVICE)
    dist.all_to_all_single(received, sent.to(DEVICE), group=mesh["ep"].get_group())
    splits = received.tolist(), sent.tolist()
    leaf = tokens[RANK][order].to(DEVICE).requires_grad_()
    expert = copy.deepcopy(experts[mine]).to(DEVICE)
    there = fc.all_to_all_single_autograd(leaf, *splits, mesh["ep"].get_group())
    back = fc.all_to_all_single_autograd(expert(there), *reversed(splits), mesh["ep"].get_group())
    back.square().sum().backward()
    reference = tokens.clone().requires_grad_()
    for e, net in enumerate(experts):
        net(reference[to == e]).square().sum().backward()
    torch.testing.assert_close(leaf.grad.cpu(), reference.grad[RANK][order], rtol=1e-3, atol=1e-4)
    for p, q in zip(expert.parameters(), experts[mine].parameters(), strict=True):
        dist.all_reduce(p.grad, group=mesh["dp"].get_group())
        torch.testing.assert_close(p.grad.cpu(), q.grad, rtol=1e-3, atol=1e-4)


if __name__ == "__main__":
    run_cases(CASES)
