"""torch.func and forward-mode AD: what transforms of programs return is what they return on the CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, func, nn
from torch.autograd import forward_ad
from torch.nn import functional

from ..conftest import DEVICE
from .agree import agree


def vector(device: str) -> Tensor:
    return torch.tensor([1.0, 2.0, 3.0], device=device)


def cubic(x: Tensor) -> Tensor:
    return (x**3).sum() + x.prod()


def network(device: str) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.LayerNorm(4), nn.Linear(4, 2)).to(device)


DERIVATIVES: dict[str, Callable[[str], Any]] = {
    "grad": lambda d: func.grad(cubic)(vector(d)),
    "grad of grad": lambda d: func.grad(lambda x: func.grad(cubic)(x).sum())(vector(d)),
    "grad and value": lambda d: func.grad_and_value(cubic)(vector(d)),
    "vjp": lambda d: func.vjp(torch.sin, vector(d))[1](vector(d)),
    "jvp": lambda d: func.jvp(torch.sin, (vector(d),), (vector(d),)),
    "jvp of two": lambda d: func.jvp(torch.mul, (vector(d), vector(d)), (vector(d), torch.zeros_like(vector(d)))),
    "linearize": lambda d: func.linearize(torch.sin, vector(d))[1](vector(d)),
    "jacrev": lambda d: func.jacrev(network(d))(vector(d)),
    "jacfwd": lambda d: func.jacfwd(network(d))(vector(d)),
    "hessian": lambda d: func.hessian(cubic)(vector(d)),
    "hessian of a network": lambda d: (lambda model: func.hessian(lambda x: model(x).sum())(vector(d)))(network(d)),
    "jacrev of jacrev": lambda d: func.jacrev(func.jacrev(cubic))(vector(d)),
    "autograd's hessian": lambda d: torch.autograd.functional.hessian(cubic, vector(d)),
    "autograd's jacobian, forward": lambda d: torch.autograd.functional.jacobian(
        network(d), vector(d), strategy="forward-mode", vectorize=True
    ),
    "hvp and vhp": lambda d: (
        torch.autograd.functional.hvp(cubic, vector(d), vector(d)),
        torch.autograd.functional.vhp(cubic, vector(d), vector(d)),
    ),
    "functionalize": lambda d: func.functionalize(lambda x: x.clone().add_(1).view(-1).mul_(2))(vector(d)),
}


@pytest.mark.parametrize("program", DERIVATIVES.values(), ids=DERIVATIVES)
def test_a_derivative_is_the_cpus(program: Callable[[str], Any]) -> None:
    agree(program)


def matrix(device: str) -> Tensor:
    return torch.arange(12.0, device=device).reshape(3, 4)


MAPPED: dict[str, Callable[[str], Any]] = {
    "a product": lambda d: torch.vmap(lambda r: r @ torch.ones(4, 2, device=d))(matrix(d)),
    "other dimensions": lambda d: torch.vmap(torch.sin, in_dims=1, out_dims=1)(matrix(d)),
    "an operand that is not mapped": lambda d: torch.vmap(torch.mul, (0, None))(matrix(d), matrix(d)[0]),
    "vmap of vmap": lambda d: torch.vmap(torch.vmap(lambda x: x * 2 + 1))(matrix(d)),
    "vmap of grad": lambda d: torch.vmap(func.grad(cubic))(matrix(d)),
    "sort and cumsum": lambda d: torch.vmap(lambda r: r.sort(descending=True).values.cumsum(0))(matrix(d)),
    "layer norm": lambda d: torch.vmap(lambda r: functional.layer_norm(r, (4,)))(matrix(d)),
    "an index": lambda d: torch.vmap(lambda i: matrix(d)[i])(torch.tensor([0, 2], device=d)),
    "an in-place op": lambda d: torch.vmap(lambda r: r.clone().mul_(2).add_(1))(matrix(d)),
    "in chunks": lambda d: torch.vmap(lambda r: r.sum(), chunk_size=2)(matrix(d)),
}


@pytest.mark.parametrize("program", MAPPED.values(), ids=MAPPED)
def test_a_mapped_program_is_the_cpus(program: Callable[[str], Any]) -> None:
    agree(program)


def test_random_ops_under_vmap_differ_or_agree_between_rows_as_asked() -> None:
    rows = torch.ones(3, 8, device=DEVICE)
    different = torch.vmap(lambda x: x * torch.rand(8, device=DEVICE), randomness="different")(rows)
    same = torch.vmap(lambda x: x * torch.rand(8, device=DEVICE), randomness="same")(rows)
    assert not torch.equal(different[0], different[1])
    assert torch.equal(same[0], same[1])
    dropped = torch.vmap(lambda x: functional.dropout(x, 0.5), randomness="different")(torch.ones(2, 64, device=DEVICE))
    assert not torch.equal(dropped[0], dropped[1])
    with pytest.raises(RuntimeError, match="randomness"):
        torch.vmap(lambda x: x + torch.rand(8, device=DEVICE))(rows)


def test_gradients_per_sample() -> None:
    def program(device: str) -> Any:
        model = network(device)
        parameters = dict(model.named_parameters())
        x, y = torch.randn(5, 3).to(device), torch.randint(2, (5,)).to(device)

        def loss(p: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return functional.cross_entropy(func.functional_call(model, p, (x[None],)), y[None])

        return torch.vmap(func.grad(loss), (None, 0, 0))(parameters, x, y)

    agree(program)


def test_an_ensemble_of_stacked_models() -> None:
    def program(device: str) -> Any:
        models = [nn.Linear(3, 2).to(device) for _ in range(3)]
        parameters, buffers = func.stack_module_state(models)
        skeleton = copy.deepcopy(models[0]).to("meta")
        x = torch.ones(4, 3, device=device)
        return torch.vmap(lambda p, b: func.functional_call(skeleton, (p, b), (x,)))(parameters, buffers)

    agree(program)


def test_a_dual_level_gives_tangents_also_of_what_does_not_vary() -> None:
    def program(device: str) -> Any:
        x = vector(device)
        model = network(device)
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, x * 2)
            one = forward_ad.unpack_dual((dual * dual).sum() + functional.softmax(dual, 0)[0])
            two = forward_ad.unpack_dual(model(dual))
            three = forward_ad.unpack_dual(torch.cat([dual, x]))
        return one.primal, one.tangent, two.tangent, three.tangent

    agree(program)


def test_zeros_without_memory_are_zeros_wherever_they_are_read() -> None:
    module = getattr(torch, DEVICE)
    before = module.memory_allocated()
    zeros = torch._efficientzerotensor((2, 3), device=DEVICE)
    assert zeros._is_zerotensor() and zeros.T[1:]._is_zerotensor()
    assert zeros.device.type == DEVICE and zeros.dtype == torch.float32
    ones = torch.ones(2, 3, device=DEVICE)
    assert (zeros * ones)._is_zerotensor() and not (zeros + ones)._is_zerotensor()
    assert zeros.tolist() == [[0.0] * 3] * 2
    assert torch.equal((zeros + ones).cpu(), torch.ones(2, 3))
    assert torch.equal(zeros.clone().add_(1).cpu(), torch.ones(2, 3))
    assert torch.equal(ones.copy_(zeros).cpu(), torch.zeros(2, 3))
    assert torch.equal(zeros.to(torch.float64).cpu(), torch.zeros(2, 3, dtype=torch.float64))
    with pytest.raises(RuntimeError, match="immutable"):
        zeros.add_(1)
    empty = torch._efficientzerotensor((1 << 40,), device=DEVICE)
    module.synchronize()
    del ones
    assert empty._is_zerotensor() and module.memory_allocated() - before < 1 << 20
