"""A rank that trains models in parallel, in every way, and holds the results to those of one process on the CPU."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .rank import DEVICE, NAME, RANK, SIZE, kept_in, run_cases

CASES: dict[str, Callable[[], None]] = {}
case = kept_in(CASES)
ROWS = 4


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))


def batch(step: int) -> tuple[Tensor, Tensor]:
    drawn = torch.Generator().manual_seed(step)
    return torch.randn(SIZE * ROWS, 8, generator=drawn), torch.randn(SIZE * ROWS, 4, generator=drawn)


def alone(steps: int = 3, every: int = 1) -> tuple[list[float], list[Tensor]]:
    """Losses and final parameters of one process that sees the whole batch."""
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), 0.01)
    losses = []
    for step in range(steps * every):
        x, y = batch(step)
        loss = nn.functional.mse_loss(net(x), y) / every
        loss.backward()
        losses.append(loss.item() * every)
        if (step + 1) % every == 0:
            optimizer.step()
            optimizer.zero_grad()
    return losses, [p.detach() for p in net.parameters()]


def part(t: Tensor) -> Tensor:
    return t[RANK * ROWS : (RANK + 1) * ROWS].to(DEVICE)


def mean_over_ranks(loss: Tensor) -> float:
    total = loss.detach().clone()
    dist.all_reduce(total)
    return total.item() / SIZE


def hold(losses: list[float], parameters: list[Tensor], wanted: tuple[list[float], list[Tensor]]) -> None:
    torch.testing.assert_close(losses, wanted[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close([p.detach().cpu() for p in parameters], wanted[1], rtol=1e-3, atol=1e-4)


def trained(net: nn.Module, steps: int = 3) -> list[float]:
    optimizer = torch.optim.AdamW(net.parameters(), 0.01)
    losses = []
    for step in range(steps):
        x, y = batch(step)
        loss = nn.functional.mse_loss(net(part(x)), part(y))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(mean_over_ranks(loss))
    return losses


@case
def ddp() -> None:
    net = nn.parallel.DistributedDataParallel(model().to(DEVICE), bucket_cap_mb=0.001)
    hold(trained(net), list(net.parameters()), alone())


@case
def ddp_with_device_ids_static_graph_and_views() -> None:
    net = nn.parallel.DistributedDataParallel(
        model().to(DEVICE), device_ids=[RANK], static_graph=True, gradient_as_bucket_view=True
    )
    hold(trained(net), list(net.parameters()), alone())


@case
def ddp_accumulates_without_sync() -> None:
    net = nn.parallel.DistributedDataParallel(model().to(DEVICE))
    optimizer = torch.optim.AdamW(net.parameters(), 0.01)
    losses = []
    for step in range(0, 6, 2):
        with net.no_sync():
            x, y = batch(step)
            first = nn.functional.mse_loss(net(part(x)), part(y)) / 2
            first.backward()
        x, y = batch(step + 1)
        second = nn.functional.mse_loss(net(part(x)), part(y)) / 2
        second.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses += [2 * mean_over_ranks(first), 2 * mean_over_ranks(second)]
    hold(losses, list(net.parameters()), alone(3, 2))


@case
def ddp_finds_unused_parameters() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = model(), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    net = nn.parallel.DistributedDataParallel(Half().to(DEVICE), find_unused_parameters=True)
    hold(trained(net), list(net.module.used.parameters()), alone())


@case
def ddp_with_a_comm_hook() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    net = nn.parallel.DistributedDataParallel(model().to(DEVICE))
    net.register_comm_hook(dist.group.WORLD, default_hooks.fp16_compress_hook)
    torch.testing.assert_close(trained(net), alone()[0], rtol=3e-3, atol=3e-3)


@case
def ddp_keeps_batch_norms_statistics_together() -> None:
    torch.manual_seed(0)
    net = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4)).to(DEVICE))
    for step in range(2):
        net(part(batch(step)[0])).sum().backward()
    seen = net.module[1].running_mean.clone()
    net(part(batch(3)[0]))  # broadcasts buffers first
    everyones = [torch.empty_like(seen) for _ in range(SIZE)]
    dist.all_gather(everyones, net.module[1].num_batches_tracked.float().expand(4).contiguous())
    assert all(torch.equal(e.cpu(), everyones[0].cpu()) for e in everyones)


@case
def fsdp2() -> None:
    from torch.distributed.fsdp import fully_shard

    net = model().to(DEVICE)
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(net)
    losses = trained(net)
    hold(losses, [p.full_tensor() for p in net.parameters()], alone())


@case
def fsdp2_with_mixed_precision_and_without_resharding() -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    net = model().to(DEVICE)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    fully_shard(net, mp_policy=policy, reshard_after_forward=False)
    losses = trained(net)
    torch.testing.assert_close(losses, alone()[0], rtol=3e-2, atol=3e-2)


@case
def fsdp2_clips_gradients() -> None:
    from torch.distributed.fsdp import fully_shard

    net, reference = model().to(DEVICE), model()
    fully_shard(net)
    x, y = batch(0)
    nn.functional.mse_loss(reference(x), y).backward()
    nn.functional.mse_loss(net(part(x)), part(y)).backward()
    wanted = nn.utils.clip_grad_norm_(reference.parameters(), 0.1)
    got = nn.utils.clip_grad_norm_(net.parameters(), 0.1)
    torch.testing.assert_close(got.full_tensor().cpu(), wanted, rtol=1e-4, atol=1e-5)


@case
def tensor_and_sequence_parallel() -> None:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = dist.init_device_mesh(NAME, (SIZE,))
    net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
    torch.manual_seed(1)
    for p in net.parameters():
        nn.init.normal_(p)
    reference = copy.deepcopy(net)
    net = parallelize_module(net.to(DEVICE), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    x, y = batch(0)
    loss = nn.functional.mse_loss(net(x.to(DEVICE)), y.to(DEVICE))
    loss.backward()
    wanted = nn.functional.mse_loss(reference(x), y)
    wanted.backward()
    torch.testing.assert_close(loss.item(), wanted.item(), rtol=1e-4, atol=1e-5)
    for p, q in zip(net.parameters(), reference.parameters(), strict=True):
        assert p.grad is not None
        torch.testing.assert_close(p.grad.full_tensor().cpu(), q.grad, rtol=1e-3, atol=1e-4)


@case
def tensor_parallel_attention_of_dtensors() -> None:
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = dist.init_device_mesh(NAME, (SIZE,))
    drawn = torch.Generator().manual_seed(3)
    host = [torch.randn(2, 2 * SIZE, 5, 8, generator=drawn).requires_grad_() for _ in range(3)]
    there = [distribute_tensor(t.detach().to(DEVICE), mesh, [Shard(1)]).requires_grad_() for t in host]
    for settings in ({"is_causal": True}, {"scale": 0.3}):
        wanted = nn.functional.scaled_dot_product_attention(*host, **settings)
        got = nn.functional.scaled_dot_product_attention(*there, **settings)
        torch.testing.assert_close(got.full_tensor().detach().cpu(), wanted.detach(), rtol=1e-4, atol=1e-5)  # type: ignore[attr-defined]
        gradients = torch.autograd.grad(wanted.sin().sum(), host)
        for g, w in zip(torch.autograd.grad(got.sin().sum(), there), gradients, strict=True):
            torch.testing.assert_close(g.full_tensor().cpu(), w, rtol=1e-4, atol=1e-5)  # type: ignore[attr-defined]
    # PyTorch's formula, where it is asked for.
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.MATH):
        got = nn.functional.scaled_dot_product_attention(*there)
        wanted = nn.functional.scaled_dot_product_attention(*host)
        torch.testing.assert_close(got.full_tensor().detach().cpu(), wanted.detach(), rtol=1e-4, atol=1e-5)  # type: ignore[attr-defined]


@case
def context_parallel_attention_in_a_ring() -> None:
    from torch.distributed.tensor.experimental import context_parallel
    from torch.distributed.tensor.experimental._attention import (
        _cp_options,
        context_parallel_unshard,
        set_rotate_method,
    )

    mesh = dist.init_device_mesh(NAME, (SIZE,))
    drawn = torch.Generator().manual_seed(3)
    host = [torch.randn(2, 4, 6 * SIZE, 8, generator=drawn).requires_grad_() for _ in range(3)]
    for rotation, is_causal in (("allgather", True), ("alltoall", True), ("alltoall", False)):
        set_rotate_method(rotation)
        _cp_options.enable_load_balance = is_causal
        wanted = nn.functional.scaled_dot_product_attention(*host, is_causal=is_causal)
        gradients = torch.autograd.grad(wanted.sin().sum(), host)
        mine = [t.detach().to(DEVICE) for t in host]
        with context_parallel(mesh, buffers=mine, buffer_seq_dims=[2, 2, 2]):
            for t in mine:
                t.requires_grad_()
            got = nn.functional.scaled_dot_product_attention(*mine, is_causal=is_causal)
            got.sin().sum().backward()
            parts = [got.detach(), *(t.grad for t in mine)]
            for t in mine:
                t.requires_grad_(False)
        whole = context_parallel_unshard(mesh, parts, [2] * 4)
        for g, w in zip(whole, [wanted.detach(), *gradients], strict=True):
            torch.testing.assert_close(g.cpu(), w, rtol=1e-3, atol=1e-4)


@case
def dtensor_moves_between_placements() -> None:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = dist.init_device_mesh(NAME, (SIZE,))
    whole = torch.arange(5.0 * 6).view(5, 6)
    sharded = distribute_tensor(whole.to(DEVICE), mesh, [Shard(0)])  # uneven
    assert torch.equal(sharded.full_tensor().cpu(), whole)
    other = sharded.redistribute(mesh, [Shard(1)])
    assert torch.equal((other * 2).sum().full_tensor().cpu(), 2 * whole.sum())
    assert torch.equal(other.redistribute(mesh, [Replicate()]).to_local().cpu(), whole)
    assert torch.equal((sharded @ sharded.redistribute(mesh, [Replicate()]).mT).full_tensor().cpu(), whole @ whole.mT)


@case
def fsdp2_hybrid_over_two_dimensions() -> None:
    from torch.distributed.fsdp import fully_shard

    if SIZE % 2:
        return
    mesh = dist.init_device_mesh(NAME, (2, SIZE // 2), mesh_dim_names=("replicate", "shard"))
    net = model().to(DEVICE)
    fully_shard(net, mesh=mesh)
    hold(trained(net), [p.full_tensor() for p in net.parameters()], alone())


@case
def fsdp2_with_parameters_kept_on_the_cpu() -> None:
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

    net = model().to(DEVICE)
    fully_shard(net, offload_policy=CPUOffloadPolicy(pin_memory=False))
    losses = trained(net)
    torch.testing.assert_close(losses, alone()[0], rtol=1e-4, atol=1e-5)


@case
def fsdp2_accumulates_gradients() -> None:
    from torch.distributed.fsdp import fully_shard

    net = model().to(DEVICE)
    fully_shard(net)
    optimizer = torch.optim.AdamW(net.parameters(), 0.01)
    losses = []
    for step in range(6):
        net.set_requires_gradient_sync(step % 2 == 1)
        x, y = batch(step)
        loss = nn.functional.mse_loss(net(part(x)), part(y)) / 2
        loss.backward()
        losses.append(2 * mean_over_ranks(loss))
        if step % 2:
            optimizer.step()
            optimizer.zero_grad()
    hold(losses, [p.full_tensor() for p in net.parameters()], alone(3, 2))


@case
def loss_parallel() -> None:
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, loss_parallel, parallelize_module

    mesh = dist.init_device_mesh(NAME, (SIZE,))
    torch.manual_seed(0)
    head = nn.Linear(8, 6 * SIZE)
    reference = copy.deepcopy(head)
    parallelize_module(head.to(DEVICE), mesh, ColwiseParallel(output_layouts=Shard(-1), use_local_output=False))
    x, labels = batch(0)[0], torch.arange(SIZE * ROWS) % (6 * SIZE)
    with loss_parallel():
        loss = nn.functional.cross_entropy(head(x.to(DEVICE)), labels.to(DEVICE))
        loss.backward()
    wanted = nn.functional.cross_entropy(reference(x), labels)
    wanted.backward()
    torch.testing.assert_close(loss.full_tensor().item(), wanted.item(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(head.weight.grad.full_tensor().cpu(), reference.weight.grad, rtol=1e-3, atol=1e-4)


@case
def pipelines() -> None:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

    width, chunks = 8, 2 * SIZE
    for schedule_class, stages_of_rank in ((ScheduleGPipe, 1), (Schedule1F1B, 1), (ScheduleInterleaved1F1B, 2)):
        torch.manual_seed(0)
        whole = nn.Sequential(
            *(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(SIZE * stages_of_rank))
        )
        x, y = torch.randn(chunks, width), torch.randn(chunks, width)
        mine = [RANK + SIZE * k for k in range(stages_of_rank)]
        parts = [copy.deepcopy(whole[i]).to(DEVICE) for i in mine]
        stages = [PipelineStage(p, i, len(whole), torch.device(DEVICE)) for p, i in zip(parts, mine, strict=True)]
        scheduled = stages if stages_of_rank > 1 else stages[0]
        schedule = schedule_class(scheduled, chunks, loss_fn=nn.functional.mse_loss)
        losses: list[Tensor] = []
        given = (x.to(DEVICE),) if RANK == 0 else ()
        if RANK == SIZE - 1:
            schedule.step(*given, target=y.to(DEVICE), losses=losses)
        else:
            schedule.step(*given)
        nn.functional.mse_loss(whole(x), y).backward()
        for p, i in zip(parts, mine, strict=True):
            for q, r in zip(p.parameters(), whole[i].parameters(), strict=True):
                assert q.grad is not None
                torch.testing.assert_close(q.grad.cpu(), r.grad, rtol=1e-3, atol=1e-4)


@case
def experts_exchange_tokens() -> None:
    import torch.distributed._functional_collectives as fc

    # One expert a rank: tokens go to theirs, unevenly, and come back.
    torch.manual_seed(0)
    experts = [nn.Linear(4, 4) for _ in range(SIZE)]
    tokens = torch.randn(SIZE * 3, 4)
    to = (torch.arange(SIZE * 3) * 7 % 5) % SIZE
    mine, where = tokens[RANK * 3 : RANK * 3 + 3], to[RANK * 3 : RANK * 3 + 3]
    order = where.argsort(stable=True)
    sent = [int((where == s).sum()) for s in range(SIZE)]
    counts = torch.tensor(sent, device=DEVICE)
    got_counts = torch.empty_like(counts)
    dist.all_to_all_single(got_counts, counts)
    got = got_counts.tolist()
    leaf = mine[order].to(DEVICE).requires_grad_()
    there = fc.all_to_all_single_autograd(leaf, got, sent, dist.group.WORLD)
    expert = copy.deepcopy(experts[RANK]).to(DEVICE)
    back = fc.all_to_all_single_autograd(expert(there), sent, got, dist.group.WORLD)
    back.square().sum().backward()
    reference = mine[order].clone().requires_grad_()
    wanted = torch.stack([experts[int(s)](t) for t, s in zip(reference, where[order], strict=True)])
    wanted.square().sum().backward()
    torch.testing.assert_close(back.detach().cpu(), wanted.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(leaf.grad.cpu(), reference.grad, rtol=1e-3, atol=1e-4)


@case
def compiled_with_ddp() -> None:
    net = torch.compile(nn.parallel.DistributedDataParallel(model().to(DEVICE)))
    hold(trained(net), list(net.parameters()), alone())


@case
def checkpoints_are_resharded() -> None:
    import tempfile

    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.fsdp import fully_shard

    folder = [tempfile.mkdtemp() if RANK == 0 else None]
    dist.broadcast_object_list(folder, 0)
    net = model().to(DEVICE)
    fully_shard(net)
    optimizer = torch.optim.AdamW(net.parameters(), 0.01)
    nn.functional.mse_loss(net(part(batch(0)[0])), part(batch(0)[1])).backward()
    optimizer.step()
    weights, state = get_state_dict(net, optimizer)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=folder[0])
    other = model().to(DEVICE)
    with torch.no_grad():
        for p in other.parameters():
            p.zero_()
    fully_shard(other, mesh=dist.init_device_mesh(NAME, (SIZE,)))
    later = torch.optim.AdamW(other.parameters(), 0.01)
    empty_weights, empty_state = get_state_dict(other, later)
    loaded = {"model": empty_weights, "optimizer": empty_state}
    dcp.load(loaded, checkpoint_id=folder[0])
    set_state_dict(other, later, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
    for p, q in zip(net.parameters(), other.parameters(), strict=True):
        assert torch.equal(p.full_tensor().cpu(), q.full_tensor().cpu())
    alone_again = model()
    plain = {"model": alone_again.state_dict()}
    dcp.load(plain, checkpoint_id=folder[0], no_dist=True)
    for p, q in zip(net.parameters(), plain["model"].values(), strict=True):
        assert torch.equal(p.full_tensor().cpu(), q)
    future = dcp.async_save({"model": weights}, checkpoint_id=f"{folder[0]}/later")
    future.result()


if __name__ == "__main__":
    # An asynchronous save needs a backend for CPU tensors too, so it is asked for by name.
    run_cases({name: run for name, run in CASES.items() if name != "checkpoints_are_resharded" or name in sys.argv})
