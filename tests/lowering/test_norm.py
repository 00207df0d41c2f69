import pytest
import torch

from .check import check

aten = torch.ops.aten
HALF = {"rtol": 2e-2, "atol": 5e-2}
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.mark.parametrize("shape", [[5], [3, 5]])
@pytest.mark.parametrize("affine", [True, False])
def test_layer_norm_and_its_gradient_agree_with_cpu(shape: list[int], affine: bool) -> None:
    x = torch.randn(4, 3, 5) * 3 + 1
    w, b = (torch.randn(shape), torch.randn(shape)) if affine else (None, None)
    check(aten.native_layer_norm.default, x, shape, w, b, 1e-5, **CLOSE)
    _, mean, rstd = aten.native_layer_norm(x, shape, w, b, 1e-5)
    mask = [True, affine, affine]
    check(aten.native_layer_norm_backward.default, torch.randn(4, 3, 5), x, shape, mean, rstd, w, b, mask, **CLOSE)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_layer_norm_keeps_the_dtype(dtype: torch.dtype) -> None:
    x, w, b = (torch.randn(s, dtype=dtype) for s in ((4, 8), (8,), (8,)))
    tolerance = HALF if dtype.itemsize == 2 else {}
    check(aten.native_layer_norm.default, x, [8], w, b, 1e-5, **tolerance)
    _, mean, rstd = aten.native_layer_norm(x, [8], w, b, 1e-5)
    grad = torch.randn_like(x)
    check(aten.native_layer_norm_backward.default, grad, x, [8], mean, rstd, w, b, [True] * 3, **tolerance)


def test_half_input_with_float32_weights_keeps_float32_statistics() -> None:
    x = torch.randn(4, 8, dtype=torch.bfloat16)
    check(aten.native_layer_norm.default, x, [8], torch.randn(8), torch.randn(8), 1e-5, **HALF)


def test_layer_norm_of_an_empty_batch_is_empty() -> None:
    check(aten.native_layer_norm.default, torch.randn(0, 5), [5], torch.randn(5), None, 1e-5)


@pytest.mark.parametrize("eps", [None, 1e-5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rms_norm_and_its_gradient_agree_with_the_formula(eps: float | None, dtype: torch.dtype) -> None:
    x, w, g = torch.randn(4, 8, dtype=dtype), torch.randn(8, dtype=dtype), torch.randn(4, 8, dtype=dtype)
    tolerance = HALF if dtype == torch.bfloat16 else CLOSE
    check(aten._fused_rms_norm.default, x, [8], w, eps, **tolerance)
    check(aten._fused_rms_norm.default, x, [8], None, eps, **tolerance)
    check(aten.rms_norm.default, x, [8], w, eps, **tolerance)
    rstd = aten._fused_rms_norm(x, [8], w, eps)[1].float()
    want = [t.float().requires_grad_() for t in (x, w)]
    grads = torch.autograd.grad(torch.nn.functional.rms_norm(want[0], [8], want[1], eps), want, g.float())
    _check_against(aten._fused_rms_norm_backward.default, [g, x, [8], rstd, w, [True, True]], grads, tolerance)


def _check_against(op: object, args: list, want: tuple[torch.Tensor, ...], tolerance: dict[str, float]) -> None:
    """For an op that CPU PyTorch has no kernel for."""
    from torch_pjrt.lowering import Spec, apply

    from .check import to_cpu, to_jax

    arrays = [to_jax(a) if isinstance(a, torch.Tensor) else a for a in args]
    got = apply(op, arrays, {}, [Spec(tuple(w.shape), w.dtype) for w in want])
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(to_cpu(g), w.detach(), **tolerance)


@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("affine", [True, False])
def test_group_norm_and_its_gradient_agree_with_cpu(groups: int, affine: bool) -> None:
    x = torch.randn(2, 6, 3, 4) * 2 - 1
    w, b = (torch.randn(6), torch.randn(6)) if affine else (None, None)
    geometry = (2, 6, 12, groups)
    check(aten.native_group_norm.default, x, w, b, *geometry, 1e-5, **CLOSE)
    _, mean, rstd = aten.native_group_norm(x, w, b, *geometry, 1e-5)
    mask = [True, affine, affine]
    grad = torch.randn_like(x)
    check(aten.native_group_norm_backward.default, grad, x, mean, rstd, w, *geometry, mask, **CLOSE)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_weight_norm_and_its_gradient_agree_with_cpu(dim: int) -> None:
    v = torch.randn(4, 5)
    g = torch.rand(4, 1) if dim == 0 else torch.rand(1, 5)
    check(aten._weight_norm_interface.default, v, g, dim % 2)
    norms = aten._weight_norm_interface(v, g, dim % 2)[1]
    check(aten._weight_norm_interface_backward.default, torch.randn(4, 5), v, g, norms, dim % 2, **CLOSE)


@pytest.mark.parametrize("p", [1.0, 2.0, 3, float("inf")])
def test_renorm_shrinks_only_what_is_too_long(p: float) -> None:
    x = torch.randn(4, 3, 5)
    for dim in (0, -1):
        check(aten.renorm.default, x, p, dim, 3.0)
    check(aten.renorm_.default, x, p, 1, 2.0)
    check(aten.renorm.default, x.bfloat16(), p, 0, 3.0, **HALF)
