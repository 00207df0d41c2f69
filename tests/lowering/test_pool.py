from functools import partial

import jax
import pytest
import torch

from torch_pjrt.lowering.pool import _sum_of_shifts, _Window, add_at

from .check import check, to_cpu, to_jax

aten = torch.ops.aten

MAX_WINDOWS = [
    ([2, 2], [], [0, 0], [1, 1], False),
    ([3, 3], [2, 2], [1, 1], [1, 1], False),
    ([3, 2], [2, 1], [1, 0], [2, 1], False),
    ([3, 3], [2, 2], [1, 1], [1, 2], True),
    ([2, 3], [3, 2], [1, 1], [1, 1], True),
    ([3], [2], [1], [1], True),
    ([7, 9], [1, 1], [0, 0], [1, 1], False),
]


@pytest.mark.parametrize("window", MAX_WINDOWS)
def test_max_pool2d_and_its_gradient_agree_with_cpu(window: tuple) -> None:
    for x in (torch.randn(2, 3, 7, 9), torch.randint(0, 3, (2, 7, 9)).float()):
        check(aten.max_pool2d_with_indices.default, x, *window)
        out, indices = aten.max_pool2d_with_indices(x, *window)
        grad = torch.randn_like(out)
        check(aten.max_pool2d_with_indices_backward.default, grad, x, *window, indices)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.int64])
def test_max_pool_keeps_the_dtype(dtype: torch.dtype) -> None:
    check(aten.max_pool2d_with_indices.default, (torch.randn(2, 3, 7, 9) * 4).to(dtype), [3, 3], [2, 2], [1, 1])


def test_max_pool_propagates_nan_and_points_into_the_input_when_all_is_minus_infinity() -> None:
    x = torch.randint(0, 2, (1, 2, 6, 6)).float()
    x[0, 0, 2:4, 1:3] = float("nan")
    x[0, 1] = -float("inf")
    for window in MAX_WINDOWS[1:6]:
        check(aten.max_pool2d_with_indices.default, x, *window)
    check(aten.adaptive_max_pool2d.default, x, [4, 4])


@pytest.mark.parametrize("ceil_mode", [False, True])
def test_max_pool3d_and_its_gradient_agree_with_cpu(ceil_mode: bool) -> None:
    x = torch.randn(2, 2, 5, 6, 7)
    window = ([2, 3, 2], [2, 2, 1], [1, 1, 0], [1, 1, 2], ceil_mode)
    check(aten.max_pool3d_with_indices.default, x, *window)
    out, indices = aten.max_pool3d_with_indices(x, *window)
    check(aten.max_pool3d_with_indices_backward.default, torch.randn_like(out), x, *window, indices)
    check(aten.max_unpool3d.default, out, indices, [5, 6, 7], [2, 2, 1], [1, 1, 0])


@pytest.mark.parametrize("window", MAX_WINDOWS)
def test_the_tpu_form_of_the_max_pool_gradient_equals_the_scatter_form(window: tuple) -> None:
    x = torch.randn(2, 3, 7, 9)
    out, indices = aten.max_pool2d_with_indices(x, *window)
    with jax.enable_x64(True):
        grad, where = to_jax(torch.randn_like(out)), to_jax(indices)
        shifts = jax.jit(partial(_sum_of_shifts, window=_Window.of((7, 9), *window)))(grad, where)
        torch.testing.assert_close(to_cpu(shifts), to_cpu(add_at(grad, where, (7, 9))))


AVG_WINDOWS = [
    ([2, 2], [], [0, 0], False, True, None),
    ([3, 2], [2, 1], [1, 1], False, False, None),
    ([3, 3], [2, 2], [1, 1], True, True, None),
    ([3, 3], [2, 2], [1, 1], True, False, None),
    ([3], [2], [1], False, True, 5),
]


@pytest.mark.parametrize("window", AVG_WINDOWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_avg_pool2d_and_its_gradient_agree_with_cpu(window: tuple, dtype: torch.dtype) -> None:
    x = torch.randn(2, 3, 6, 9, dtype=dtype)
    check(aten.avg_pool2d.default, x, *window)
    grad = torch.randn_like(aten.avg_pool2d(x, *window))
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else {}
    check(aten.avg_pool2d_backward.default, grad, x, *window, **tolerance)
    check(aten.avg_pool2d.default, x[0], *window)


def test_avg_pool3d_and_its_gradient_agree_with_cpu() -> None:
    x = torch.randn(2, 2, 5, 6, 7)
    for window in (
        ([2, 3, 2], [2, 2, 1], [1, 1, 0], True, False, None),
        ([2, 3, 2], [], [1, 1, 1], False, True, None),
        ([2, 2, 2], [1, 2, 3], [0, 0, 0], False, True, 3),
    ):
        check(aten.avg_pool3d.default, x, *window)
        grad = torch.randn_like(aten.avg_pool3d(x, *window))
        check(aten.avg_pool3d_backward.default, grad, x, *window)


def test_avg_pool_of_integers_divides_toward_zero() -> None:
    check(aten.avg_pool2d.default, torch.randint(-9, 9, (1, 2, 6, 6)), [2, 2], [2, 2], [0, 0])


@pytest.mark.parametrize("size", [[1, 1], [2, 3], [4, 4], [7, 9], [9, 5]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_adaptive_pools_agree_with_cpu_for_even_and_uneven_windows(size: list[int], dtype: torch.dtype) -> None:
    x = torch.randn(2, 3, 6, 9, dtype=dtype)
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else {}
    check(aten._adaptive_avg_pool2d.default, x, size, **tolerance)
    grad = torch.randn(2, 3, *size, dtype=dtype)
    check(aten._adaptive_avg_pool2d_backward.default, grad, x, **tolerance)
    check(aten.adaptive_max_pool2d.default, x, size)
    indices = aten.adaptive_max_pool2d(x, size)[1]
    check(aten.adaptive_max_pool2d_backward.default, grad, x, indices, **tolerance)


def test_adaptive_pools_in_three_dimensions_agree_with_cpu() -> None:
    x = torch.randn(2, 2, 5, 6, 7)
    for size in ([2, 3, 3], [1, 1, 1], [5, 2, 7]):
        check(aten._adaptive_avg_pool3d.default, x, size)
        grad = torch.randn(2, 2, *size)
        check(aten._adaptive_avg_pool3d_backward.default, grad, x)
        check(aten.adaptive_max_pool3d.default, x, size)
        check(aten.adaptive_max_pool3d_backward.default, grad, x, aten.adaptive_max_pool3d(x, size)[1])


def test_max_unpool2d_puts_maxima_back() -> None:
    x = torch.randn(2, 3, 6, 8)
    out, indices = aten.max_pool2d_with_indices(x, [2, 2])
    check(aten.max_unpool2d.default, out, indices, [6, 8])


def test_pooling_an_empty_batch_gives_an_empty_batch() -> None:
    x = torch.randn(0, 3, 6, 8)
    check(aten.max_pool2d_with_indices.default, x, [2, 2])
    check(aten.avg_pool2d.default, x, [2, 2])
    check(aten._adaptive_avg_pool2d.default, x, [2, 2])
