import pytest
import torch

from torch_pjrt.lowering import Spec, apply

from .check import check, to_cpu, to_jax

aten = torch.ops.aten
CLOSE = {"rtol": 1e-4, "atol": 1e-5}
HALF = {"rtol": 2e-2, "atol": 5e-2}


def operands(*shape: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """[input, weight, bias, running_mean, running_var]."""
    c = shape[1]
    return [
        (torch.randn(shape) * 2 + 1).to(dtype),
        torch.randn(c).to(dtype),
        torch.randn(c).to(dtype),
        torch.randn(c).to(dtype),
        torch.rand(c).to(dtype) + 0.5,
    ]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 5), (2, 3, 4, 5)])
def test_every_spelling_of_batch_norm_agrees_with_cpu(training: bool, shape: tuple[int, ...]) -> None:
    args = operands(*shape)
    check(aten.native_batch_norm.default, *args, training, 0.1, 1e-5, **CLOSE)
    check(aten._native_batch_norm_legit.default, *args, training, 0.1, 1e-5, **CLOSE)
    check(aten._native_batch_norm_legit_functional.default, *args, training, 0.1, 1e-5, **CLOSE)
    check(aten._native_batch_norm_legit.no_stats, *args[:3], True, 0.1, 1e-5, **CLOSE)
    check(aten._native_batch_norm_legit_no_training.default, *args, 0.1, 1e-5, **CLOSE)
    check(aten._batch_norm_with_update.default, *args, 0.3, 1e-5, **CLOSE)
    check(aten._batch_norm_with_update_functional.default, *args, 0.3, 1e-5, **CLOSE)
    check(aten._batch_norm_no_update.default, *args, 0.3, 1e-5, **CLOSE)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_batch_norm_computes_in_every_float_dtype(dtype: torch.dtype) -> None:
    tolerance = HALF if dtype == torch.bfloat16 else {}
    for training in (True, False):
        check(aten.native_batch_norm.default, *operands(8, 3, 4, dtype=dtype), training, 0.1, 1e-5, **tolerance)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm_gradient_agrees_with_cpu(training: bool, affine: bool) -> None:
    x, w, b, mean, var = operands(4, 3, 5, 2)
    if not affine:
        w = b = None
    _, save_mean, save_invstd = aten.native_batch_norm(x, w, b, mean.clone(), var.clone(), training, 0.1, 1e-5)
    grad = torch.randn_like(x)
    mask = [True, affine, affine]
    rest = (w, mean, var, save_mean, save_invstd, training, 1e-5, mask)
    check(aten.native_batch_norm_backward.default, grad, x, *rest, **CLOSE)
    if affine:
        reserve = torch.empty(0, dtype=torch.uint8)
        check(aten.batch_norm_backward.default, grad, x, *rest, reserve, **CLOSE)


def test_evaluation_fills_whatever_shape_of_saved_statistics_is_promised() -> None:
    args = [to_jax(t) for t in operands(4, 3)]
    for saved in ((0,), (3,)):
        specs = [Spec((4, 3), torch.float32), Spec(saved, torch.float32), Spec(saved, torch.float32)]
        got = apply(aten.native_batch_norm.default, [*args, False, 0.1, 1e-5], {}, specs)
        assert [tuple(to_cpu(g).shape) for g in got] == [(4, 3), saved, saved]
