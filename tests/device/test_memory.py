"""Memory figures count the bytes of the arrays that live tensors are made of."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch

from ..conftest import DEVICE

module = getattr(torch, DEVICE)
KIB = 256 * 4  # 256 float32


@pytest.fixture
def start() -> Iterator[int]:
    gc.collect()
    module.synchronize()
    module.reset_peak_memory_stats()
    yield module.memory_allocated()


def made(elements: int) -> torch.Tensor:
    t = torch.ones(elements, device=DEVICE)
    module.synchronize()
    return t


def test_a_tensor_counts_its_bytes_while_it_lives(start: int) -> None:
    a = made(256)
    assert module.memory_allocated() == start + KIB
    b = made(512)
    assert module.memory_allocated() == start + 3 * KIB
    del a
    assert module.memory_allocated() == start + 2 * KIB
    del b
    assert module.memory_allocated() == start


def test_torch_accelerator_has_the_same_figures(start: int) -> None:
    keep = made(256)
    assert torch.accelerator.memory_allocated() == module.memory_allocated() == start + KIB
    assert torch.accelerator.memory_reserved() == module.memory_reserved() == start + KIB
    assert torch.accelerator.max_memory_allocated() == module.max_memory_allocated()
    assert torch.accelerator.memory_stats()["allocated_bytes.all.current"] == start + KIB
    assert module.memory_stats()["allocated_bytes.all.current"] == start + KIB
    torch.accelerator.empty_cache()
    assert keep.sum().item() == 256


def test_an_empty_tensor_of_a_terabyte_costs_nothing(start: int) -> None:
    huge = torch.empty(10**12, device=DEVICE)
    module.synchronize()
    assert huge.numel() == 10**12
    assert module.memory_allocated() == start


def test_a_view_costs_nothing_and_a_clone_its_bytes(start: int) -> None:
    a = made(256)
    view = a[10:]
    module.synchronize()
    assert module.memory_allocated() == start + KIB
    clone = a.clone()
    clone += 1
    module.synchronize()
    assert module.memory_allocated() == start + 2 * KIB
    assert (view.sum().item(), clone.sum().item()) == (246, 512)


def test_the_peak_is_the_most_at_once_until_it_is_reset(start: int) -> None:
    a, b = made(256), made(256)
    del a, b
    assert module.max_memory_allocated() == start + 2 * KIB
    module.reset_peak_memory_stats()
    assert module.max_memory_allocated() == start
    c = made(512)
    torch.accelerator.reset_peak_memory_stats()
    assert module.max_memory_allocated() == torch.accelerator.max_memory_allocated() == start + c.nbytes


def test_intermediate_results_of_one_trace_are_never_counted(start: int) -> None:
    total = (torch.ones(256, device=DEVICE).exp() * 3).sum()
    module.synchronize()
    assert module.memory_allocated() == start + 4
    assert module.max_memory_allocated() == start + 4
    del total


def test_a_freed_graph_gives_its_activations_back(start: int) -> None:
    x = torch.ones(256, device=DEVICE, requires_grad=True)
    loss = x.exp().sum()
    module.synchronize()
    assert module.memory_allocated() == start + 2 * KIB + 4  # x, exp(x) for the backward pass, the loss
    loss.backward()
    module.synchronize()
    assert module.memory_allocated() == start + 2 * KIB + 4  # x, its gradient, the loss


def test_free_and_total_memory_are_the_hosts_on_the_cpu_platform() -> None:
    free, total = module.mem_get_info()
    assert 0 < free <= total
    assert torch.accelerator.get_memory_info(0)[1] == total == module.get_device_properties().total_memory
