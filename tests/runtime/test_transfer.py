"""Copies between host and device keep every bit, whatever the dtype, shape and strides, and alias nothing."""

from __future__ import annotations

import pytest
import torch

from torch_pjrt.lowering.dtypes import SUPPORTED

from ..conftest import DEVICE

BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@pytest.mark.parametrize("dtype", sorted(SUPPORTED, key=str), ids=str)
def test_every_supported_dtype_makes_the_round_trip(dtype: torch.dtype) -> None:
    source = torch.tensor([0, 1, 2, 3]).to(dtype)
    back = source.to(DEVICE).cpu()
    assert back.dtype == dtype
    assert torch.equal(back.view(torch.uint8), source.view(torch.uint8))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_infinities_nans_and_negative_zero_survive(dtype: torch.dtype) -> None:
    source = torch.tensor([float("inf"), -float("inf"), float("nan"), -0.0, 1e-7]).to(dtype)
    bits = BITS[dtype.itemsize]
    assert torch.equal(source.to(DEVICE).cpu().view(bits), source.view(bits))


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (2, 3, 4)], ids=str)
def test_every_shape_makes_the_round_trip(shape: tuple[int, ...]) -> None:
    source = torch.randn(shape)
    there = source.to(DEVICE)
    assert there.shape == source.shape
    assert torch.equal(there.cpu(), source)


def test_strided_sources_and_targets_are_copied_as_they_look() -> None:
    source = torch.arange(24.0).reshape(4, 6)
    assert torch.equal(source.T[1::2].to(DEVICE).cpu(), source.T[1::2])
    assert torch.equal(source.to(DEVICE).T[1::2].cpu(), source.T[1::2])
    target = torch.zeros(6, 4)
    target.T.copy_(source.to(DEVICE))
    assert torch.equal(target, source.T)
    there = torch.zeros(4, 6, device=DEVICE)
    there[1:3, ::2].copy_(source[1:3, ::2])
    expected = torch.zeros(4, 6)
    expected[1:3, ::2] = source[1:3, ::2]
    assert torch.equal(there.cpu(), expected)


def test_channels_last_stays_channels_last() -> None:
    source = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    there = source.to(DEVICE)
    assert there.stride() == source.stride()
    assert there.cpu().stride() == source.stride()
    assert torch.equal(there.cpu(), source)


def test_a_copy_may_cast_and_broadcast() -> None:
    there = torch.zeros(2, 3, device=DEVICE, dtype=torch.float64)
    there.copy_(torch.tensor([1, 2, 3]))
    assert there.tolist() == [[1, 2, 3], [1, 2, 3]]
    here = torch.zeros(2, 3, dtype=torch.int32)
    here.copy_(torch.tensor([1.5, 2.5, -3.5], device=DEVICE))
    assert here.tolist() == [[1, 2, -3], [1, 2, -3]]
    assert torch.ones(2).to(DEVICE, torch.bfloat16).dtype == torch.bfloat16


def test_nothing_is_shared_with_the_host() -> None:
    here = torch.ones(1000)
    there = here.to(DEVICE)
    here.zero_()
    assert there.sum().item() == 1000
    back = there.cpu()
    back.zero_()
    assert there.sum().item() == 1000
    there.add_(1)
    assert back.sum().item() == 0
    again = there.cpu()
    there.zero_()
    torch.accelerator.synchronize()
    assert again.sum().item() == 2000


def test_lazily_conjugated_and_negated_tensors_arrive_resolved() -> None:
    z = torch.tensor([1 + 2j, 3 - 4j])
    assert torch.equal(z.conj().to(DEVICE).cpu(), z.conj())
    assert torch.equal(z.to(DEVICE).conj().cpu().resolve_conj(), z.conj().resolve_conj())
    assert z.to(DEVICE).conj().imag.tolist() == [-2, 4]


def test_items_and_lists_come_from_tensors_of_any_rank() -> None:
    assert torch.tensor([[7]], device=DEVICE).item() == 7
    assert torch.tensor([2.5], device=DEVICE).item() == 2.5
    assert torch.tensor([[True, False]], device=DEVICE).tolist() == [[True, False]]
    assert int(torch.tensor([3], device=DEVICE)) == 3


def test_pinned_and_non_blocking_copies_are_accepted() -> None:
    there = torch.arange(4.0).to(DEVICE, non_blocking=True)
    assert there.to("cpu", non_blocking=True).tolist() == [0, 1, 2, 3]
