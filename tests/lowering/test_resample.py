from typing import Any

import pytest
import torch

from .check import check

aten = torch.ops.aten
SIZES = {1: (7,), 2: (5, 7), 3: (3, 4, 5)}
TARGETS: dict[int, list[list[int]]] = {
    1: [[14], [9], [3], [7]],
    2: [[10, 21], [8, 3], [1, 9], [5, 7]],
    3: [[6, 8, 10], [2, 7, 4]],
}
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def check_both(name: str, dims: int, target: list[int], *options: Any, dtype: torch.dtype = torch.float32) -> None:
    op, backward = getattr(aten, name).default, getattr(aten, f"{name}_backward").default
    x = torch.randn(2, 3, *SIZES[dims], dtype=dtype)
    tolerance = {"rtol": 3e-2, "atol": 3e-2} if dtype == torch.bfloat16 else CLOSE
    check(op, x, target, *options, **tolerance)
    grad = torch.randn_like(op(x, target, *options))
    check(backward, grad, target, list(x.shape), *options, **tolerance)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("exact", [False, True])
def test_nearest_upsampling_and_its_gradient_agree_with_cpu(dims: int, exact: bool) -> None:
    name = f"_upsample_nearest_exact{dims}d" if exact else f"upsample_nearest{dims}d"
    for target in TARGETS[dims]:
        check_both(name, dims, target)
    check_both(name, dims, TARGETS[dims][1], *[1.3, 0.7, 1.9][:dims])


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("align", [False, True])
def test_linear_upsampling_and_its_gradient_agree_with_cpu(dims: int, align: bool) -> None:
    name = f"upsample_{('linear', 'bilinear', 'trilinear')[dims - 1]}{dims}d"
    for target in TARGETS[dims]:
        check_both(name, dims, target, align)
    check_both(name, dims, TARGETS[dims][1], align, *[1.3, 0.7, 1.9][:dims])


@pytest.mark.parametrize("align", [False, True])
def test_bicubic_upsampling_and_its_gradient_agree_with_cpu(align: bool) -> None:
    for target in TARGETS[2]:
        check_both("upsample_bicubic2d", 2, target, align)
    check_both("upsample_bicubic2d", 2, [6, 10], align, 1.3, 1.5)


@pytest.mark.parametrize("name", ["bilinear", "bicubic", "lanczos"])
def test_antialiased_resizing_and_its_gradient_agree_with_cpu(name: str) -> None:
    for target in ([2, 3], [9, 4], [5, 14]):
        check_both(f"_upsample_{name}2d_aa", 2, target, False)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_upsampling_computes_in_every_float_dtype(dtype: torch.dtype) -> None:
    check_both("upsample_bilinear2d", 2, [8, 10], False, dtype=dtype)
    check_both("upsample_nearest2d", 2, [10, 14], dtype=dtype)


def test_nearest_upsampling_moves_integers_unchanged() -> None:
    check(aten.upsample_nearest2d.default, torch.randint(0, 255, (1, 2, 4, 5), dtype=torch.uint8), [8, 7])


@pytest.mark.parametrize(
    "name", ["upsample_bilinear2d", "upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"]
)
def test_images_of_bytes_are_rounded_in_fixed_point_as_on_the_cpu(name: str) -> None:
    op = getattr(aten, name).default
    for shape, size in (
        ((2, 3, 27, 31), [13, 40]),
        ((1, 7, 8, 9), [20, 9]),
        ((1, 3, 4, 4), [4, 3]),
        ((1, 1, 1, 5), [3, 1]),
    ):
        image = torch.randint(0, 256, shape, dtype=torch.uint8)
        for align in (False, True) if "aa" not in name else (False,):
            check(op, image, size, align, rtol=0, atol=0)
