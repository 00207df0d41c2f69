"""A rank that does what a rank should not, or that waits for one that does; it prints the error it gets."""

from __future__ import annotations

import datetime
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from torch_pjrt.distributed import coordination

from .rank import DEVICE, NAME, RANK, kept_in

FAULTS: dict[str, Callable[[], None]] = {}
fault = kept_in(FAULTS)


def start(seconds: float = 100) -> None:
    torch.accelerator.set_device_index(RANK)
    dist.init_process_group(timeout=datetime.timedelta(seconds=seconds))


def hang(other: int) -> None:
    """Hang until the other rank has ended."""
    while not coordination.ended([other]):
        time.sleep(0.1)
    os._exit(1)


def reduced(*shape: int) -> float:
    t = torch.ones(*shape, device=DEVICE)
    dist.all_reduce(t)
    return float(t.sum().item())


@fault
def a_rank_dies_before_the_first_collective() -> None:
    start(5)
    if RANK == 1:
        os._exit(9)
    reduced(3)


@fault
def a_rank_dies_between_collectives() -> None:
    start(6)
    reduced(3)
    if RANK == 1:
        os._exit(9)
    reduced(3)


@fault
def a_rank_hangs() -> None:
    start(6)
    reduced(3)
    if RANK == 1:
        hang(0)
    reduced(3)


def killed(after: float = 0) -> None:
    time.sleep(after)
    os.kill(os.getpid(), signal.SIGKILL)


@fault
def rank_0_is_killed_before_the_first_collective() -> None:
    start(60)
    if RANK == 0:
        killed()
    reduced(3)


@fault
def rank_0_is_killed_during_a_collective() -> None:
    start(60)
    reduced(3)
    if RANK == 0:
        killed(after=1)
    reduced(3)


@fault
def rank_0_is_killed_in_strict_mode() -> None:
    torch.get_device_module(NAME).set_eager_mode("strict")
    start(60)
    reduced(3)
    if RANK == 0:
        killed(after=1)
    reduced(3)


@fault
def rank_0_is_killed_during_a_compiled_graph() -> None:
    start(60)
    call = compiled(3)
    call()
    if RANK == 0:
        killed(after=1)
    call()


@fault
def rank_0_is_killed_before_a_graph_is_compiled() -> None:
    start(60)
    reduced(3)
    if RANK == 0:
        killed()
    compiled(3)()


@fault
def rank_0_is_killed_during_a_send() -> None:
    start(60)
    reduced(3)
    if RANK == 0:
        killed(after=1)
    if RANK == 1:
        t = torch.empty(3, device=DEVICE)
        dist.recv(t, 0)
        t.sum().item()
    reduced(3)


@fault
def a_rank_hangs_in_place_of_a_send() -> None:
    start(6)
    reduced(3)
    if RANK == 0:
        hang(1)
    t = torch.empty(3, device=DEVICE)
    dist.recv(t, 0)
    t.sum().item()


@fault
def rank_0_raises() -> None:
    start(60)
    reduced(3)
    if RANK == 0:
        sys.exit("a bug")
    reduced(3)


@fault
def rank_0_ends_long_before_the_others() -> None:
    start(60)
    others = dist.new_group([1, 2])
    reduced(3)
    if RANK == 0:
        return
    for _ in range(24):
        time.sleep(0.5)
        t = torch.ones(3, device=DEVICE)
        dist.all_reduce(t, group=others)
        t.sum().item()
    reduced(3)


@fault
def all_ranks_are_killed() -> None:
    start(60)
    reduced(3)
    killed()


@fault
def an_error_ends_the_process() -> None:
    start(6)
    reduced(3)
    if RANK == 0:
        killed(after=1)
    try:
        reduced(3)
    except dist.DistBackendError as error:
        print(error, flush=True)
        sys.exit(5)


def keep_on(mine: Callable[[], None]) -> None:
    """Ranks that differ go on; within a second or two they are told."""
    start(20)
    reduced(3)
    for _ in range(100):
        mine()
        time.sleep(0.1)


@fault
def shapes_differ() -> None:
    keep_on(lambda: dist.all_reduce(torch.ones(3 + RANK, device=DEVICE)))


@fault
def collectives_differ() -> None:
    t = torch.ones(3, device=DEVICE)
    keep_on(lambda: dist.broadcast(t, 0) if RANK else dist.all_reduce(t))


@fault
def dtypes_differ_in_strict_mode() -> None:
    torch.get_device_module(NAME).set_eager_mode("strict")
    start(20)
    reduced(3)
    dist.all_reduce(torch.ones(3, device=DEVICE, dtype=torch.float64 if RANK else torch.float32))


@fault
def a_tensor_is_on_another_device() -> None:
    start(20)
    reduced(3)
    dist.all_reduce(torch.ones(3, device=f"{NAME}:{1 - RANK}"))


@fault
def a_tensor_is_on_the_cpu() -> None:
    start(20)
    dist.all_reduce(torch.ones(3))


@fault
def sizes_do_not_fit() -> None:
    start(20)
    dist.all_gather_into_tensor(torch.ones(5, device=DEVICE), torch.ones(3, device=DEVICE))


@fault
def an_operation_that_the_dtype_has_not() -> None:
    start(20)
    dist.all_reduce(torch.ones(3, device=DEVICE), dist.ReduceOp.BAND)


def compiled(shape: int) -> Callable[[], None]:
    """A call of a compiled graph with a collective in it."""

    def reduce(x: torch.Tensor) -> torch.Tensor:
        return functional.all_reduce(x * 2, "sum", dist.group.WORLD)

    made = torch.compile(reduce, backend=NAME, fullgraph=True, dynamic=False)
    return lambda: print(made(torch.ones(shape, device=DEVICE)).sum().item() > 0)


@fault
def a_rank_dies_between_compiled_graphs() -> None:
    start(6)
    call = compiled(3)
    call()
    if RANK == 1:
        os._exit(9)
    call()


@fault
def a_rank_does_not_compile_what_the_others_do() -> None:
    start(5)
    reduced(3)
    if RANK == 0:
        time.sleep(8)
    compiled(3)()


@fault
def ranks_call_different_compiled_graphs() -> None:
    start(20)
    calls = [compiled(3), compiled(4)]
    for call in calls:
        call()
    for _ in range(100):
        calls[RANK]()
        time.sleep(0.1)


@fault
def ctrl_c_while_a_compiled_graph_waits_for_another_rank() -> None:
    start(60)
    call = compiled(3)
    call()
    if RANK == 1:
        time.sleep(4)
        os._exit(9)
    threading.Timer(1.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    began = time.monotonic()
    try:
        call()
    except KeyboardInterrupt:
        raise RuntimeError(f"interrupted after {time.monotonic() - began:.0f} s") from None


@fault
def the_device_is_used_first() -> None:
    torch.ones(2, device=NAME).sum().item()
    start()


@fault
def a_second_init() -> None:
    start()
    start()


@fault
def a_world_size_larger_than_what_comes() -> None:
    os.environ["WORLD_SIZE"] = "3"
    start(4)


@fault
def a_rank_outside_the_world() -> None:
    if RANK == 0:
        store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), 2, is_master=True, wait_for_workers=False)
        time.sleep(20)
        del store
    os.environ["RANK"] = "2"
    start(10)


@fault
def a_port_in_use() -> None:
    if RANK == 0:
        with socket.create_server(("127.0.0.1", int(os.environ["MASTER_PORT"]))):
            start(4)


def main() -> None:
    began = time.monotonic()
    try:
        FAULTS[sys.argv[1]]()
    except Exception as error:
        print(f"{time.monotonic() - began:.1f} s: {type(error).__name__}: {error}", flush=True)
        if RANK == 0:
            time.sleep(4)  # PyTorch's store is here: the other rank finds out by itself first
        os._exit(3)
    print("nothing was raised", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
