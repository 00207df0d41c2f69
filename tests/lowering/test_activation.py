from typing import Any

import jax
import numpy as np
import pytest
import torch

from torch_pjrt.lowering import Spec, apply

from .check import check, to_cpu, to_jax

aten = torch.ops.aten
KINKS = [-4.0, -3.0, -1.0, -0.5, -0.25, 0.0, 0.25, 0.5, 1.0, 3.0, 4.0, 6.0, 30.0, -30.0]


def inputs(dtype: torch.dtype) -> torch.Tensor:
    """Random values, every place where some activation has a kink, and NaN."""
    return torch.cat([torch.randn(20) * 2, torch.tensor([*KINKS, float("nan")])]).to(dtype)


def tolerance(dtype: torch.dtype) -> dict[str, float]:
    return {"rtol": 1.6e-2, "atol": 1e-3} if dtype.itemsize == 2 else {}


FORWARD: list[tuple[Any, dict[str, Any]]] = [
    (aten.relu.default, {}),
    (aten.relu_.default, {}),
    (aten.relu6.default, {}),
    (aten.hardtanh.default, {}),
    (aten.hardtanh.default, {"min_val": -0.25, "max_val": 3}),
    (aten.leaky_relu.default, {"negative_slope": 0.3}),
    (aten.leaky_relu_.default, {}),
    (aten.elu.default, {}),
    (aten.elu.default, {"alpha": 0.7, "scale": 1.5, "input_scale": 2}),
    (aten.celu.default, {"alpha": 0.7}),
    (aten.selu.default, {}),
    (aten.gelu.default, {}),
    (aten.gelu.default, {"approximate": "tanh"}),
    (aten.silu.default, {}),
    (aten.silu_.default, {}),
    (aten.mish.default, {}),
    (aten.hardswish.default, {}),
    (aten.hardsigmoid.default, {}),
    (aten.softplus.default, {}),
    (aten.softplus.default, {"beta": 2, "threshold": 0.5}),
    (aten.softshrink.default, {"lambd": 0.25}),
    (aten.hardshrink.default, {"lambd": 0.25}),
    (aten.log_sigmoid.default, {}),
    (aten.log_sigmoid_forward.default, {}),
    (aten.threshold.default, {"threshold": 0.5, "value": 7}),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("op", "options"), FORWARD, ids=lambda v: str(v))
def test_activation_agrees_with_cpu(op: Any, options: dict[str, Any], dtype: torch.dtype) -> None:
    check(op, inputs(dtype), **options, **tolerance(dtype))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_activation_computes_in_every_float_dtype(dtype: torch.dtype) -> None:
    for op in (aten.gelu.default, aten.silu.default, aten.hardswish.default, aten.softplus.default):
        check(op, inputs(dtype), **tolerance(dtype))


def test_activation_of_0_d_empty_and_infinite_tensors() -> None:
    for x in (torch.tensor(0.75), torch.empty(0, 3), torch.tensor([float("inf"), -float("inf")])):
        for op in (aten.relu.default, aten.silu.default, aten.softplus.default, aten.hardshrink.default):
            check(op, x)


BACKWARD: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
    (aten.hardtanh_backward.default, (-1, 1.0), {}),
    (aten.threshold_backward.default, (0,), {}),
    (aten.leaky_relu_backward.default, (0.3, False), {}),
    (aten.gelu_backward.default, (), {}),
    (aten.gelu_backward.default, (), {"approximate": "tanh"}),
    (aten.silu_backward.default, (), {}),
    (aten.mish_backward.default, (), {}),
    (aten.hardswish_backward.default, (), {}),
    (aten.hardsigmoid_backward.default, (), {}),
    (aten.softplus_backward.default, (2, 20), {}),
    (aten.softshrink_backward.default, (0.25,), {}),
    (aten.hardshrink_backward.default, (0.25,), {}),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("op", "args", "options"), BACKWARD, ids=lambda v: str(v))
def test_activation_gradient_agrees_with_cpu(
    op: Any, args: tuple[Any, ...], options: dict[str, Any], dtype: torch.dtype
) -> None:
    x = inputs(dtype)[:-1]  # CPU PyTorch's hardswish_backward loses a NaN in its vectorized part
    check(op, torch.randn_like(x), x, *args, **options, **tolerance(dtype))


@pytest.mark.parametrize("is_result", [False, True])
def test_elu_gradient_agrees_with_cpu_from_input_and_from_result(is_result: bool) -> None:
    x = torch.randn(4, 5)
    value = aten.elu(x, 0.7, 1.5, 2.0) if is_result else x
    check(aten.elu_backward.default, torch.randn(4, 5), 0.7, 1.5, 2.0, is_result, value)


def test_log_sigmoid_gradient_agrees_with_cpu() -> None:
    x = torch.randn(4, 5) * 5
    buffer = aten.log_sigmoid_forward(x)[1]
    check(aten.log_sigmoid_backward.default, torch.randn(4, 5), x, buffer)


def test_relu_of_integers_and_of_nan() -> None:
    check(aten.relu.default, torch.tensor([-2, 0, 3]))
    check(aten.threshold.default, torch.tensor([-2, 0, 3]), 0, 5)
    check(aten.hardtanh.default, torch.tensor([-2, 0, 3]), -1, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_prelu_and_its_gradient_agree_with_cpu(dtype: torch.dtype) -> None:
    x, w = torch.randn(2, 3, 4, dtype=dtype), torch.randn(1, 3, 1, dtype=dtype)
    check(aten._prelu_kernel.default, x, w)
    check(aten._prelu_kernel_backward.default, torch.randn_like(x), x, w.expand_as(x))


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_glu_and_its_gradient_agree_with_cpu(dim: int) -> None:
    x = torch.randn(4, 6)
    check(aten.glu.default, x, dim)
    check(aten.glu_backward.default, torch.randn_like(aten.glu(x, dim)), x, dim)


def test_rrelu_in_evaluation_is_leaky_with_the_mean_slope() -> None:
    x, noise = torch.randn(3, 4), torch.rand(3, 4)
    specs = [Spec((3, 4), torch.float32)] * 2
    key = jax.numpy.arange(4, dtype=np.uint32)
    got = apply(aten.rrelu_with_noise.default, [to_jax(x), to_jax(noise), 0.1, 0.3, False], {}, specs, key)
    torch.testing.assert_close([to_cpu(g) for g in got], [noise, torch.nn.functional.leaky_relu(x, 0.2)])
    check(aten.rrelu_with_noise_backward.default, torch.randn(3, 4), x, noise, 0.1, 0.3, False, False)
    check(aten.rrelu_with_noise_backward.default, torch.randn(3, 4), x, noise, 0.1, 0.3, True, False)


def test_rrelu_in_training_draws_slopes_between_its_bounds_and_keeps_them_as_noise() -> None:
    x = torch.randn(64, 64)
    specs = [Spec((64, 64), torch.float32)] * 2
    key = jax.numpy.arange(4, dtype=np.uint32)
    for op in (aten.rrelu_with_noise.default, aten.rrelu_with_noise_functional.default, aten.rrelu_with_noise_.default):
        got = [to_cpu(g) for g in apply(op, [to_jax(x), to_jax(x * 0), 0.1, 0.3, True], {}, specs, key)]
        noise, result = got if op is aten.rrelu_with_noise.default else got[::-1]
        torch.testing.assert_close(result, x * noise)
        below = noise[x <= 0]
        assert (noise[x > 0] == 1).all()
        assert 0.1 <= below.min() < 0.11 and 0.29 < below.max() <= 0.3
        assert abs(below.mean() - 0.2) < 0.01


def test_glus_forward_mode_derivatives_agree() -> None:
    x, dx, grad, dgrad = torch.randn(3, 8), torch.randn(3, 8), torch.randn(3, 4), torch.randn(3, 4)
    check(aten.glu_jvp.default, aten.glu(x, 1), x, dx, 1)
    check(aten.glu_backward_jvp.default, aten.glu_backward(grad, x, 1), grad, x, dgrad, dx, 1)
