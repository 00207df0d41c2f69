"""Other processes: forked children, spawned workers, what cannot be shared, and interrupts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from multiprocessing.reduction import ForkingPickler

import pytest
import torch
import torch.multiprocessing as mp
from torch import nn

from ..conftest import DEVICE
from ..process import output

FORKED = """
import os, sys, torch
name = torch._C._get_privateuse1_backend_name()
used = {used}
if used:
    x = torch.ones(3, device=name)
    (x + 1).tolist()
pid = os.fork()
if pid == 0:
    try:
        {child}
    except RuntimeError as e:
        print("RuntimeError:", e)
    sys.stdout.flush()
    os._exit(0)
os.waitpid(pid, 0)
print("parent", (torch.ones(2, device=name) * 2).tolist())
"""

TOUCHES = {
    "computing": "print((torch.ones(2, device=name) + 1).tolist())",
    "reading the parent's tensor": "print(x.tolist())",
    "writing the parent's tensor": "x.add_(1); print(x.tolist())",
    "sending": "print(torch.ones(2).to(name))",
    "synchronizing": "torch.accelerator.synchronize(); print('did')",
    "a backward pass": "y = torch.ones(2, device=name, requires_grad=True); y.sum().backward(); print(y.grad)",
    "manual_seed": "torch.manual_seed(1); print(torch.rand(2, device=name))",
}


@pytest.mark.parametrize("child", TOUCHES.values(), ids=TOUCHES)
def test_a_forked_child_that_touches_the_device_gets_an_error_that_says_what_to_do(child: str) -> None:
    lines = output(FORKED.format(used=True, child=child)).splitlines()
    assert lines[0].startswith("RuntimeError: the device cannot be used in a forked child"), lines
    assert "spawn" in lines[0]
    assert lines[-1] == "parent [2.0, 2.0]"


def test_a_forked_child_that_only_uses_the_cpu_works() -> None:
    child = "y = torch.ones(2, requires_grad=True); (y @ y).backward(); torch.manual_seed(3); print(y.grad.tolist())"
    assert output(FORKED.format(used=True, child=child)).splitlines() == ["[2.0, 2.0]", "parent [2.0, 2.0]"]


def test_a_child_forked_before_the_device_was_used_may_use_it() -> None:
    child = "print((torch.ones(2, device=name) + 1).tolist())"
    assert output(FORKED.format(used=False, child=child)).splitlines() == ["[2.0, 2.0]", "parent [2.0, 2.0]"]


def test_a_forked_child_may_exit_with_tensors_of_the_device_in_scope() -> None:
    assert (
        output("""
        import os, sys, torch
        name = torch._C._get_privateuse1_backend_name()
        x = torch.ones(3, device=name)
        y = x + 1
        torch.accelerator.synchronize()
        z = y * 2   # still recorded
        pid = os.fork()
        if pid == 0:
            del x, y, z
            sys.exit(0)   # with all that Python does at exit
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), z.tolist())
    """)
        == "0 [4.0, 4.0, 4.0]\n"
    )


def test_sharing_memory_is_refused_with_what_to_do_instead() -> None:
    x = torch.ones(3, device=DEVICE)
    model = nn.Linear(2, 2).to(DEVICE)
    for share in (x.share_memory_, model.share_memory, x.untyped_storage().share_memory_):
        with pytest.raises(RuntimeError, match=r"cannot be shared with another process(.|\n)*tensor\.cpu\(\)"):
            share()
    on_host = torch.ones(3)
    assert on_host.share_memory_().is_shared()


def test_sending_a_device_tensor_to_another_process_is_refused_in_the_sender() -> None:
    receiving, sending = mp.Pipe(duplex=False)
    for sent in (torch.ones(2, device=DEVICE), torch.empty(0, device=DEVICE), nn.Linear(1, 1).to(DEVICE)):
        with pytest.raises(RuntimeError, match="cannot be shared with another process"):
            ForkingPickler.dumps(sent)
        with pytest.raises(RuntimeError, match="cannot be shared with another process"):
            sending.send(sent)
    sending.send(torch.arange(3))
    assert receiving.recv().tolist() == [0, 1, 2]
    with pytest.raises(RuntimeError, match="cannot be shared with another process"):
        mp.get_context("spawn").Process(target=print, args=(torch.ones(1, device=DEVICE),)).start()


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("what", ["returns", "collates", "touches"])
def test_a_loaders_worker_that_hands_on_device_tensors_raises_in_the_parent(what: str, method: str) -> None:
    from .workers import Rows, to_device

    if what == "touches" and method == "spawn":
        pytest.skip("a spawned worker may use the device: see the next test")
    module = getattr(torch, DEVICE)
    (torch.ones(1, device=DEVICE) + 1).tolist()
    module.synchronize()
    loader = torch.utils.data.DataLoader(
        Rows(DEVICE, what), 2, num_workers=1, multiprocessing_context=method,
        collate_fn=to_device if what == "collates" else None, timeout=90,
    )  # fmt: skip
    said = "cannot be shared with another process|cannot be used in a forked child"
    with pytest.raises(RuntimeError, match=said):
        next(iter(loader))


def test_a_device_tensor_on_a_queue_raises_where_it_is_taken() -> None:
    queue = mp.get_context("spawn").Queue()
    queue.put([torch.ones(2), torch.ones(2, device=DEVICE)])
    with pytest.raises(RuntimeError, match=r"tensor\.cpu\(\)(.|\n)*put it on a queue"):
        queue.get(timeout=30)
    queue.put(torch.ones(2))
    assert queue.get(timeout=30).tolist() == [1, 1]


def test_a_spawned_process_uses_the_device() -> None:
    from .workers import double_on_device

    context = mp.get_context("spawn")
    queue = context.SimpleQueue()
    process = context.Process(target=double_on_device, args=(DEVICE, torch.arange(3.0), queue))
    process.start()
    assert queue.get() == [0, 2, 4]
    process.join(60)
    assert process.exitcode == 0


INTERRUPTED = """
import os, signal, sys, threading, time
import torch
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background is begun with SIGINT ignored
name = torch._C._get_privateuse1_backend_name()
{begin}
caught = threading.Event()
def interrupt():
    time.sleep({after})
    while not caught.is_set():  # a signal that arrives in a callback of the garbage collector is lost
        os.kill(os.getpid(), signal.SIGINT)
        caught.wait(1)
threading.Thread(target=interrupt, daemon=True).start()
heard = 0.0
began = time.monotonic()
try:
    {work}
    caught.set()
    print("finished")
except KeyboardInterrupt:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the next one may be on its way
    caught.set()
    heard = time.monotonic() - began - {after}
    print("interrupted")
print((torch.ones(2, device=name) + 1).tolist())
{end}
"""


def test_ctrl_c_during_a_long_compile_stops_it_and_the_next_op_works() -> None:
    # 1,500 different programs one after the other: each compiles for a while, and signals arrive between them.
    lines = output(
        INTERRUPTED.format(
            begin="(torch.ones(1, device=name) + 1).tolist()",
            after=1.5,
            work="[(torch.ones(n, n + 1, device=name).sin() @ torch.ones(n + 1, 2, device=name)).tolist() "
            "for n in range(1, 1500)]",
            end="",
        )
    ).splitlines()
    assert lines == ["interrupted", "[2.0, 2.0]"]


def test_ctrl_c_during_one_long_compile_is_heard_at_once_and_its_results_can_be_made_later() -> None:
    lines = output(
        INTERRUPTED.format(
            begin="x = torch.eye(8, device=name)\nfor i in range(60): x = (x @ x.roll(i % 7, 0)).tanh() * 0.5 + 0.1",
            after=0.7,  # it compiles for five seconds on an idle machine
            work="x.sum().item()",
            end="print(torch.isfinite(x).all().item(), heard)",
        )
    ).splitlines()
    assert lines[:2] == ["interrupted", "[2.0, 2.0]"]
    finite, heard = lines[2].split()
    assert finite == "True"
    assert float(heard) < 20, "heard only when the compile had ended"


def test_ctrl_c_during_a_long_run_stops_the_program() -> None:
    lines = output(
        INTERRUPTED.format(
            begin="a = torch.randn(600, 600, device=name) / 25\n(a @ a).sum().item()\nturn = 0",
            after=1.0,
            work="""
    while True:
        for _ in range(20): a = (a @ a).tanh()
        torch.get_device_module(name).synchronize() if turn % 8 == 0 else a.sum()
        turn += 1
        if time.monotonic() - began > 60: break
""",
            end="print(torch.isfinite(a).all().item())",
        )
    ).splitlines()
    assert lines == ["interrupted", "[2.0, 2.0]", "True"]


def test_ctrl_c_while_a_compiled_graph_runs_leaves_what_it_writes_old_or_new() -> None:
    """Signals around a graph that overwrites its argument: none between taking its memory and binding."""
    lines = output("""
        import os, random, signal, threading, time
        import torch
        signal.signal(signal.SIGINT, signal.default_int_handler)
        name = torch._C._get_privateuse1_backend_name()
        @torch.compile
        def step(x):
            x.add_(1)
        x = torch.zeros(64, device=name)
        step(x)
        armed = threading.Event()
        def interrupt():
            while armed.wait():
                time.sleep(random.random() / 200)
                armed.clear()
                os.kill(os.getpid(), signal.SIGINT)
        threading.Thread(target=interrupt, daemon=True).start()
        heard, calls, end = 0, 1, time.monotonic() + 6
        while time.monotonic() < end:
            try:
                armed.set()
                while time.monotonic() < end:
                    calls += 1
                    step(x)
                    if calls % 200 == 0:
                        armed.set()  # one may be lost in a callback
                time.sleep(1)  # the last signal
            except KeyboardInterrupt:
                heard += 1
        print(heard > 5, len(set(x.tolist())) == 1, 0 < x[0].item() <= calls)
    """)
    assert lines == "True True True\n"


def test_a_program_that_nobody_catches_ends_with_the_status_of_an_interrupt() -> None:
    program = """
        import signal
        import torch
        signal.signal(signal.SIGINT, signal.default_int_handler)
        name = torch._C._get_privateuse1_backend_name()
        (torch.ones(1, device=name) + 1).tolist()
        print("ready", flush=True)
        n = 0
        while True:
            n += 1
            (torch.ones(n, 2, device=name) * 3).sum().item()
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=os.environ | {"JAX_PLATFORMS": "cpu"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode in (-signal.SIGINT, 130)
    assert errors.rstrip().endswith("KeyboardInterrupt")
