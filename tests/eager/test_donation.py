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


def address(x: torch.Tensor) -> int:
    place: int = _C.array(x).unsafe_buffer_pointer()
    return place


def test_a_new_value_takes_the_memory_of_its_own_old_one_whatever_else_has_its_shape() -> None:
    a, b, c = ready(), ready(), ready()
    places = [address(x) for x in (a, b, c)]
    first = a + b  # of the same shape, made before the others, and kept
    c.mul_(3)
    torch._foreach_add_([b, a], [a, c])
    a[2:4] = 7
    module.synchronize()
    assert [address(x) for x in (a, b, c)] == places
    expected = torch.arange(64.0)
    torch.testing.assert_close(first.cpu(), 2 * expected)
    torch.testing.assert_close(b.cpu(), 2 * expected)
    torch.testing.assert_close(c.cpu(), 3 * expected)
    assert a[1:5].tolist() == [4, 7, 7, 16]


def test_a_step_updates_parameters_and_moments_in_place_though_gradients_are_kept() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> list[int]:
        optimizer.zero_grad()
        model(torch.ones(4, 8, device=DEVICE)).square().sum().backward()
        optimizer.step()
        state = [s[k] for s in optimizer.state.values() for k in ("exp_avg", "exp_avg_sq")]
        return [address(x) for x in (*model.parameters(), *state)]

    step()
    assert step() == step()


def test_an_input_that_is_read_again_does_not_give_its_memory_away_before() -> None:
    x = ready()
    place = address(x)
    early = x + 1
    late = x * 2
    del x
    module.synchronize()
    assert address(early) != place
    assert address(late) == place
    assert (early[3].item(), late[3].item()) == (4, 6)
