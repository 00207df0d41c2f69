"""Storages as libraries use them: identity, `.data`, `set_`, `resize_`, `as_strided_`, `untyped_storage`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

from ..conftest import DEVICE
from .agree import agree, both_raise


def test_addresses_tell_which_tensors_share_memory() -> None:
    def program(device: str) -> Any:
        x = torch.arange(6.0, device=device)
        y, z = x[2:], x.clone()
        places = [t.untyped_storage().data_ptr() for t in (x, y, z)]
        layer = nn.Linear(2, 2, device=device)
        tied = nn.Linear(2, 2, device=device)
        tied.weight = layer.weight
        return (
            places[0] == places[1] != places[2],
            y.data_ptr() - x.data_ptr(),
            y.storage_offset(),
            x.untyped_storage().nbytes(),
            len(y.untyped_storage()),
            torch.empty(0, device=device).data_ptr(),
            layer.weight.data_ptr() == tied.weight.data_ptr() != layer.bias.data_ptr(),
            layer.weight.untyped_storage()._cdata == tied.weight.untyped_storage()._cdata,
            x.is_set_to(x.view(6)),
            x.is_set_to(y),
        )

    agree(program)


def test_data_shares_memory_but_no_version_and_no_gradient() -> None:
    def program(device: str) -> Any:
        x = torch.ones(3, device=device, requires_grad=True)
        x.data.mul_(5)
        x.data[0] = 7
        other = torch.ones(3, device=device)
        other.data = torch.zeros(2, dtype=torch.float64, device=device)
        p = nn.Parameter(torch.zeros(3, device=device))
        p.data = torch.ones(3, device=device)
        p.data.add_(1)
        (p * 2).sum().backward()
        return x, x._version, x.data.requires_grad, other, p, p.grad

    agree(program)


def test_data_can_move_a_tensor_to_the_device_and_back() -> None:
    layer = nn.Linear(2, 2)
    weight, before = layer.weight, layer.weight.detach().clone()
    weight.data = weight.data.to(DEVICE)
    layer.bias.data = layer.bias.data.to(DEVICE)
    assert weight.device.type == DEVICE and weight.is_leaf and weight.requires_grad
    layer(torch.ones(1, 2, device=DEVICE)).sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [[1, 1], [1, 1]]
    weight.grad.data = weight.grad.data.cpu()
    weight.data = weight.data.cpu()
    assert torch.equal(weight.detach(), before)


def test_a_module_keeps_its_parameter_objects_when_it_moves() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    optimizer = optim.SGD(model.parameters(), 0.5)  # made before the model moves
    before = [id(p) for p in model.parameters()]
    model.to(DEVICE)
    assert [id(p) for p in model.parameters()] == before
    old = model[0].bias.tolist()
    model(torch.randn(4, 2).to(DEVICE)).square().sum().backward()
    optimizer.step()
    assert {p.grad.device.type for p in model.parameters() if p.grad is not None} == {DEVICE}
    model(torch.randn(4, 2).to(DEVICE)).sum().backward()
    optimizer.step()
    assert model[0].weight.device.type == DEVICE and model[1].bias.tolist() != [0, 0, 0]
    model.cpu()
    assert [id(p) for p in model.parameters()] == before
    assert len(old) == 3


RESHAPED: dict[str, Callable[[str], Any]] = {
    "set_ to a storage": lambda d: _of_storage(torch.arange(6.0, device=d)),
    "set_ to a tensor": lambda d: torch.empty(0, device=d).set_(torch.arange(3.0, device=d)),  # type: ignore[call-overload]
    "set_ to nothing": lambda d: torch.ones(3, device=d).set_().shape,  # type: ignore[call-overload]
    "resize_ keeps the content": lambda d: torch.arange(4.0, device=d).resize_(3),
    "resize_ and back": lambda d: torch.arange(4.0, device=d).resize_(2).resize_(4),
    "resize_ to more": lambda d: torch.arange(4.0, device=d).resize_(2, 3)[0],
    "resize_as_": lambda d: torch.arange(4.0, device=d).resize_as_(torch.ones(2, 2, device=d)),
    "as_strided_": lambda d: torch.arange(6.0, device=d).as_strided_((2, 2), (3, 1), 1),
    "a window by strides": lambda d: torch.arange(6.0, device=d).as_strided((4, 3), (1, 1)),
    "a storage made bigger": lambda d: _resized(torch.arange(4.0, device=d), 24),
    "a storage emptied and filled": lambda d: _resized(_resized(torch.arange(4.0, device=d), 0), 16).fill_(3),
    "t_, squeeze_, swapaxes_": lambda d: torch.ones(1, 2, 3, device=d).squeeze_(0).t_().swapaxes_(0, 1),
}


def _of_storage(x: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.empty(0, device=x.device).set_(x.untyped_storage(), 1, (2, 2), (2, 1))
    y.add_(10)
    return x, y


def _resized(x: Tensor, nbytes: int) -> Tensor:
    x.untyped_storage().resize_(nbytes)
    assert x.untyped_storage().nbytes() == nbytes
    return x


@pytest.mark.parametrize("program", RESHAPED.values(), ids=RESHAPED)
def test_a_tensor_laid_out_anew_is_the_cpus(program: Callable[[str], Any]) -> None:
    agree(program)


STORAGES: dict[str, Callable[[str], Any]] = {
    "a clone": lambda d: torch.empty(0, device=d).set_(torch.arange(4.0, device=d).untyped_storage().clone(), 0, (4,)),
    "a new one": lambda d: torch.empty(0, device=d).set_(torch.UntypedStorage(16, device=d), 0, (4,)).fill_(3),
    "copy_": lambda d: _copied(torch.arange(4.0, device=d), d),
    "copy_ from the host": lambda d: _copied(torch.arange(4.0), d),
    "fill_": lambda d: _zeroed(torch.arange(4.0, device=d)),
    "cpu": lambda d: torch.arange(4, dtype=torch.uint8, device=d).untyped_storage().cpu().tolist(),
    "tolist": lambda d: torch.arange(4, dtype=torch.uint8, device=d).untyped_storage().tolist(),
    "an element": lambda d: torch.arange(4, dtype=torch.uint8, device=d).untyped_storage()[2],
    "its size": lambda d: torch.arange(4.0, device=d).untyped_storage().size(),
    "typed": lambda d: (torch.arange(4.0, device=d).storage()[1], torch.arange(4.0, device=d).storage().size()),
}


def _copied(x: Tensor, device: str) -> Tensor:
    y = torch.zeros(4, device=device)
    y.untyped_storage().copy_(x.untyped_storage())
    return y


def _zeroed(x: Tensor) -> Tensor:
    x.untyped_storage().fill_(0)
    return x


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("program", STORAGES.values(), ids=STORAGES)
def test_a_storage_behaves_as_the_cpus(program: Callable[[str], Any]) -> None:
    agree(program)


def test_sizes_that_are_not_are_refused() -> None:
    assert "negative" in both_raise(lambda d: torch.ones(2, device=d).resize_(-1))
    both_raise(lambda d: torch.ones(2, device=d).as_strided((2,), (-1,)))
    both_raise(lambda d: torch.empty(0, device=d).set_(torch.ones(2, device=d).untyped_storage(), -1, (1,)))


def test_an_fsdp_like_loop_empties_and_refills_a_flat_storage() -> None:
    def program(device: str) -> Any:
        flat = torch.arange(6.0, device=device)
        views = [flat[:2].view(2, 1), flat[2:].view(2, 2)]
        kept = flat.clone()
        for _ in range(3):
            flat.untyped_storage().resize_(0)
            flat.untyped_storage().resize_(24)
            flat.copy_(kept)
            kept = kept + views[1].sum()
        return flat, views, kept

    agree(program)


def test_ops_that_view_without_saying_so_share_memory() -> None:
    def program(device: str) -> Any:
        ops: list[Callable[[Tensor], Tensor]] = [
            lambda x: torch.ops.aten._unsafe_view(x, (2, 6)), torch.ops.aten.lift, torch.ops.aten.lift_fresh,
            lambda x: x.unsafe_split(2)[0], lambda x: x.unsafe_chunk(2)[1],
            lambda x: x.unsafe_split_with_sizes([1, 2])[0], lambda x: torch.ops.aten._reshape_alias(x, (2, 6), (6, 1)),
        ]  # fmt: skip
        bases = [torch.zeros(3, 4, device=device) for _ in ops]
        for op, base in zip(ops, bases, strict=True):
            op(base).add_(1)
        into = torch.zeros(4, 6, device=device)
        torch.kron(torch.arange(4.0, device=device).view(2, 2), torch.ones(2, 3, device=device), out=into)
        return bases, into

    agree(program)
