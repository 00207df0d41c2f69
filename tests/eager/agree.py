"""One program on CPU PyTorch and on the device: the same results, or the same kind of error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..conftest import DEVICE

Program = Callable[[str], Any]


def agree(program: Program, rtol: float | None = None, atol: float | None = None) -> None:
    """Assert that `program(device)` returns the same on both devices.

    Args:
        program: called with "cpu", then with the device; it returns tensors, numbers, strings, or nested tuples, lists
            and dicts of them. The random seed is 0 before each call.
        rtol, atol: tolerances for tensors and floats; PyTorch's for the dtype by default.

    Example:
        >>> agree(lambda d: torch.ones(3, device=d).cumsum(0))
    """
    seen = []
    for device in ("cpu", DEVICE):
        torch.manual_seed(0)
        seen.append(_flat(program(device), device))
    expected, got = seen
    assert len(got) == len(expected), f"{len(got)} results, expected {len(expected)}"
    for place, (g, e) in enumerate(zip(got, expected, strict=True)):
        if isinstance(e, (Tensor, float, complex)):
            torch.testing.assert_close(
                g, e, rtol=rtol, atol=atol, equal_nan=True, msg=lambda m, p=place: f"result {p}: {m}"
            )
        else:
            assert type(g) is type(e) and g == e, f"result {place}: {g!r}, expected {e!r}"


def both_raise(program: Program) -> str:
    """Assert that the program raises the same type on both devices; the message of the device's error."""
    errors: list[Exception] = []
    for device in ("cpu", DEVICE):
        try:
            program(device)
        except Exception as error:
            errors.append(error)
        else:
            raise AssertionError(f"nothing was raised on {device}")
    assert type(errors[1]) is type(errors[0]), f"{errors[1]!r}, expected {errors[0]!r}"
    return str(errors[1])


def _flat(result: Any, device: str) -> list[Any]:
    if isinstance(result, Tensor):
        assert result.device.type == torch.device(device).type, f"a result is on {result.device}"
        return [_plain(result.detach())]
    if isinstance(result, dict):
        return [x for key in result for x in [str(key), *_flat(result[key], device)]]
    if isinstance(result, (Sequence, torch.nn.ParameterList)) and not isinstance(result, str):
        return [x for item in result for x in _flat(item, device)]
    return [result]


def _plain(t: Tensor) -> Tensor:
    """On the CPU, without lazy bits, in a dtype that assert_close compares."""
    host = t.cpu().resolve_conj().resolve_neg()
    return host.to(torch.float32) if host.dtype.itemsize == 1 and host.is_floating_point() else host
