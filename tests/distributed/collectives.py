"""A rank that does every collective on CPU tensors (gloo) and on device tensors, and prints where they differ."""

from __future__ import annotations

import datetime
import sys
import traceback
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .rank import NAME, RANK, SIZE, kept_in

CASES: dict[str, Callable[[str], Any]] = {}
case = kept_in(CASES)
DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16, torch.int32,
    torch.int64, torch.bool, torch.complex64, torch.complex128, torch.float8_e4m3fn,
]  # fmt: skip


def values(*shape: int, dtype: torch.dtype = torch.float32, of: int = RANK) -> Tensor:
    drawn = torch.randint(1, 6, shape, generator=torch.Generator().manual_seed(7 + of))
    return (drawn > 3) if dtype == torch.bool else drawn.to(torch.float32).to(dtype)


def reductions(dtype: torch.dtype) -> list[Any]:
    op = dist.ReduceOp
    if dtype == torch.bool:
        return [op.MAX, op.MIN, op.BOR, op.BAND]
    if dtype.is_complex:
        return [op.SUM]
    if dtype.is_floating_point:
        return [op.SUM, op.MAX, op.MIN, op.PRODUCT]
    return [op.SUM, op.MAX, op.MIN, op.PRODUCT, op.BAND, op.BOR, op.BXOR]


@case
def all_reduce_of_every_dtype(d: str) -> Any:
    made = []
    for dtype in DTYPES:
        if dtype.itemsize == 1 and dtype.is_floating_point:
            continue  # gloo has no sums of them
        for op in reductions(dtype):
            if dtype == torch.int16:
                continue  # nor of these
            t = values(3, 4, dtype=dtype).to(d)
            dist.all_reduce(t, op)
            made.append(t)
    return made


@case
def average(d: str) -> Any:
    if d == "cpu":  # gloo has none
        total = sum(values(5, of=r) for r in range(SIZE))
        return [total / SIZE, torch.div(total.long(), SIZE, rounding_mode="trunc")]
    both = [values(5).to(d), values(5).long().to(d)]
    for t in both:
        dist.all_reduce(t, dist.ReduceOp.AVG)
    return both


@case
def sum_of_what_a_factor_is_multiplied_into(d: str) -> Any:
    factors = [0.5, torch.tensor(0.25)]
    if d == "cpu":  # gloo has none
        total = sum(values(2 * SIZE, of=r) for r in range(SIZE))
        return [t for f in factors for t in (total * f, (total * f)[2 * RANK : 2 * RANK + 2], values(2 * SIZE))]
    made = []
    for f in factors:
        op = dist._make_nccl_premul_sum(f.to(d) if isinstance(f, Tensor) else f)
        reduced, given, part = values(2 * SIZE).to(d), values(2 * SIZE).to(d), torch.empty(2, device=d)
        dist.all_reduce(reduced, op)
        dist.reduce_scatter_tensor(part, given, op)
        made += [reduced, part, given]
    return made


@case
def shapes(d: str) -> Any:
    made = [values(*s).to(d) for s in ((), (1,), (0,), (3, 0, 2), (2, 3, 4, 5))]
    for t in made:
        dist.all_reduce(t)
    return made


@case
def a_view_is_reduced_where_it_is(d: str) -> Any:
    base = values(4, 6).to(d)
    if d == "cpu":  # gloo takes no strided tensors
        base[1:3, ::2] = _reduced(base[1:3, ::2].contiguous())
    else:
        dist.all_reduce(base[1:3, ::2].t())
    return base


def _reduced(t: Tensor, op: Any = dist.ReduceOp.SUM) -> Tensor:
    dist.all_reduce(t, op)
    return t


@case
def in_place_between_other_ops(d: str) -> Any:
    x = values(4).to(d) * 2
    dist.all_reduce(x)
    y = x + 1
    x.add_(1)
    dist.all_reduce(x)
    return x, y


@case
def reduce_to_each(d: str) -> Any:
    made = []
    for root in range(SIZE):
        t = values(3).to(d)
        dist.reduce(t, root)
        made.append(t if root == RANK else values(1))  # elsewhere its content is undefined
    return made


@case
def broadcast_of_every_dtype(d: str) -> Any:
    made = []
    for dtype in DTYPES:
        for root in range(SIZE):
            t = values(3, 2, dtype=dtype).to(d)
            if d == "cpu":
                t = values(3, 2, dtype=dtype, of=root)  # gloo doesn't take them all
            else:
                dist.broadcast(t, root)
            made.append(t)
    special = torch.tensor([-0.0, float("nan"), float("inf"), 1e-40]).to(d)
    dist.broadcast(special, 0)
    return [*made, special, special.signbit()]


@case
def all_gather_lists_and_tensors(d: str) -> Any:
    t = values(2, 3).to(d)
    parts = [torch.empty(2, 3).to(d) for _ in range(SIZE)]
    dist.all_gather(parts, t)
    whole, stacked = torch.empty(SIZE * 2, 3).to(d), torch.empty(SIZE, 2, 3).to(d)
    dist.all_gather_into_tensor(whole, t)
    if d == "cpu":
        stacked = whole.view(SIZE, 2, 3)
    else:
        dist.all_gather_into_tensor(stacked, t)
    number = [torch.zeros(()).to(d) for _ in range(SIZE)]
    dist.all_gather(number, values(1).to(d)[0])
    return parts, whole, stacked, number


@case
def reduce_scatter_lists_and_tensors(d: str) -> Any:
    made = []
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT):
        given = values(SIZE * 2, 3).to(d)
        whole, listed = torch.empty(2, 3).to(d), torch.empty(2, 3).to(d)
        if d == "cpu":
            given = _reduced(given, op)
            whole, listed = (given.view(SIZE, 2, 3)[RANK],) * 2
        else:
            dist.reduce_scatter_tensor(whole, given, op)
            dist.reduce_scatter(listed, list(given.view(SIZE, 2, 3)), op)
        made += [whole, listed]
    return made


@case
def all_to_all_even_uneven_and_lists(d: str) -> Any:
    even = torch.empty(SIZE * 2, 3).to(d)
    dist.all_to_all_single(even, values(SIZE * 2, 3).to(d))
    # Rank r sends r + s + 1 rows to rank s.
    out, into = [RANK + s + 1 for s in range(SIZE)], [s + RANK + 1 for s in range(SIZE)]
    uneven = torch.empty(sum(into), 2).to(d)
    dist.all_to_all_single(uneven, values(sum(out), 2).to(d), into, out)
    if d == "cpu":  # gloo has none with lists
        lists = [values(3, of=s) + RANK for s in range(SIZE)]
    else:
        lists = [torch.empty(3).to(d) for _ in range(SIZE)]
        dist.all_to_all(lists, [values(3).to(d) + s for s in range(SIZE)])
    return even, uneven, lists


@case
def scatter_and_gather_with_each_root(d: str) -> Any:
    made: list[Any] = []
    for root in range(SIZE):
        part = torch.empty(2).to(d)
        dist.scatter(part, [values(2, of=9 + s).to(d) for s in range(SIZE)] if root == RANK else None, root)
        parts = [torch.empty(2).to(d) for _ in range(SIZE)] if root == RANK else None
        dist.gather(part, parts, root)
        made += [part, parts or []]
    return made


@case
def send_and_receive_round_the_ring(d: str) -> Any:
    after, before = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    got = torch.empty(3).to(d)
    given = values(3).to(d)
    if RANK % 2 == 0:
        dist.send(given, after)
        dist.recv(got, before)
    else:
        dist.recv(got, before)
        dist.send(given, after)
    together = torch.empty(4).to(d)
    ops = [dist.P2POp(dist.isend, values(4).to(d), after), dist.P2POp(dist.irecv, together, before)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return got, together


@case
def works_and_futures(d: str) -> Any:
    t = values(3).to(d)
    work = dist.all_reduce(t, async_op=True)
    work.wait()
    doubled = dist.all_reduce(t, async_op=True).get_future().then(lambda f: f.value()[0] * 2).wait()
    assert work.is_completed() or d != "cpu"
    return t, doubled


@case
def groups_of_some_ranks(d: str) -> Any:
    made = []
    for ranks in ([0], [SIZE - 1, 0], list(range(SIZE))[::-1]):
        group = dist.new_group(ranks)
        if RANK in ranks:
            t = values(3).to(d)
            dist.all_reduce(t, group=group)
            dist.broadcast(t, ranks[0], group=group)
            whole = torch.empty(len(ranks) * 2).to(d)
            dist.all_gather_into_tensor(whole, values(2).to(d), group=group)
            made += [t, whole]
    return made


@case
def objects(d: str) -> Any:
    everyones: list[Any] = [None] * SIZE
    dist.all_gather_object(everyones, {"rank": RANK, "text": "x" * RANK})
    first = [{"of": RANK}]
    dist.broadcast_object_list(first, 0)
    dist.barrier()
    return everyones, first


@case
def arrays_that_are_too_large_to_be_sent_to_everyone(d: str) -> Any:
    made = []
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64):
        everyones = [values(SIZE * 1700, 13, dtype=dtype, of=r) for r in range(SIZE)]
        given = everyones[RANK].to(d)
        if d == "cpu":  # what it is by definition: gloo has not all of these
            total = sum(everyones[1:], everyones[0])
            parts = [e.chunk(SIZE)[RANK] for e in everyones]
            made += [total, total.chunk(SIZE)[RANK], torch.cat(everyones), torch.cat(parts), *everyones]
            continue
        total, part, whole = given.clone(), given.chunk(SIZE)[0].clone(), given.repeat(SIZE, 1)
        dist.all_reduce(total)
        dist.reduce_scatter_tensor(part, given)
        dist.all_gather_into_tensor(whole, given)
        exchanged = torch.empty_like(given)
        dist.all_to_all_single(exchanged, given)
        made += [total, part, whole, exchanged]
        for root in range(SIZE):
            copy = given.clone()
            dist.broadcast(copy, root)
            made.append(copy)
    return made


@case
def what_is_written_shows_in_every_view_of_it(d: str) -> Any:
    """A result takes the place of a storage's content, whoever else looks at it."""
    made = []
    for shape in ((6,), (2, 3)):
        t = values(*shape).to(d)
        alias, before = t.view(-1)[1:], t.clone()
        version = t._version
        dist.all_reduce(t)
        assert d == "cpu" or t._version > version
        part = values(4, 3).to(d)
        dist.all_reduce(part[1:3])
        made += [t, alias, before, part]
    return made


@case
def coalesced(d: str) -> Any:
    ts = [values(3).to(d), values(2, 2).to(d)]
    if d == "cpu":
        for t in ts:
            dist.all_reduce(t)
        return ts
    with dist._coalescing_manager(device=torch.device(d)):
        for t in ts:
            dist.all_reduce(t)
    return ts


@case
def functional(d: str) -> Any:
    import torch.distributed._functional_collectives as fc

    world = dist.group.WORLD
    assert world is not None
    t = values(SIZE * 2, 3).to(d)
    made = [fc.all_reduce(t, "sum", world), fc.all_gather_tensor(t, 0, world)]
    if d == "cpu":
        made.append(_reduced(t.clone()).view(SIZE, 2, 3)[RANK])
    else:
        made.append(fc.reduce_scatter_tensor(t, "sum", 0, world))
    return [m + 0 for m in made]


def differences(name: str) -> list[str]:
    seen = []
    for d in ("cpu", f"{NAME}:{RANK}"):
        try:
            seen.append(flat(CASES[name](d)))
        except Exception:
            return [f"{name} on {d}: {traceback.format_exc()}"]
    wanted, got = seen
    if len(wanted) != len(got):
        return [f"{name}: {len(got)} results, expected {len(wanted)}"]
    found = []
    for i, (g, w) in enumerate(zip(got, wanted, strict=True)):
        try:
            if isinstance(w, Tensor):
                torch.testing.assert_close(comparable(g.cpu()), comparable(w), equal_nan=True)
            else:
                assert g == w, f"{g} expected {w}"
        except AssertionError as error:
            found.append(f"{name}, result {i}: {error}")
    return found


def comparable(t: Tensor) -> Tensor:
    """What assert_close has no comparison for, float8, as float32."""
    return t.float() if t.dtype.itemsize == 1 and t.is_floating_point() else t


def flat(x: Any) -> list[Any]:
    return [i for item in x for i in flat(item)] if isinstance(x, (list, tuple)) else [x]


def main() -> None:
    torch.accelerator.set_device_index(RANK)
    dist.init_process_group(f"cpu:gloo,{NAME}:{NAME}", timeout=datetime.timedelta(seconds=100))
    names = sys.argv[1:] or list(CASES)
    found = [line for name in names for line in differences(name)]
    print("\n".join(found))
    dist.barrier()
    dist.destroy_process_group()
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
