from typing import Any

import pytest
import torch

from .check import check

aten = torch.ops.aten
REDUCTIONS = [0, 1, 2]


def tolerance(dtype: torch.dtype) -> dict[str, float]:
    return {"rtol": 2e-2, "atol": 1e-2} if dtype == torch.bfloat16 else {}


def gradient_of(loss: torch.Tensor) -> torch.Tensor:
    return torch.randn_like(loss)


ELEMENTWISE: list[tuple[Any, Any, tuple[float, ...]]] = [
    (aten.mse_loss.default, aten.mse_loss_backward.default, ()),
    (aten.smooth_l1_loss.default, aten.smooth_l1_loss_backward.default, (0.7,)),
    (aten.huber_loss.default, aten.huber_loss_backward.default, (0.7,)),
    (aten.soft_margin_loss.default, aten.soft_margin_loss_backward.default, ()),
]


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(("op", "backward", "options"), ELEMENTWISE, ids=lambda v: str(v))
def test_elementwise_loss_and_its_gradient_agree_with_cpu(
    op: Any, backward: Any, options: tuple[float, ...], reduction: int
) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        x, y = torch.randn(4, 5, dtype=dtype), torch.randn(4, 5, dtype=dtype)
        check(op, x, y, reduction, *options, **tolerance(dtype))
        grad = gradient_of(op(x, y, reduction, *options))
        check(backward, grad, x, y, reduction, *options, **tolerance(dtype))


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weighted", [False, True])
def test_binary_cross_entropy_and_its_gradient_agree_with_cpu(reduction: int, weighted: bool) -> None:
    x, y = torch.rand(4, 5), torch.rand(4, 5)
    x[0, :2], y[0, :2] = torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.0])
    weight = torch.rand(4, 5) if weighted else None
    check(aten.binary_cross_entropy.default, x, y, weight, reduction)
    grad = gradient_of(aten.binary_cross_entropy(x, y, weight, reduction))
    check(aten.binary_cross_entropy_backward.default, grad, x, y, weight, reduction)
    logits, positive = torch.randn(4, 5) * 20, torch.rand(5) + 0.5 if weighted else None
    check(aten.binary_cross_entropy_with_logits.default, logits, y, weight, positive, reduction)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nll_loss_and_its_gradient_agree_with_cpu(reduction: int, weighted: bool, dtype: torch.dtype) -> None:
    weight = torch.rand(7).to(dtype) if weighted else None
    target = torch.randint(0, 7, (6,))
    target[2] = -100
    x = torch.log_softmax(torch.randn(6, 7), 1).to(dtype)
    check(aten.nll_loss_forward.default, x, target, weight, reduction, -100, **tolerance(dtype))
    out, total = aten.nll_loss_forward(x, target, weight, reduction, -100)
    grad = gradient_of(out)
    args = (weight, reduction, -100, total)
    check(aten.nll_loss_backward.default, grad, x, target, *args, **tolerance(dtype))


def test_nll_loss_of_a_single_sample() -> None:
    x, target = torch.randn(7), torch.tensor(3)
    for reduction in REDUCTIONS:
        check(aten.nll_loss_forward.default, x, target, None, reduction, -100)
        out, total = aten.nll_loss_forward(x, target, None, reduction, -100)
        check(aten.nll_loss_backward.default, gradient_of(out), x, target, None, reduction, -100, total)


def test_nll_loss_where_every_target_is_ignored_is_nan() -> None:
    x, target = torch.randn(3, 7), torch.full((3,), 2)
    check(aten.nll_loss_forward.default, x, target, None, 1, 2)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weighted", [False, True])
def test_nll_loss2d_and_its_gradient_agree_with_cpu(reduction: int, weighted: bool) -> None:
    weight = torch.rand(5) if weighted else None
    x, target = torch.randn(2, 5, 3, 4), torch.randint(0, 5, (2, 3, 4))
    check(aten.nll_loss2d_forward.default, x, target, weight, reduction, 1)
    out, total = aten.nll_loss2d_forward(x, target, weight, reduction, 1)
    check(aten.nll_loss2d_backward.default, gradient_of(out), x, target, weight, reduction, 1, total)
