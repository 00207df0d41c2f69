import itertools
from typing import Any

import pytest
import torch

from torch_pjrt.lowering import Spec, apply

from .check import check, to_cpu, to_jax

aten = torch.ops.aten


def geometry(dims: int, **changed: Any) -> dict[str, Any]:
    """Arguments of a plain unit-stride convolution, with `changed` replaced."""
    plain = {
        "stride": [1] * dims,
        "padding": [0] * dims,
        "dilation": [1] * dims,
        "transposed": False,
        "output_padding": [0] * dims,
        "groups": 1,
    }
    return plain | changed


CASES = [
    (1, {}),
    (1, {"stride": [2], "padding": [3], "dilation": [2], "groups": 2}),
    (2, {"padding": [1, 1]}),
    (2, {"stride": [2, 3], "padding": [1, 2], "dilation": [2, 1]}),
    (2, {"groups": 4, "padding": [1, 0]}),
    (2, {"transposed": True}),
    (2, {"transposed": True, "stride": [2, 3], "padding": [1, 2], "output_padding": [1, 2], "groups": 2}),
    (2, {"transposed": True, "stride": [2, 2], "dilation": [2, 1]}),
    (3, {"stride": [2, 1, 2], "padding": [1, 1, 0], "groups": 2}),
    (3, {"transposed": True, "stride": [2, 2, 2], "output_padding": [1, 0, 1]}),
    (1, {"transposed": True, "stride": [3], "padding": [1], "output_padding": [2]}),
    (2, {"transposed": True, "stride": [2, 1], "padding": [3, 2], "dilation": [4, 3], "output_padding": [3, 2]}),
]


def operands(dims: int, spec: dict[str, Any], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x = torch.randn(2, 4, *(7, 8, 6)[:dims], dtype=dtype)
    groups = spec.get("groups", 1)
    lead = (4, 8 // groups) if spec.get("transposed") else (8, 4 // groups)
    return x, torch.randn(*lead, *(3, 2, 3)[:dims], dtype=dtype), torch.randn(8, dtype=dtype)


@pytest.mark.parametrize(("dims", "spec"), CASES)
def test_convolution_and_its_gradients_agree_with_cpu(dims: int, spec: dict[str, Any]) -> None:
    torch.manual_seed(0)
    x, w, b = operands(dims, spec, torch.float32)
    args = list(geometry(dims, **spec).values())
    check(aten.convolution.default, x, w, b, *args, rtol=1e-4, atol=1e-4)
    check(aten.convolution.default, x, w, None, *args, rtol=1e-4, atol=1e-4)
    grad = torch.randn_like(aten.convolution(x, w, b, *args))
    check(
        aten.convolution_backward.default, grad, x, w, [8], *args, [True] * 3, rtol=1e-4, atol=4e-4
    )  # the bias's is a sum of a thousand


@pytest.mark.parametrize(
    ("dims", "spec"),
    [
        (1, {"padding": [3], "dilation": [2]}),
        (2, {}),
        (2, {"padding": [1, 2], "dilation": [2, 1]}),
        (2, {"padding": [4, 3]}),
        (2, {"transposed": True, "padding": [1, 0], "dilation": [1, 3]}),
        (3, {"padding": [1, 1, 0]}),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weight_gradients_between_many_channels_agree_with_cpu(
    dims: int, spec: dict[str, Any], dtype: torch.dtype
) -> None:
    # XLA:CPU computes those of 32 and more input channels by a formula of their own.
    args = list(geometry(dims, **spec).values())
    x = torch.randn(3, 40, *(7, 8, 6)[:dims], dtype=dtype)
    w = torch.randn(*((40, 33) if spec.get("transposed") else (33, 40)), *(3, 2, 3)[:dims], dtype=dtype)
    grad = torch.randn_like(aten.convolution(x, w, None, *args))
    tolerance = {"rtol": 1e-4, "atol": 1e-3} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 5e-1}
    check(aten.convolution_backward.default, grad, x, w, None, *args, [False, True, False], **tolerance)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("transposed", [False, True])
def test_convolution_computes_in_every_float_dtype(dtype: torch.dtype, transposed: bool) -> None:
    spec = {"transposed": transposed, "padding": [1, 1], "stride": [2, 2]}
    x, w, b = operands(2, spec, dtype)
    args = list(geometry(2, **spec).values())
    tolerance = {"rtol": 2e-2, "atol": 5e-2} if dtype.itemsize == 2 else {}
    check(aten.convolution.default, x, w, b, *args, **tolerance)
    grad = torch.randn_like(aten.convolution(x, w, b, *args))
    check(aten.convolution_backward.default, grad, x, w, [8], *args, [True] * 3, **tolerance)


@pytest.mark.parametrize(("dims", "spec"), CASES)
def test_convolution_of_integers(dims: int, spec: dict[str, Any]) -> None:
    x, w, b = ((t * 4).long() for t in operands(dims, spec, torch.float32))
    if spec.get("groups", 1) == 1 or spec.get("transposed"):  # the CPU has no grouped one of integers
        check(aten.convolution.default, x, w, b, *geometry(dims, **spec).values())


@pytest.mark.parametrize("mask", list(itertools.product([False, True], repeat=3))[1:])
def test_convolution_backward_returns_only_the_gradients_asked_for(mask: tuple[bool, ...]) -> None:
    x, w, _ = operands(2, {}, torch.float32)
    args = list(geometry(2).values())
    grad = torch.randn_like(aten.convolution(x, w, None, *args))
    every = aten.convolution_backward(grad, x, w, [8], *args, [True] * 3)
    want = [g for g, wanted in zip(every, mask, strict=True) if wanted]
    specs = [Spec(tuple(g.shape), g.dtype) for g in want]
    arrays = [to_jax(t) for t in (grad, x, w)]
    got = apply(aten.convolution_backward.default, [*arrays, [8], *args, list(mask)], {}, specs)
    for g, t in zip(got, want, strict=True):
        torch.testing.assert_close(to_cpu(g), t, rtol=1e-4, atol=1e-4)


def test_one_stride_stands_for_all_dimensions() -> None:
    x, w, b = operands(2, {}, torch.float32)
    check(aten.convolution.default, x, w, b, [2], [1], [1], False, [0], 1, rtol=1e-4, atol=1e-4)


def test_an_empty_batch_convolves_to_an_empty_batch() -> None:
    x, w, b = operands(2, {}, torch.float32)
    check(aten.convolution.default, x[:0], w, b, *geometry(2).values())


FOLDS = [([2, 3], [1, 1], [0, 0], [1, 1]), ([3, 2], [2, 1], [1, 2], [2, 3]), ([1, 1], [1, 1], [0, 1], [2, 1])]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("window", FOLDS)
def test_unfold_and_fold_agree_with_cpu(window: tuple[list[int], ...], dtype: torch.dtype) -> None:
    x = torch.randn(2, 3, 8, 9, dtype=dtype)
    check(aten.im2col.default, x, *window)
    check(aten.im2col.default, x[0], *window)
    columns = torch.randn_like(aten.im2col(x, *window))
    # CPU PyTorch adds overlapping bfloat16 windows in bfloat16, we in float32.
    tolerance = {"rtol": 2e-2, "atol": 5e-2} if dtype == torch.bfloat16 else {}
    check(aten.col2im.default, columns, [8, 9], *window, **tolerance)
    check(aten.col2im.default, columns[0], [8, 9], *window, **tolerance)
