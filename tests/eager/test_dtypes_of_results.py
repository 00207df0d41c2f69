"""The dtype of a result depends on all that CPU PyTorch lets it depend on, whatever was called before."""

from __future__ import annotations

import pytest
import torch

from ..conftest import DEVICE
from ..process import python


def on(device: str, *values: torch.Tensor) -> list[torch.Tensor]:
    return [v.to(device) for v in values]


def agree(got: object, expected: object) -> None:
    for g, e in zip(got, expected, strict=True):  # type: ignore[call-overload]
        assert g.dtype == e.dtype
        assert torch.equal(g.cpu(), e)


def test_lists_of_mixed_dtypes_in_either_order() -> None:
    i, f, d = torch.tensor(1), torch.tensor(1.5), torch.tensor(2.5, dtype=torch.float64)
    for first, second in (([i, d], [d, i]), ([d, i], [i, i]), ([f, i], [i, f]), ([i, f], [i, i])):
        agree(torch._foreach_add(on(DEVICE, *first), on(DEVICE, *second)), torch._foreach_add(first, second))


@pytest.mark.parametrize("order", [(False, True), (True, False)])
def test_a_flag_that_decides_the_dtype(order: tuple[bool, bool]) -> None:
    x, edges = torch.tensor([0.5, 1.5]), torch.tensor([0.0, 1.0, 2.0])
    for flag in order:
        agree([torch.bucketize(*on(DEVICE, x, edges), out_int32=flag)], [torch.bucketize(x, edges, out_int32=flag)])
        agree(
            [torch.searchsorted(*on(DEVICE, edges, x), out_int32=flag)],
            [torch.searchsorted(edges, x, out_int32=flag)],
        )


def test_the_default_dtype_in_force() -> None:
    x = torch.tensor([1, 2, 3])
    there = x.to(DEVICE)
    before = torch.get_default_dtype()
    for default in (torch.float32, torch.float64, torch.float32):
        torch.set_default_dtype(default)
        try:
            agree([there / 2, there.sin(), there.float().mean()], [x / 2, x.sin(), x.float().mean()])
        finally:
            torch.set_default_dtype(before)


def test_asking_the_cpu_for_a_dtype_warns_of_nothing() -> None:
    # In a process of its own: each kind of call is asked about once.
    said = python(
        "import torch; print(torch.arange(20.0, device=torch.accelerator.current_accelerator()).sum().item())"
    )
    assert (said.stdout, said.stderr) == ("190.0\n", "")
