"""Memory that is not there: the error says what was asked for and what is in use, and the program goes on."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from ..conftest import DEVICE

module = getattr(torch, DEVICE)
MIB = 2**20


@pytest.fixture
def limited() -> Iterator[None]:
    """64 MiB more than what is in use."""
    gc.collect()
    module.synchronize()
    module.reset_accumulated_memory_stats()
    total = module.mem_get_info()[1]
    module.set_per_process_memory_fraction((module.memory_allocated() + 64 * MIB) / total)
    yield
    module.set_per_process_memory_fraction(1.0)


def mib(n: int) -> torch.Tensor:
    return torch.ones(n, 256, 1024, device=DEVICE)


@pytest.mark.usefixtures("limited")
def test_the_error_names_the_request_what_is_in_use_and_the_lines_that_made_it() -> None:
    large = mib(40)
    sent = torch.zeros(8, 256, 1024).to(DEVICE)
    module.synchronize()
    y = large * 2
    with pytest.raises(torch.OutOfMemoryError) as caught:
        module.synchronize()
    message = str(caught.value)
    assert f"{DEVICE}:0 is out of memory. 40.00 MiB more are needed" in message
    assert "float32[40, 256, 1024]" in message and "float32[8, 256, 1024]" in message
    assert "test_out_of_memory.py:" in message and "in mib" in message
    assert "in test_the_error_names_the_request_what_is_in_use_and_the_lines_that_made_it" in message
    assert "set_per_process_memory_fraction(" in message
    assert module.memory_stats()["num_ooms"] == 1
    del y, sent


@pytest.mark.usefixtures("limited")
def test_after_freeing_what_was_recorded_runs_after_all() -> None:
    large = mib(40)
    module.synchronize()
    y = large * 2
    with pytest.raises(torch.OutOfMemoryError):
        module.synchronize()
    del large  # y can take its memory now
    assert y.sum().item() == 2 * 40 * 256 * 1024


@pytest.mark.usefixtures("limited")
def test_what_was_too_large_can_be_dropped_and_the_rest_goes_on() -> None:
    kept = torch.arange(4.0, device=DEVICE)
    kept += 1
    huge = mib(100)
    with pytest.raises(torch.OutOfMemoryError, match=r"100\.00 MiB more"):
        huge[0, 0, 0].item()
    del huge
    assert kept.tolist() == [1, 2, 3, 4]
    small = mib(10)
    assert small.sum().item() == 10 * 256 * 1024


@pytest.mark.usefixtures("limited")
def test_an_upload_that_does_not_fit_is_refused_and_a_smaller_one_fits() -> None:
    with pytest.raises(torch.OutOfMemoryError, match=r"100.00 MiB more.*\n.*float32\[100, 256, 1024\]"):
        torch.zeros(100, 256, 1024).to(DEVICE)
    assert torch.zeros(10, 256, 1024).to(DEVICE).sum().item() == 0


@pytest.mark.usefixtures("limited")
def test_strict_mode_raises_at_the_op() -> None:
    with module.eager_mode("strict"):
        x = mib(40)
        with pytest.raises(torch.OutOfMemoryError):
            x * 2
        assert x[0, 0, 0].item() == 1


@pytest.mark.usefixtures("limited")
def test_a_training_step_that_ran_out_of_memory_is_done_once_there_is_some() -> None:
    def step(model: nn.Linear, device: str) -> torch.Tensor:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        activations = model(torch.ones(32 * 1024, 16, device=device))  # 128 MiB
        activations.square().mean().backward()
        kept.append(activations)
        optimizer.step()
        return activations

    kept: list[torch.Tensor] = []
    expected = nn.Linear(16, 1024)
    model = nn.Linear(16, 1024)
    model.load_state_dict(expected.state_dict())
    model.to(DEVICE)
    with pytest.raises(torch.OutOfMemoryError):
        step(model, DEVICE)
    kept.clear()
    step(expected, "cpu")
    torch.testing.assert_close(model.weight.detach().cpu(), expected.weight.detach(), rtol=1e-5, atol=1e-6)


def test_a_fraction_is_a_number_from_0_to_1() -> None:
    for wrong in (-0.1, 1.5, "half"):
        with pytest.raises(ValueError, match="expected a number from 0 to 1"):
            module.set_per_process_memory_fraction(wrong)
    assert module.get_per_process_memory_fraction() == 1.0
    module.set_per_process_memory_fraction(0.5, DEVICE)
    assert module.get_per_process_memory_fraction(0) == 0.5
    module.set_per_process_memory_fraction(1)


def test_a_failure_of_the_runtime_for_lack_of_memory_is_the_same_error() -> None:
    from torch_pjrt.runtime.memory import exhausted

    keep = mib(1)
    module.synchronize()
    error = exhausted(
        0, RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 123 bytes"), "running"
    )
    assert isinstance(error, torch.OutOfMemoryError)
    assert "allocate 123 bytes" in str(error) and "float32[1, 256, 1024]" in str(error)
    assert exhausted(0, RuntimeError("INTERNAL: something else"), "running") is None
    del keep


def test_a_program_that_the_runtime_had_no_memory_for_runs_at_the_next_use(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch_pjrt.runtime.executable import Executable

    def fail(self: Executable, *args: object) -> list[object]:
        raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 12 bytes")

    x = torch.ones(3, device=DEVICE)
    module.synchronize()
    y = x * 3
    with monkeypatch.context() as patch:
        patch.setattr(Executable, "__call__", fail)
        with pytest.raises(torch.OutOfMemoryError, match=r"(?s)with the ops.*aten::mul.*RESOURCE_EXHAUSTED"):
            y.tolist()
    assert (y + 1).tolist() == [4, 4, 4]
