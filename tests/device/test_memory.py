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


def test_intermediate_results_of_one_trace_count_in_the_peak_only(start: int) -> None:
    n = 512
    x = made(n * n).view(n, n)
    module.synchronize()
    module.reset_peak_memory_stats()
    before = module.memory_allocated()
    largest = ((x @ x).sin() @ x).amax()  # n × n float32 in between, of which nothing stays
    module.synchronize()
    assert module.memory_allocated() == before + 4
    assert module.max_memory_allocated() >= before + n * n * 4
    assert module.max_memory_allocated() <= before + 3 * n * n * 4
    del largest


def test_the_figures_are_those_of_the_arrays_that_jax_counts() -> None:
    import jax

    def jax_bytes() -> int:
        # What may still be running is known by a second array over the same memory.
        return sum({a.unsafe_buffer_pointer(): a.nbytes for a in jax.live_arrays()}.values())

    gc.collect()
    module.synchronize()
    module.empty_cache()
    start = module.memory_allocated()
    outside = jax_bytes() - module.memory_allocated()
    keep = [made(256), torch.zeros(100, 10).to(DEVICE), made(64).exp(), made(10).view(2, 5).T @ made(10).view(2, 5)]
    module.synchronize()
    assert module.memory_allocated() == jax_bytes() - outside > start
    for give_back in (module.synchronize, module.empty_cache, torch.accelerator.empty_cache, module.mem_get_info):
        keep.pop()
        give_back()
        assert module.memory_allocated() == jax_bytes() - outside


def test_the_numbers_of_arrays_add_up(start: int) -> None:
    torch.accelerator.reset_accumulated_memory_stats()
    before = module.memory_stats()["allocation.all.current"]
    a, b = made(256), made(256)
    del a
    stats = module.memory_stats()
    assert stats["allocation.all.current"] == before + 1
    assert (stats["allocation.all.allocated"], stats["allocation.all.freed"]) == (2, 1)
    assert (stats["allocated_bytes.all.allocated"], stats["allocated_bytes.all.freed"]) == (2 * KIB, KIB)
    nested = module.memory_stats_as_nested_dict()
    assert nested["allocated_bytes"]["all"]["current"] == stats["allocated_bytes.all.current"]
    del b


def test_a_snapshot_and_a_summary_name_the_lines_that_made_the_arrays(start: int) -> None:
    large = torch.zeros(1000, 1000).to(DEVICE)
    larger = torch.ones(1001, 1000, device=DEVICE)
    module.synchronize()
    first, second = module.memory_snapshot()[:2]
    assert (first["shape"], first["total_size"], first["dtype"]) == ((1001, 1000), 4_004_000, torch.float32)
    for segment in (first, second):
        (frame,) = segment["blocks"][0]["frames"]
        assert frame["filename"].endswith("test_memory.py") and frame["line"] > 0
        assert frame["name"] == "test_a_snapshot_and_a_summary_name_the_lines_that_made_the_arrays"
    assert first["address"] != second["address"]
    assert sum(s["total_size"] for s in module.memory_snapshot()) == module.memory_allocated()
    summary = module.memory_summary()
    assert f"{DEVICE}:0 (cpu): " in summary and "float32[1001, 1000]" in summary and "test_memory.py:" in summary
    assert "float32[1001, 1000]" not in module.memory_summary(abbreviated=True)
    del large, larger


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
