"""A rank whose compiled graphs have collectives in them: the same as between ops, and inside of one program."""

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


def values(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    drawn = torch.randint(1, 6, shape, generator=torch.Generator().manual_seed(7 + RANK))
    return ((drawn > 3) if dtype == torch.bool else drawn.to(torch.float32).to(dtype)).to(DEVICE)


def graphs() -> list[Any]:
    found: list[Any] = torch.get_device_module(NAME).compiler.report().graphs
    return found


def same(fn: Callable[..., Any], *args: Any, programs: int = 1) -> None:
    """Hold `fn` compiled, as one graph of so many programs without ops in between, to the same op by op."""
    wanted = fn(*args)
    torch.compiler.reset()
    before = len(graphs())
    got = torch.compile(fn, backend=NAME, fullgraph=True)(*args)
    torch.testing.assert_close(got, wanted)
    made = graphs()[before:]
    assert sum(len(g.programs) for g in made) == programs, made
    assert not any(g.eager_ops for g in made), [g.eager_ops for g in made]


def reductions(dtype: torch.dtype) -> list[str]:
    if dtype == torch.bool:
        return ["max", "min", "bor", "band"]
    if dtype.is_complex:
        return ["sum"]
    return ["sum", "avg", "max", "min", "product"] + ([] if dtype.is_floating_point else ["band", "bor", "bxor"])


@case
def every_reduction_of_every_dtype() -> None:
    dtypes = [
        torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int32, torch.int64,
        torch.bool, torch.complex64, torch.complex128,
    ]  # fmt: skip

    def reduce(*xs: Tensor) -> list[Tensor]:
        world = dist.group.WORLD
        found = [functional.all_reduce(x, op, world) for x in xs for op in reductions(x.dtype)]
        return found + [functional.reduce_scatter_single(x, "sum", 0, world) for x in xs if x.dtype != torch.bool]

    same(reduce, *(values(2 * SIZE, 3, dtype=d) for d in dtypes))


@case
def gathering_exchanging_and_broadcasting() -> None:
    def move(x: Tensor, number: Tensor, empty: Tensor) -> list[Tensor]:
        world = dist.group.WORLD
        made = [functional.all_gather_single(x, dim, world) for dim in (0, 1)]
        made.append(functional.all_to_all_single(x, None, None, world))
        made += [functional.broadcast(x, root, world) for root in range(SIZE)]
        made += functional.all_reduce_coalesced([x, number], "sum", world)
        made += functional.all_gather_into_tensor_coalesced([x, x * 2], world)
        made += functional.reduce_scatter_tensor_coalesced([x, x * 2], "sum", [0, 1], world)
        return [*made, functional.all_reduce(number, "max", world), functional.all_reduce(empty, "sum", world)]

    same(move, values(2 * SIZE, SIZE), torch.tensor(3.5 + RANK, device=DEVICE), values(0, 3))


@case
def views_and_arguments_that_are_written_to() -> None:
    def reduce(x: Tensor, y: Tensor) -> Tensor:
        dist.all_reduce(x[1])
        y.mul_(2)
        dist.all_reduce(y, dist.ReduceOp.MAX)
        return x.t() + y

    x, y = values(3, 3), values(3, 3).t()[:, ::2]
    x2, y2 = x.clone(), values(3, 3).t()[:, ::2]
    y, y2 = y[:, :1], y2[:, :1]
    wanted = reduce(x, y)
    got = torch.compile(reduce, backend=NAME, fullgraph=True)(x2, y2)
    torch.testing.assert_close([got, x2, y2], [wanted, x, y])


@case
def async_collectives_wait_inside() -> None:
    def overlapped(x: Tensor) -> Tensor:
        work = dist.all_reduce(x, async_op=True)
        other = torch.sin(x * 0 + 1)
        work.wait()
        return x + other

    wanted = overlapped(values(4))
    torch.testing.assert_close(torch.compile(overlapped, backend=NAME)(values(4)), wanted)


@case
def groups_of_a_mesh_in_one_program() -> None:
    if SIZE % 2:
        return
    mesh = dist.init_device_mesh(NAME, (2, SIZE // 2), mesh_dim_names=("rows", "columns"))
    rows, columns = mesh.get_group("rows"), mesh.get_group("columns")

    def reduce(x: Tensor) -> list[Tensor]:
        along = functional.all_reduce(x, "sum", rows)
        across = functional.all_gather_single(along * 2, 0, columns)
        scattered = functional.reduce_scatter_single(across, "sum", 0, columns)
        root = functional.broadcast(x, 1, rows)
        return [across, functional.all_reduce(across, "max", dist.group.WORLD), scattered, root]

    same(reduce, values(4, 3))
    for group in (columns, rows):  # the same graph but for its group
        same(lambda x: functional.all_reduce(x, "sum", group) * 2, values(4))  # noqa: B023


@case
def gradients_through_collectives() -> None:
    def loss(x: Tensor, w: Tensor) -> Tensor:
        whole = functional.all_gather_tensor_autograd(x @ w, 0, dist.group.WORLD)
        return functional.reduce_scatter_tensor_autograd(whole.sin(), "sum", 0, dist.group.WORLD).sum()

    def gradients(fn: Callable[..., Tensor]) -> list[Tensor]:
        x, w = values(2, 3).requires_grad_(), values(3, 2).requires_grad_()
        made = fn(x, w)
        return [made.detach(), *torch.autograd.grad(made, [x, w])]

    before = len(graphs())
    torch.testing.assert_close(gradients(torch.compile(loss, backend=NAME, fullgraph=True)), gradients(loss))
    assert not any(g.eager_ops for g in graphs()[before:])


@case
def tensor_parallel_model_trains() -> None:
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    mesh = dist.init_device_mesh(NAME, (SIZE,))
    torch.manual_seed(1)
    net = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 4 * SIZE), nn.GELU(), nn.Linear(4 * SIZE, 8))
    reference = copy.deepcopy(net)
    plan = {
        "0": SequenceParallel(), "1": ColwiseParallel(input_layouts=Shard(1)),
        "3": RowwiseParallel(output_layouts=Shard(1), use_local_output=True),
    }  # fmt: skip
    net = parallelize_module(net.to(DEVICE), mesh, plan)
    step = torch.compile(lambda x: net(x).pow(2).sum(), backend=NAME, fullgraph=True)
    optimizers = [torch.optim.SGD(n.parameters(), 0.05) for n in (net, reference)]
    before = len(graphs())
    for turn in range(3):
        x = torch.randn(2, 3 * SIZE, 8, generator=torch.Generator().manual_seed(turn))
        mine = step(x[:, 3 * RANK : 3 * RANK + 3].to(DEVICE))
        wanted = reference(x).pow(2).sum()
        mine.backward()
        wanted.backward()
        total = mine.detach().clone()
        dist.all_reduce(total)
        torch.testing.assert_close(total.item(), wanted.item(), rtol=1e-4, atol=1e-4)
        for p, q in zip(net.parameters(), reference.parameters(), strict=True):
            assert p.grad is not None
            torch.testing.assert_close(p.grad.full_tensor().cpu(), q.grad, rtol=1e-3, atol=1e-4)  # type: ignore[attr-defined]
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    made = graphs()[before:]
    assert len(made) == 2 and not any(g.eager_ops for g in made), made


@case
def graphs_that_differ_run_their_collectives_between_programs() -> None:
    constant = 2.0 + RANK  # baked into the graph

    def reduce(x: Tensor) -> Tensor:
        return functional.all_reduce(x * constant, "sum", dist.group.WORLD) + 1

    before = len(graphs())
    wanted = reduce(values(4))
    torch.testing.assert_close(torch.compile(reduce, backend=NAME, fullgraph=True)(values(4)), wanted)
    assert any(g.eager_ops for g in graphs()[before:])


@case
def graphs_that_make_tensors_on_the_ranks_own_devices() -> None:
    def masked(x: Tensor) -> Tensor:
        places = torch.arange(x.shape[0], device=x.device)
        return functional.all_reduce(torch.where(places > 1, x, 0.0), "sum", dist.group.WORLD)

    same(masked, values(4))


@case
def sizes_that_differ_between_ranks() -> None:
    def reduce(x: Tensor) -> Tensor:
        return functional.all_reduce(x.exp().sum(0), "sum", dist.group.WORLD) * 2

    compiled = torch.compile(reduce, backend=NAME, dynamic=True)
    for n in (3, 6):
        x = values(n + RANK, 2)
        torch.testing.assert_close(compiled(x), reduce(x))


@case
def exchanges_of_symbolic_sizes() -> None:
    def exchange(x: Tensor) -> Tensor:
        return functional.all_to_all_single(x * 2, None, None, dist.group.WORLD) + 1

    compiled = torch.compile(exchange, backend=NAME, dynamic=True)
    for n in (2, 4):
        torch.testing.assert_close(compiled(values(n * SIZE, 2)), exchange(values(n * SIZE, 2)))


@case
def collectives_stay_between_programs_on_request() -> None:
    def reduce(x: Tensor) -> Tensor:
        return functional.all_reduce(x * 2, "sum", dist.group.WORLD) + 1

    if RANK == 0:  # it alone: nobody waits for the others to compile
        torch.compile(lambda x: x + 1, backend=NAME)(values(3))
    before = len(graphs())
    made = torch.compile(reduce, backend=NAME, options={"inner_collectives": False})(values(4))
    torch.testing.assert_close(made, reduce(values(4)))
    assert any(g.eager_ops for g in graphs()[before:])


@case
def two_instances_share_a_program() -> None:
    def reduce(x: Tensor) -> Tensor:
        return functional.all_reduce(x.cos(), "sum", dist.group.WORLD)

    device = torch.get_device_module(NAME)
    torch.compile(reduce, backend=NAME)(values(5))
    torch.compiler.reset()
    before = device.metrics()["executables_compiled"]
    torch.compile(reduce, backend=NAME)(values(5))
    torch.compile(lambda x: reduce(x), backend=NAME)(values(5))
    assert device.metrics()["executables_compiled"] == before + 1  # reset() forgot the first one's


@case
def dynamic_sizes() -> None:
    def reduce(x: Tensor) -> Tensor:
        return functional.all_reduce(x.exp(), "sum", dist.group.WORLD).sum(0)

    compiled = torch.compile(reduce, backend=NAME, dynamic=True)
    for n in (3, 5, 8, 5):
        torch.testing.assert_close(compiled(values(n, 2)), reduce(values(n, 2)))


@case
def random_numbers_are_each_ranks_own() -> None:
    def noise(x: Tensor) -> tuple[Tensor, Tensor]:
        drawn = torch.rand_like(x)
        return drawn, functional.all_gather_single(drawn, 0, dist.group.WORLD)

    torch.manual_seed(RANK)
    mine, all_of_them = torch.compile(noise, backend=NAME, fullgraph=True)(values(8))
    parts = all_of_them.cpu().chunk(SIZE)
    assert torch.equal(parts[RANK], mine.cpu())
    assert len({tuple(p.tolist()) for p in parts}) == SIZE


if __name__ == "__main__":
    run_cases(CASES, compiled=True)
