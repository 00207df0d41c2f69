"""A value overwritten and held by nobody else gives its memory to the new one; one that is held stays as it was."""

from __future__ import annotations

import gc

import torch

from torch_pjrt import _C

from ..conftest import DEVICE

module = getattr(torch, DEVICE)


def ready(n: int = 64) -> torch.Tensor:
    x = torch.arange(float(n), device=DEVICE)
    module.synchronize()
    return x


def test_an_in_place_op_deletes_the_array_it_overwrote() -> None:
    x = ready()
    old = _C.array(x)
    address = old.unsafe_buffer_pointer()
    del old
    x.add_(1)
    assert _C.array(x).unsafe_buffer_pointer() == address
    assert x[:3].tolist() == [1, 2, 3]


def test_an_array_somebody_else_holds_is_left_alone() -> None:
    x = ready()
    held = _C.array(x)
    x.add_(1)
    module.synchronize()
    assert not held.is_deleted()
    assert float(held[0]) == 0
    assert x[0].item() == 1


def test_a_copy_that_shares_the_value_is_left_alone() -> None:
    x = ready()
    y = torch.empty_like(x).copy_(x)
    z = x.detach().clone()
    x.mul_(0)
    module.synchronize()
    assert (x.sum().item(), y[:3].tolist(), z[:3].tolist()) == (0, [0, 1, 2], [0, 1, 2])


def test_what_autograd_saved_is_left_alone() -> None:
    x = ready(3).requires_grad_()
    y = x.exp()
    kept = y.detach().clone()
    y.sum().backward()
    with torch.no_grad():
        x.zero_()
    torch.testing.assert_close(x.grad.cpu(), kept.cpu())  # type: ignore[union-attr]


def test_in_place_steps_need_no_more_memory_than_the_tensor_has() -> None:
    gc.collect()
    x = ready(1024)
    for _ in range(3):
        x.mul_(2).add_(1)
        module.synchronize()
        assert module.memory_allocated() >= x.nbytes
    before = module.memory_allocated()
    x.mul_(2)
    module.synchronize()
    assert module.memory_allocated() == before
