"""Every dtype from bool to complex128: made, moved, cast, viewed, printed, promoted."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from .agree import agree

INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
UNSIGNED = [torch.uint16, torch.uint32, torch.uint64]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
COMPLEX = [torch.complex64, torch.complex128]
FLOAT8 = [
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu,
]  # fmt: skip
COMPUTED = [torch.bool, *INTEGERS, *FLOATS, *COMPLEX]


@pytest.mark.parametrize("dtype", [*COMPUTED, *UNSIGNED, *FLOAT8], ids=str)
def test_a_tensor_of_any_dtype_is_made_moved_viewed_written_and_cast(dtype: torch.dtype) -> None:
    def program(device: str) -> Any:
        x = torch.tensor([1, 0, 2, 1]).to(dtype).to(device)
        if dtype is torch.float8_e8m0fnu:
            x = torch.tensor([1, 4, 2, 1]).to(dtype).to(device)  # it has no zero
        y = torch.empty_like(x).copy_(x)
        y[1:3] = x[:2].clone()
        y[3].fill_(1)
        cast = x.to(torch.complex128) if dtype.is_complex else x.to(torch.float64)
        return (
            x, y, x.view(2, 2).t().contiguous(), torch.cat([x, x[1:]]), cast, cast.to(dtype), x.tolist(), x[2].item(),
            torch.ones(3, dtype=dtype, device=device), x.dtype, x.element_size(), str(x.cpu()),
        )  # fmt: skip

    agree(program)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, *UNSIGNED, *FLOATS, *FLOAT8], ids=str)
def test_bits_can_be_viewed_as_another_dtype_and_back(dtype: torch.dtype) -> None:
    def program(device: str) -> Any:
        x = torch.tensor([1, 2, 4, 8]).to(dtype).to(device)
        bits = x.view(torch.uint8)
        wide = torch.arange(8, dtype=torch.uint8, device=device).view(dtype)
        return bits, bits.view(dtype), wide.view(torch.uint8), x.view(torch.uint8)[1:]

    agree(program)


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_float8_rounds_and_saturates_as_on_the_cpu(dtype: torch.dtype) -> None:
    numbers = torch.tensor([0.1, 0.3, 1.7, 3.3, -5.9, 447.0, 1e5, -1e5, 1e-4, 2e-3, float("inf"), float("nan")])
    agree(lambda d: (numbers.to(d).to(dtype), numbers.to(d).to(torch.bfloat16).to(dtype), numbers.to(dtype).to(d)))


@pytest.mark.parametrize("first", COMPUTED, ids=str)
def test_dtypes_are_promoted_as_on_the_cpu(first: torch.dtype) -> None:
    def program(device: str) -> Any:
        x = torch.ones(2, dtype=first, device=device)
        seen = [str((x * number).dtype) for number in (True, 2, 2.5)] + [str((x / 2).dtype), str(x.sum().dtype)]
        for second in COMPUTED:
            y = torch.ones(2, dtype=second, device=device)
            pairs = [x * y, x * y[0], x[0] * y, torch.cat([x, y]), torch.where(x != 0, x, y), torch.eq(x, y)]
            seen += [str(t.dtype) for t in pairs] + [str(torch.result_type(x, y)), str(torch.can_cast(first, second))]
            try:
                x.clone().mul_(y)
            except RuntimeError as error:
                seen.append(str(error))
        return seen

    agree(program)
