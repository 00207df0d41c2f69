from typing import Any

import pytest
import torch

from .check import check

aten = torch.ops.aten
PADS = {1: [2, 1], 2: [1, 2, 0, 3], 3: [1, 0, 2, 1, 1, 2]}


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("mode", ["reflection", "replication"])
def test_padding_and_its_gradient_agree_with_cpu(mode: str, dims: int) -> None:
    op: Any = getattr(aten, f"{mode}_pad{dims}d").default
    backward: Any = getattr(aten, f"{mode}_pad{dims}d_backward").default
    x = torch.randn(2, 3, *(4, 5, 6)[:dims])
    check(op, x, PADS[dims])
    check(op, x[0].bfloat16(), PADS[dims])
    check(backward, torch.randn_like(op(x, PADS[dims])), x, PADS[dims])


def test_negative_padding_crops() -> None:
    check(aten.reflection_pad1d.default, torch.randn(2, 3, 6), [-1, 2])
    check(aten.replication_pad2d.default, torch.randn(2, 3, 6, 5), [2, -1, -2, 1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.int64])
def test_shuffles_of_pixels_and_channels_agree_with_cpu(dtype: torch.dtype) -> None:
    x = (torch.randn(2, 12, 4, 6) * 3).to(dtype)
    check(aten.pixel_shuffle.default, x, 2)
    check(aten.pixel_unshuffle.default, x, 2)
    check(aten.pixel_unshuffle.default, x[0], 2)
    check(aten.pixel_shuffle.default, x[..., :0], 1)
    check(aten.pixel_unshuffle.default, x[:0], 1)
    if dtype == torch.float32:
        check(aten.channel_shuffle.default, x, 3)
        check(aten.native_channel_shuffle.default, x, 4)
