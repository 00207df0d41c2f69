import pytest
import torch

from .check import check

aten = torch.ops.aten


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_softmax_and_its_gradient_agree_with_cpu(dtype: torch.dtype, dim: int) -> None:
    x, grad = torch.randn(3, 4, 5, dtype=dtype) * 9, torch.randn(3, 4, 5, dtype=dtype)
    tolerance = {"rtol": 2e-2, "atol": 1e-2} if dtype.itemsize == 2 else {}
    check(aten._softmax.default, x, dim, False, **tolerance)
    check(aten._log_softmax.default, x, dim, False, **tolerance)
    check(aten._safe_softmax.default, x, dim, **tolerance)
    check(aten._softmax_backward_data.default, grad, aten._softmax(x, dim, False), dim, dtype, **tolerance)
    check(aten._log_softmax_backward_data.default, grad, aten._log_softmax(x, dim, False), dim, dtype, **tolerance)


def test_softmax_of_0_d_and_empty_tensors() -> None:
    for x in (torch.tensor(2.0), torch.empty(0, 3), torch.empty(3, 0)):
        check(aten._softmax.default, x, -1, False)
        check(aten._log_softmax.default, x, -1, False)
        check(aten._safe_softmax.default, x, -1)
        check(aten._softmax_backward_data.default, x, x, -1, torch.float32)


def test_a_fully_masked_row_is_nan_in_softmax_and_zero_in_safe_softmax() -> None:
    x = torch.full((2, 3), -float("inf"))
    x[1, 1] = 2.0
    check(aten._softmax.default, x, 1, False)
    check(aten._log_softmax.default, x, 1, False)
    check(aten._safe_softmax.default, x, 1)
    check(aten._safe_softmax.default, x, 1, torch.float64)
    check(aten._softmax.default, torch.tensor([1.0, float("nan"), 2.0]), 0, False)
    check(aten._softmax.default, torch.tensor([1.0, float("inf"), 2.0]), 0, False)
