"""channels_last: which results keep it, as on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from .agree import agree

LAST = torch.channels_last


def image(device: str) -> Tensor:
    return torch.linspace(-1, 1, 384, device=device).reshape(2, 3, 8, 8).contiguous(memory_format=LAST)


def conv(device: str, size: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Conv2d(3, 4, size).to(device).to(memory_format=LAST)  # type: ignore[call-overload]


KEPT: dict[str, Callable[[str], Any]] = {
    "add": lambda d: image(d) + 1,
    "add of two": lambda d: image(d) + image(d).contiguous(),
    "relu_": lambda d: image(d).relu_(),
    "clone": lambda d: image(d).clone(),
    "clone, contiguous": lambda d: image(d).clone(memory_format=torch.contiguous_format),
    "a slice": lambda d: image(d)[:1],
    "another dtype": lambda d: image(d).double(),
    "to the host": lambda d: image(d).cpu().stride(),
    "empty_like": lambda d: torch.zeros_like(image(d)),
    "cat": lambda d: torch.cat([image(d), image(d)]),
    "a mean": lambda d: image(d).mean((2, 3), keepdim=True),
    "conv2d": lambda d: conv(d)(image(d)),
    "conv2d 1 × 1": lambda d: conv(d, 1)(image(d)),
    "conv2d of a contiguous image": lambda d: conv(d)(image(d).contiguous()),
    "batch_norm": lambda d: nn.BatchNorm2d(3, device=d)(image(d)),
    "max_pool2d": lambda d: functional.max_pool2d(image(d), 2),
    "avg_pool2d": lambda d: functional.avg_pool2d(image(d), 2),
    "adaptive_avg_pool2d": lambda d: functional.adaptive_avg_pool2d(image(d), 2),
    "interpolate": lambda d: functional.interpolate(image(d), scale_factor=2),
    "interpolate bilinear": lambda d: functional.interpolate(image(d), scale_factor=2, mode="bilinear"),
    "group_norm": lambda d: functional.group_norm(image(d), 3),
    "pad": lambda d: functional.pad(image(d), (1, 1, 1, 1)),
    "pixel_unshuffle": lambda d: functional.pixel_unshuffle(image(d), 2),
    "silu": lambda d: functional.silu(image(d)),
    "softmax": lambda d: image(d).softmax(1),
    "where": lambda d: torch.where(image(d) > 0, image(d), 0.0),
    "channels_last_3d": lambda d: torch.zeros(2, 3, 4, 5, 6, device=d).to(memory_format=torch.channels_last_3d) * 2,
}


@pytest.mark.parametrize("program", KEPT.values(), ids=KEPT)
def test_a_result_has_the_values_and_the_strides_of_the_cpus(program: Callable[[str], Any]) -> None:
    def with_strides(device: str) -> Any:
        result = program(device)
        return (result, result.stride()) if isinstance(result, Tensor) else result

    agree(with_strides, rtol=1e-4, atol=1e-5)


def test_a_network_in_channels_last_trains_as_in_the_default_format() -> None:
    def program(device: str) -> Any:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 2, 1))
        model.to(device).to(memory_format=LAST)  # type: ignore[call-overload]
        y = model(image(device))
        y.square().sum().backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        return y, y.stride(), gradients, [g.stride() for g in gradients], model[0].weight.stride()

    agree(program, rtol=1e-4, atol=1e-4)
