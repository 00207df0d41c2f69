import pytest
import torch

from .check import check

aten = torch.ops.aten


@pytest.mark.parametrize("reduction", [0, 1, 2])
@pytest.mark.parametrize("p", [1, 2])
def test_multi_margin_loss_and_its_gradient_agree_with_cpu(reduction: int, p: int) -> None:
    x, target = torch.randn(4, 6), torch.randint(0, 6, (4,))
    for weight in (None, torch.rand(6)):
        check(aten.multi_margin_loss.default, x, target, p, 0.7, weight, reduction)
        grad = torch.randn_like(aten.multi_margin_loss(x, target, p, 0.7, weight, reduction))
        check(aten.multi_margin_loss_backward.default, grad, x, target, p, 0.7, weight, reduction)
    check(aten.multi_margin_loss.default, x[0], target[0], p, 0.7, None, reduction)


@pytest.mark.parametrize("reduction", [0, 1, 2])
def test_multilabel_margin_loss_and_its_gradient_agree_with_cpu(reduction: int) -> None:
    x = torch.randn(3, 5)
    target = torch.tensor([[3, 0, -1, 1, 2], [4, -1, -1, 0, 0], [-1, 2, 3, 0, 0]])
    check(aten.multilabel_margin_loss_forward.default, x, target, reduction)
    loss, is_target = aten.multilabel_margin_loss_forward(x, target, reduction)
    grad = torch.randn_like(loss)
    check(aten.multilabel_margin_loss_backward.default, grad, x, target, reduction, is_target)
    check(aten.multilabel_margin_loss_forward.default, x[0], target[0], reduction)
