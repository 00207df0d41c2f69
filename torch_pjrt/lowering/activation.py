"""Activation functions and their gradients. Softmax: softmax.py."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.nn import sigmoid, softplus

from .registry import lower, pointwise
from .rng import random_bits
from .widen import widen


@pointwise("relu")
def relu(self: Array) -> Array:
    return jnp.maximum(self, np.zeros((), self.dtype))


@pointwise("relu6")
def relu6(self: Array) -> Array:
    return jnp.clip(self, np.zeros((), self.dtype), np.full((), 6, self.dtype))


@pointwise("hardtanh")
def hardtanh(self: Array, min_val: Array | float = -1, max_val: Array | float = 1) -> Array:
    low, high = (jnp.asarray(v, self.dtype) for v in (min_val, max_val))
    return jnp.minimum(jnp.maximum(self, low), high)


@pointwise("hardtanh_backward")
def hardtanh_backward(grad_output: Array, self: Array, min_val: Array, max_val: Array) -> Array:
    return jnp.where((self <= min_val) | (self >= max_val), 0, grad_output)


@pointwise("threshold")
def threshold(self: Array, threshold: Array, value: Array) -> Array:
    return jnp.where(self <= threshold, value, self)


@pointwise("threshold_backward")
def threshold_backward(grad_output: Array, self: Array, threshold: Array) -> Array:
    return jnp.where(self <= threshold, 0, grad_output)


@pointwise("leaky_relu")
def leaky_relu(self: Array, negative_slope: Array | float = 0.01) -> Array:
    return jnp.where(self > 0, self, self * negative_slope)


@pointwise("leaky_relu_backward", static=("self_is_result",))
def leaky_relu_backward(grad_output: Array, self: Array, negative_slope: Array | float, self_is_result: bool) -> Array:
    # A positive slope keeps the sign, so the result serves as well as the input.
    return jnp.where(self > 0, grad_output, grad_output * negative_slope)


@pointwise("_prelu_kernel")
def prelu_kernel(self: Array, weight: Array) -> Array:
    return jnp.where(self > 0, self, self * weight)


@lower("_prelu_kernel_backward")
def prelu_kernel_backward(grad_output: Array, self: Array, weight: Array) -> tuple[Array, Array]:
    x, w, grad = widen(self), widen(weight), widen(grad_output)
    return jnp.where(x > 0, grad, w * grad), jnp.where(x > 0, 0, x * grad)


@pointwise("elu")
def elu(self: Array, alpha: Array | float = 1, scale: Array | float = 1, input_scale: Array | float = 1) -> Array:
    return jnp.where(self > 0, self * scale, jnp.expm1(self * input_scale) * (alpha * scale))


@pointwise("elu_backward", static=("is_result",))
def elu_backward(
    grad_output: Array, alpha: Array, scale: Array, input_scale: Array, is_result: bool, self_or_result: Array
) -> Array:
    peak = alpha * scale
    below = self_or_result + peak if is_result else peak * jnp.exp(self_or_result * input_scale)
    return grad_output * jnp.where(self_or_result <= 0, input_scale * below, scale)


@pointwise("celu")
def celu(self: Array, alpha: Array | float = 1.0) -> Array:
    return jnp.where(self > 0, self, jnp.expm1(self / alpha) * alpha)


@pointwise("gelu", static=("approximate",))
def gelu(self: Array, approximate: str = "none") -> Array:
    """x times the normal distribution's cumulative function, or its tanh approximation (arXiv:1606.08415)."""
    if approximate == "tanh":
        return 0.5 * self * (1 + jnp.tanh(_gelu_inner(self)))
    return self * 0.5 * (1 + lax.erf(self * math.sqrt(0.5)))


@pointwise("gelu_backward", static=("approximate",))
def gelu_backward(grad_output: Array, self: Array, approximate: str = "none") -> Array:
    if approximate == "tanh":
        t = jnp.tanh(_gelu_inner(self))
        slope = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * self * self)
        return grad_output * (0.5 * (1 + t) + 0.5 * self * (1 - t * t) * slope)
    density = jnp.exp(-0.5 * self * self) / math.sqrt(2 * math.pi)
    return grad_output * (0.5 * (1 + lax.erf(self * math.sqrt(0.5))) + self * density)


def _gelu_inner(x: Array) -> Array:
    return math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)


@pointwise("silu")
def silu(self: Array) -> Array:
    return self * sigmoid(self)


@pointwise("silu_backward")
def silu_backward(grad_output: Array, self: Array) -> Array:
    s = sigmoid(self)
    return grad_output * s * (1 + self * (1 - s))


@pointwise("mish")
def mish(self: Array) -> Array:
    return self * jnp.tanh(softplus(self))


@pointwise("mish_backward")
def mish_backward(grad_output: Array, self: Array) -> Array:
    t = jnp.tanh(softplus(self))
    return grad_output * (t + self * sigmoid(self) * (1 - t * t))


@pointwise("hardswish")
def hardswish(self: Array) -> Array:
    return self * jnp.clip(self + 3, 0, 6) / 6


@pointwise("hardswish_backward")
def hardswish_backward(grad_output: Array, self: Array) -> Array:
    middle = grad_output * (self / 3 + 0.5)
    return jnp.where(self <= -3, 0, jnp.where(self >= 3, grad_output, middle))


@pointwise("hardsigmoid")
def hardsigmoid(self: Array) -> Array:
    return jnp.clip(self + 3, 0, 6) / 6


@pointwise("hardsigmoid_backward")
def hardsigmoid_backward(grad_output: Array, self: Array) -> Array:
    return jnp.where((self > -3) & (self < 3), grad_output / 6, 0)


@pointwise("softplus")
def softplus_(self: Array, beta: Array | float = 1, threshold: Array | float = 20) -> Array:
    return jnp.where(self * beta > threshold, self, jnp.log1p(jnp.exp(self * beta)) / beta)


@pointwise("softplus_backward")
def softplus_backward(grad_output: Array, self: Array, beta: Array, threshold: Array) -> Array:
    return jnp.where(self * beta > threshold, grad_output, grad_output * sigmoid(self * beta))


@pointwise("log_sigmoid")
def log_sigmoid(self: Array) -> Array:
    return -softplus(-self)


@lower("log_sigmoid_forward")
def log_sigmoid_forward(self: Array) -> tuple[Array, Array]:
    """(log sigmoid, the buffer exp(-|x|) that CPU PyTorch keeps for the gradient)."""
    x = widen(self)
    buffer = jnp.exp(-jnp.abs(x))
    return jnp.minimum(x, 0) - jnp.log1p(buffer), buffer


@lower("log_sigmoid_backward")
def log_sigmoid_backward(grad_output: Array, self: Array, buffer: Array) -> Array:
    return widen(grad_output) * sigmoid(-widen(self))


@pointwise("softshrink")
def softshrink(self: Array, lambd: Array | float = 0.5) -> Array:
    return jnp.where(self > lambd, self - lambd, jnp.where(self < -lambd, self + lambd, self * 0))


@pointwise("hardshrink", rounded=True)
def hardshrink(self: Array, lambd: Array | float = 0.5) -> Array:
    return jnp.where((self >= -lambd) & (self <= lambd), 0, self)


@pointwise("softshrink_backward")
def softshrink_backward(grad_output: Array, self: Array, lambd: Array) -> Array:
    return jnp.where((self >= -lambd) & (self <= lambd), 0, grad_output)


@pointwise("hardshrink_backward", rounded=True)
def hardshrink_backward(grad_out: Array, self: Array, lambd: Array) -> Array:
    return jnp.where((self >= -lambd) & (self <= lambd), 0, grad_out)


@lower("glu")
def glu(self: Array, dim: int = -1) -> Array:
    value, gate = jnp.split(widen(self), 2, dim)
    return value * sigmoid(gate)


@lower("glu_backward")
def glu_backward(grad_output: Array, self: Array, dim: int) -> Array:
    value, gate = jnp.split(widen(self), 2, dim)
    grad, s = widen(grad_output), sigmoid(gate)
    return jnp.concatenate([grad * s, grad * value * s * (1 - s)], dim)


@lower("glu_jvp")
def glu_jvp(glu: Array, x: Array, dx: Array, dim: int) -> Array:
    """The change of glu(x) for a change dx."""
    (_, gate), (dvalue, dgate) = jnp.split(widen(x), 2, dim), jnp.split(widen(dx), 2, dim)
    s = sigmoid(gate)
    return dvalue * s + widen(glu) * (1 - s) * dgate


@lower("glu_backward_jvp")
def glu_backward_jvp(grad_x: Array, grad_glu: Array, x: Array, dgrad_glu: Array, dx: Array, dim: int) -> Array:
    """The change of glu's gradient for changes of what it is made of."""

    def gradient(given: Array, at: Array) -> Array:
        return glu_backward(given, at, dim)

    return jax.jvp(gradient, (widen(grad_glu), widen(x)), (widen(dgrad_glu), widen(dx)))[1]


@lower("rrelu_with_noise", static=("lower", "upper"), random=True)
def rrelu_with_noise(
    self: Array,
    noise: Array,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    generator: object = None,
    *,
    key: Array,
) -> tuple[Array, Array]:
    """(new noise, result)."""
    result, slopes = rrelu_with_noise_functional(self, noise, lower, upper, training, generator, key=key)
    return slopes, result


@lower("rrelu_with_noise_", static=("lower", "upper"), random=True)
@lower("rrelu_with_noise_functional", static=("lower", "upper"), random=True)
def rrelu_with_noise_functional(
    self: Array,
    noise: Array,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    generator: object = None,
    *,
    key: Array,
) -> tuple[Array, Array]:
    """(result, noise): in training, negative inputs get slopes uniform in [lower, upper), which the noise keeps."""
    if not training:
        return leaky_relu(self, (lower + upper) / 2), noise
    x = widen(self)
    # 24 random bits fill a float32's mantissa.
    uniform = (random_bits(key, x.shape) >> np.uint32(8)).astype(np.float32) * np.float32(2**-24)
    slopes = jnp.where(x <= 0, lower + (upper - lower) * uniform, 1).astype(x.dtype)
    return x * slopes, slopes


@lower("rrelu_with_noise_backward", static=("lower", "upper"))
def rrelu_with_noise_backward(
    grad_output: Array,
    self: Array,
    noise: Array,
    lower: float,
    upper: float,
    training: bool,
    self_is_result: bool,
) -> Array:
    if training and upper - lower > 1e-6:
        return widen(grad_output) * widen(noise)
    return leaky_relu_backward(widen(grad_output), widen(self), (lower + upper) / 2, self_is_result)
