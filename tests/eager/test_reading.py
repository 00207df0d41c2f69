"""Reading tensors from Python: indexing in all its forms, tolist, bool, print, numpy's protocols, statistics."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ..conftest import DEVICE
from .agree import agree, both_raise


def cube(device: str) -> Tensor:
    return torch.arange(60.0, device=device).reshape(3, 4, 5)


def at(*indices: Any) -> Callable[[str], Any]:
    """A program that indexes the cube, lists in the place of tensors on the device."""

    def program(device: str) -> Any:
        placed = tuple(i(device) if callable(i) else i for i in indices)
        return cube(device)[placed if len(placed) != 1 else placed[0]]

    return program


def ints(*values: Any) -> Callable[[str], Tensor]:
    return lambda device: torch.tensor(list(values), device=device)


def flags(*values: int) -> Callable[[str], Tensor]:
    return lambda device: torch.tensor(values, dtype=torch.bool, device=device)


INDEXED: dict[str, Callable[[str], Any]] = {
    "a number": at(1),
    "the last": at(-1, ..., 2),
    "a step": at(slice(None), slice(None, None, 2)),
    "new dimensions": at(None, slice(None), None),
    "an index tensor": at(ints(0, 2)),
    "a list": at([0, 2]),
    "a range": at(range(2)),
    "a tuple": at((0, 1)),
    "two index tensors": at(ints(0, 2), ints(1, 3)),
    "index tensors apart": at(ints(0, 2), slice(None), ints(0, 1)),
    "index tensors that broadcast": at(ints([0], [2]), ints(0, 1)),
    "an index of two dimensions": at(ints([0, 1], [1, 0])),
    "an index after an ellipsis": at(..., ints(0, 2)),
    "a slice and an index": at(slice(1, 3), ints(1, 3)),
    "int32 indices": at(lambda d: torch.tensor([0, 2], dtype=torch.int32, device=d)),
    "uint8 as a mask": at(lambda d: torch.tensor([0, 1, 1], dtype=torch.uint8, device=d)),
    "negative indices": at(ints(-1, -3)),
    "indices on the host": at(lambda d: torch.tensor([1, 0])),
    "a numpy array": at(np.array([0, 1])),
    "True": at(True),
    "a 0-d tensor": at(lambda d: torch.tensor(1, device=d)),
    "a mask of all": lambda d: cube(d)[cube(d) > 30],
    "a mask of rows": at(flags(1, 0, 1)),
    "a mask of columns": at(slice(None), flags(1, 0, 1, 0)),
    "a mask and a number": at(flags(1, 0, 1), 2),
    "a mask on the host": at(lambda d: torch.tensor([True, False, True])),
    "no index": at(lambda d: torch.tensor([], dtype=torch.long, device=d)),
    "nothing": at(slice(2, 2)),
}


@pytest.mark.parametrize("program", INDEXED.values(), ids=INDEXED)
@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
def test_what_an_index_selects_is_the_cpus(program: Callable[[str], Any]) -> None:
    agree(program)


@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
@pytest.mark.parametrize(
    "index", [i for name, i in INDEXED.items() if name not in ("a mask of all", "uint8 as a mask")]
)
def test_what_an_index_writes_is_the_cpus(index: Callable[[str], Any]) -> None:
    def program(device: str) -> Any:
        # The cells that hold the program's indices; writing goes through __setitem__ with the same ones.
        placed = tuple(i(device) if callable(i) else i for i in index.__closure__[0].cell_contents)  # type: ignore[index]
        key = placed if len(placed) != 1 else placed[0]
        x, y, z = cube(device), cube(device), cube(device)
        x[key] = -1
        y[key] += 1
        z[key] = torch.tensor(7.0)
        return x, y, z

    agree(program)


def test_assignments_in_all_forms() -> None:
    def program(device: str) -> Any:
        x = cube(device)
        y = x.clone()
        y[:, 1] = torch.arange(5.0, device=device)
        y[y > 40] = -1
        y[..., -1] = x[..., 0]
        y[y < 0] *= 2
        y[x > 50] = x[x > 50] * 2
        y.index_put_((torch.tensor([0, 0], device=device),), torch.tensor(1.0, device=device), accumulate=True)
        y[None, 0] = 3
        y[:] = y + 1
        y[...] += x
        return y

    agree(program)


BAD: dict[str, Callable[[str], Any]] = {
    "a number beyond the end": at(3),
    "too many indices": at(0, 0, 0, 0),
    "a float": at(1.5),
    "a string": at("a"),
    "a mask of another length": at(flags(1, 0)),
    "a number of a 0-d tensor": lambda d: torch.tensor(1.0, device=d)[0],
    "a negative step": at(slice(None, None, -1)),
    "bool of two": lambda d: bool(torch.ones(2, device=d)),
    "bool of none": lambda d: bool(torch.ones(0, device=d)),
    "float of two": lambda d: float(torch.ones(2, device=d)),
    "item of two": lambda d: torch.ones(2, device=d).item(),
    "len of a 0-d tensor": lambda d: len(torch.tensor(1, device=d)),
    "iterating over a 0-d tensor": lambda d: list(torch.tensor(1, device=d)),
    "an index that is a float": lambda d: [1, 2][torch.tensor(1.0, device=d)],  # type: ignore[call-overload]
}


@pytest.mark.parametrize("program", BAD.values(), ids=BAD)
def test_what_cannot_be_read_raises_as_on_the_cpu(program: Callable[[str], Any]) -> None:
    both_raise(program)


def test_numbers_lists_and_membership() -> None:
    def program(device: str) -> Any:
        x = torch.arange(6, device=device).reshape(2, 3)
        return (
            x.tolist(), [int(a) for a in x[0]], bool(x[0, 0]), float(x[1, 2]), complex(x[1, 2]), len(x), x.numel(),
            [10, 20, 30][x[0, 1]], list(range(int(x[0, 2]))), 3 in x, 9 in x, [r.tolist() for r in x], f"{x[1, 1]}",
            round(float(x[0, 1])), max(x[0]).item(), sum(x[0]).item(), x[0, 2].item() == 2,
            torch.ones(2, dtype=torch.bfloat16, device=device).tolist(), torch.tensor(1 + 2j, device=device).item(),
        )  # fmt: skip

    agree(program)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.bfloat16, torch.complex64])
def test_a_printed_tensor_reads_as_the_cpus_with_its_device_named(dtype: torch.dtype) -> None:
    for shape in ((), (0,), (3,), (2, 3), (40, 40)):
        host = torch.arange(max(1, int(np.prod(shape))) or 1)[: int(np.prod(shape))].reshape(shape).to(dtype)
        printed = repr(host.to(DEVICE))
        assert f"device='{DEVICE}:0'" in printed
        plain = "".join(printed.replace(f"device='{DEVICE}:0'", "").split()).replace(",,", ",").replace(",)", ")")
        assert plain == "".join(repr(host).split())
    x = torch.ones(2, device=DEVICE, requires_grad=True)
    assert "requires_grad=True" in repr(x) and "grad_fn=<MulBackward0>" in repr(x * 2)
    assert f"{torch.tensor(1.5, device=DEVICE):.3f}" == "1.500"
    assert "Parameter containing" in repr(torch.nn.Parameter(x))


def test_numpy_is_told_to_go_through_the_host() -> None:
    x = torch.ones(2, device=DEVICE)
    for read in (x.numpy, lambda: np.asarray(x), lambda: np.array([1.0, 2.0]) * x.numpy()):
        with pytest.raises(TypeError, match=r"Tensor\.cpu\(\)"):
            read()
    assert x.numpy(force=True).tolist() == [1, 1]
    assert x.cpu().numpy().dtype == np.float32
    assert (x + torch.from_numpy(np.ones(2, np.float32)).to(DEVICE)).tolist() == [2, 2]
    assert (x * np.float32(2)).tolist() == [2, 2]


STATISTICS: dict[str, Callable[[Tensor], Any]] = {
    "quantile": lambda x: (x.quantile(0.3), x.quantile(torch.tensor([0.1, 0.9], device=x.device)), x.nanquantile(0.5)),
    "median and mode": lambda x: (x.median(), x.nanmedian(), x.floor().mode(), x.kthvalue(3)),
    "histc and bincount": lambda x: (x.histc(4), torch.bincount(x.long())),
    "unique": lambda x: torch.unique(x.long() % 3, return_inverse=True, return_counts=True),
    "unique_consecutive": lambda x: torch.unique_consecutive(x.long() // 3, return_counts=True),
    "cov and corrcoef": lambda x: (torch.cov(x.reshape(2, 5)), torch.corrcoef(x.reshape(2, 5))),
    "searchsorted": lambda x: (torch.searchsorted(x, x), torch.bucketize(x, x[2:5]), torch.isin(x, x[2:4])),
    "diff and trapezoid": lambda x: (x.diff(), torch.trapezoid(x), x.logcumsumexp(0), x.aminmax()),
}


@pytest.mark.parametrize("fn", STATISTICS.values(), ids=STATISTICS)
def test_a_statistic_is_the_cpus(fn: Callable[[Tensor], Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some run on the CPU, and say so
        agree(lambda d: fn(torch.arange(10.0, device=d)))
