"""Several threads: computing at once, autograd, their own current device, errors that stay with their thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

from ..conftest import DEVICE
from ..process import output

module = getattr(torch, DEVICE)
THREADS = 3


def in_threads(work: Callable[[int], Any]) -> list[Any]:
    """What `work(k)` returns in each of THREADS threads that start together; what one raises is raised."""
    start = threading.Barrier(THREADS)

    def begin(k: int) -> Any:
        start.wait()
        return work(k)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(begin, range(THREADS), timeout=300))


@pytest.mark.parametrize("mode", ["strict", "async", "fused"])
def test_threads_that_compute_at_once_each_get_their_own_results(mode: str) -> None:
    def work(k: int) -> Tensor:
        x = torch.full((4, 4), float(k), device=DEVICE)
        for i in range(8):
            x = x @ torch.eye(4, device=DEVICE) + 1
            x[i % 4].mul_(1)
            if i % 4 == 3:
                x.sum().item()
        return x.cpu()

    with module.eager_mode(mode):
        for k, result in enumerate(in_threads(work)):
            assert torch.equal(result, torch.full((4, 4), k + 8.0))


def trained(device: str, k: int) -> list[Tensor]:
    data = torch.Generator().manual_seed(k)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    for p in model.parameters():
        p.data = torch.randn(p.shape, generator=data) / 4
    model.to(device)
    optimizer = optim.AdamW(model.parameters(), 0.05)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(6, 4, generator=data).to(device)).square().mean().backward()
        optimizer.step()
    return [p.detach().cpu() for p in model.parameters()]


def test_models_train_in_threads_as_they_train_alone() -> None:
    for k, parameters in enumerate(in_threads(lambda k: trained(DEVICE, k))):
        torch.testing.assert_close(parameters, trained("cpu", k), rtol=1e-4, atol=1e-5)


def test_threads_add_their_gradients_to_shared_parameters() -> None:
    shared = nn.Linear(3, 2).to(DEVICE)
    weights = torch.arange(1.0, THREADS + 1)

    def work(k: int) -> None:
        (shared(torch.ones(1, 3, device=DEVICE)) * weights[k].item()).sum().backward()

    in_threads(work)
    assert shared.bias.grad is not None
    assert shared.bias.grad.tolist() == [6, 6]


def test_an_error_stays_in_the_thread_that_made_it() -> None:
    def work(k: int) -> list[float]:
        x = torch.ones(3, device=DEVICE)
        for _ in range(3):
            if k == 0:
                with pytest.raises(RuntimeError, match=r"broadcast|size"):
                    x + torch.ones(4, device=DEVICE)
            x = x * 2
        return x.tolist()

    assert in_threads(work) == [[8, 8, 8]] * THREADS


def test_what_one_thread_recorded_another_reads() -> None:
    ready, values = threading.Event(), []
    made: list[Tensor] = []

    def make() -> None:
        x = torch.arange(4.0, device=DEVICE)
        made.append(x.mul_(3)[1:])
        ready.set()

    def read() -> None:
        assert ready.wait(60)
        values.append(made[0].tolist())

    threads = [threading.Thread(target=f) for f in (read, make)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120)
    assert values == [[3, 6, 9]]


def test_the_grad_mode_and_autocast_of_one_thread_are_not_anothers() -> None:
    def work(k: int) -> tuple[bool, torch.dtype]:
        x = torch.ones(2, 2, device=DEVICE, requires_grad=True)
        with torch.set_grad_enabled(k != 0), torch.autocast(DEVICE, torch.bfloat16, enabled=k == 1):
            y = x @ x
        return y.requires_grad, y.dtype

    assert in_threads(work) == [(False, torch.float32), (True, torch.bfloat16), (True, torch.float32)]


def test_each_thread_has_its_own_current_device() -> None:
    lines = output(
        """
        import threading, torch
        name = torch._C._get_privateuse1_backend_name()
        module = getattr(torch, name)
        both, seen = threading.Barrier(2), {}
        def work(k):
            module.set_device(k)
            both.wait()
            x = torch.full((2,), float(k), device=name)
            for _ in range(5):
                x = x * 2 + 1
            x.requires_grad_().square().sum().backward()
            seen[k] = (x.device.index, x.grad.device.index, x.tolist())
            both.wait()
        threads = [threading.Thread(target=work, args=(k,)) for k in (0, 1)]
        for t in threads: t.start()
        for t in threads: t.join()
        print(seen[0], seen[1], module.current_device())
        """,
        JAX_NUM_CPU_DEVICES="2",
    )
    assert lines.split("\n")[0] == "(0, 0, [31.0, 31.0]) (1, 1, [63.0, 63.0]) 0"


def test_a_thread_may_end_with_work_still_recorded() -> None:
    kept: list[Tensor] = []

    def work() -> None:
        kept.append(torch.ones(3, device=DEVICE) * 2)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    assert (kept[0] + 1).tolist() == [3, 3, 3]
