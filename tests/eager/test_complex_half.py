"""complex32, which XLA has no type for: an array of complex64 that holds what pairs of float16 can."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest
import torch
from torch import Tensor

from ..conftest import DEVICE
from .agree import agree

PARTS = torch.tensor(np.random.default_rng(0).standard_normal((3, 4, 2)), dtype=torch.float16)


def z(device: str) -> Tensor:
    return torch.view_as_complex(PARTS.clone()).to(device)


@pytest.fixture(autouse=True)
def experimental() -> Iterator[None]:
    """PyTorch warns that complex32 is experimental, once."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "ComplexHalf support is experimental")
        yield


def parts(x: Tensor) -> tuple[torch.dtype, Tensor]:
    """The dtype, and what `agree` can compare."""
    return x.dtype, torch.view_as_real(x.resolve_conj())


def written(fn: Callable[[Tensor], Any]) -> Callable[[str], Any]:
    def program(device: str) -> Any:
        x = z(device)
        fn(x)
        return parts(x)

    return program


PROGRAMS: dict[str, Callable[[str], Any]] = {
    "there and back": lambda d: parts(z(d)),
    "cast": lambda d: (parts(z(d).cfloat().chalf()), parts(torch.ones(2, device=d).chalf()), z(d).cfloat()),
    "made": lambda d: parts(torch.full((3,), 1e-3 + 0.1j, dtype=torch.complex32, device=d)),
    "of numbers": lambda d: (parts(torch.tensor([1 + 2j], dtype=torch.complex32, device=d)), z(d)[0, 0].item()),
    "of parts": lambda d: parts(torch.complex(z(d).real, z(d).imag)),
    "float16 by a complex number": lambda d: parts(PARTS.to(d) * 2j),
    "arithmetic rounds": lambda d: (parts(z(d) + z(d) * 3), parts(z(d) * 1e-3), parts(z(d) * z(d).conj())),
    "too large": lambda d: parts(z(d) * 60000),
    "absolute": lambda d: z(d).abs(),
    "views": lambda d: (parts(z(d)[:, 1::2].T), parts(z(d).conj()), z(d).imag, torch.view_as_real(z(d))),
    "other dtypes' views": lambda d: (z(d).view(torch.int32), z(d).view(torch.float16),
                                      z(d).view(torch.complex64), z(d).view(torch.uint8)),
    "copies in other dtypes": lambda d: (
        torch.ops.aten.view_copy.dtype(z(d), torch.int16), torch.ops.aten.view_copy.dtype(z(d), torch.complex64)
    ),
    "from other dtypes": lambda d: parts(z(d).view(torch.int32).clone().view(torch.complex32)),
    "concatenated": lambda d: parts(torch.cat([z(d), z(d)[:1]])),
    "written through its parts": written(lambda x: (x.imag.fill_(7), x[0].mul_(2))),
    "written through other dtypes": written(lambda x: (x.view(torch.int16)[0, 0].fill_(15360), x.view(torch.int32)[1])),
    "its storage": lambda d: (z(d).untyped_storage().nbytes(), z(d).element_size()),
}  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_it_is_what_it_is_on_the_cpu(program: Callable[[str], Any]) -> None:
    agree(program)


GRAPHS: dict[str, Callable[[Tensor], Any]] = {
    "arithmetic": lambda x: torch.view_as_real(x * 2),
    "views": lambda x: (x.view(torch.int32), (x + x).view(torch.float16), x.view(torch.complex64)),
    "written": lambda x: x.clone().mul_(2).imag,
}


@pytest.mark.filterwarnings("ignore:Torchinductor does not support code generation for complex")
@pytest.mark.parametrize("fn", GRAPHS.values(), ids=GRAPHS)
def test_it_is_so_in_a_compiled_graph(fn: Callable[[Tensor], Any]) -> None:
    compiled = torch.compile(fn, backend="pjrt")
    agree(lambda d: fn(z(d)) if d == "cpu" else compiled(z(d)))


def test_a_size_and_an_angle_make_one() -> None:
    size, angle = PARTS.abs().to(DEVICE), PARTS.to(DEVICE)  # CPU PyTorch has no polar of half types
    expected = torch.polar(PARTS.abs().float(), PARTS.float())
    torch.testing.assert_close(torch.polar(size, angle).cfloat().cpu(), expected, rtol=1e-3, atol=1e-3)


def test_a_gradient_passes_through() -> None:
    def program(device: str) -> Any:
        x = PARTS.clone().to(device).requires_grad_()
        (x * 2j).abs().sum().backward()
        assert x.grad is not None
        return x.grad

    agree(program)


def test_it_is_saved_and_loaded() -> None:
    def program(device: str) -> Any:
        file = io.BytesIO()
        torch.save(z(device), file)
        file.seek(0)
        return parts(torch.load(file))

    agree(program)


def test_memory_figures_count_the_array_that_is_there() -> None:
    module = getattr(torch, DEVICE)
    before = module.memory_allocated()
    x = torch.zeros(1000, dtype=torch.complex32, device=DEVICE) + 1
    module.synchronize()
    assert module.memory_allocated() - before == jax.numpy.asarray(x).nbytes == 8000
