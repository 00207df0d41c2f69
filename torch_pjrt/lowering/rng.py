"""Random numbers: fills, factories, permutations, dropout. Distributions with rejection are in `distribution`.

`key` is uint32[4], fresh for every call. All bits come from Philox, which gives the same numbers on every platform.
A fill only needs the shape and dtype of `self`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import Array, lax

from .check import require
from .dtypes import opmath, promote, to_numpy, to_torch
from .registry import lower
from .target import on_each_device
from .widen import widen

Like = Array | jax.ShapeDtypeStruct
Number = Array | float
Ignored = object


def random_bits(key: Array, shape: Sequence[int], dtype: np.dtype | type = np.uint32) -> Array:
    """Independent uniform bits, uint32 or uint64."""
    if math.prod(shape) == 0:
        return jnp.zeros(tuple(shape), dtype)
    # XLA's partitioner gives each device a generator of its own, so that the numbers would depend on the mesh.
    return on_each_device(lax.rng_bit_generator(key, tuple(shape), dtype, algorithm=lax.RandomAlgorithm.RNG_PHILOX)[1])


def subkeys(key: Array, count: int, step: Array | None = None) -> Array:
    """`count` keys, uint32[count, 4], for what is drawn under `key`, in turn `step` of a loop if there is one."""
    # Hashed twice: the first time so that the key with a turn's number in it is no other op's key.
    own = random_bits(key, (4,))
    if step is not None:
        own = own.at[0].set(own[0] ^ step.astype(np.uint32))
    return random_bits(own, (count, 4))


def unit(key: Array, shape: Sequence[int], dtype: np.dtype) -> Array:
    """Uniform in [0, 1), on a grid that `dtype` holds exactly, so that no value rounds up to 1; half types as f32.

    Of a complex number, each part.
    """
    if jnp.issubdtype(dtype, jnp.complexfloating):
        parts = unit(key, (2, *shape), np.empty(0, dtype).real.dtype)
        return lax.complex(parts[0], parts[1])
    digits = jnp.finfo(dtype).nmant + 1
    wide = digits > 24
    bits = random_bits(key, shape, np.uint64 if wide else np.uint32) >> ((64 if wide else 32) - digits)
    return bits.astype(np.float64 if wide else np.float32) * 2.0**-digits


def open_unit(key: Array, shape: Sequence[int], dtype: np.dtype) -> Array:
    """Uniform in (0, 1), both ends left out: the midpoints of 2^23 (f64: 2^52) cells. Half types as f32."""
    wide = np.dtype(dtype).itemsize == 8
    bits = random_bits(key, shape, np.uint64 if wide else np.uint32) >> (12 if wide else 9)
    return (bits.astype(np.float64 if wide else np.float32) + 0.5) * (2.0**-52 if wide else 2.0**-23)


def standard_normal(key: Array, shape: Sequence[int], dtype: np.dtype) -> Array:
    """The inverse distribution function on an open uniform; a complex number's parts have variance 1/2 each."""
    if jnp.issubdtype(dtype, jnp.complexfloating):
        part = np.dtype(np.float32 if np.dtype(dtype).itemsize == 8 else np.float64)
        parts = standard_normal(key, (2, *shape), part) * math.sqrt(0.5)
        return lax.complex(parts[0], parts[1])
    return math.sqrt(2.0) * lax.erf_inv(2 * open_unit(key, shape, dtype) - 1)


@lower("normal_", "normal_functional", random=True, dynamic=["mean", "std"], write_only=["self"])
def normal(self: Like, mean: Number = 0.0, std: Number = 1.0, *, generator: Ignored = None, key: Array) -> Array:
    both = mean + 1j * mean if jnp.issubdtype(self.dtype, jnp.complexfloating) else mean  # real and imaginary part
    return standard_normal(key, self.shape, self.dtype) * std + both


@lower(
    "normal.Tensor_float", "normal.float_Tensor", "normal.Tensor_Tensor", random=True, dynamic=["mean", "std"]
)  # fmt: skip
def normal_of(mean: Number, std: Number = 1.0, *, generator: Ignored = None, key: Array) -> Array:
    shape = jnp.broadcast_shapes(jnp.shape(mean), jnp.shape(std))
    require(jnp.asarray(std) >= 0, "normal expects all elements of std >= 0.0")
    return standard_normal(key, shape, to_numpy(promote([mean, std]))) * std + mean


@lower("normal.float_float", random=True, dynamic=["mean", "std"])
def normal_sized(
    mean: Number,
    std: Number,
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    key: Array,
    **factory: Ignored,
) -> Array:
    return standard_normal(key, size, _float(dtype)) * std + mean


@lower("normal.out", random=True, dynamic=["mean", "std"], write_only=["out"])
def normal_out(
    mean: Number, std: Number, size: Sequence[int], *, generator: Ignored = None, out: Like, key: Array
) -> Array:
    return normal(out, mean, std, key=key)


@lower("log_normal", "log_normal_", random=True, dynamic=["mean", "std"], write_only=["self"])
def log_normal(self: Like, mean: Number = 1.0, std: Number = 2.0, *, generator: Ignored = None, key: Array) -> Array:
    return jnp.exp(standard_normal(key, self.shape, self.dtype) * std + mean)


@lower("uniform", "uniform_", random=True, dynamic=["from", "to"], write_only=["self"])
def uniform(self: Like, *bounds: Number, generator: Ignored = None, key: Array, **named: Number) -> Array:
    """In [from, to): a value that rounds up to `to` in the tensor's own dtype becomes `from`. Complex: each part."""
    if jnp.issubdtype(self.dtype, jnp.complexfloating):
        both = jax.ShapeDtypeStruct((2, *self.shape), np.empty(0, self.dtype).real.dtype)
        parts = uniform(both, *bounds, key=key, **named)
        return lax.complex(parts[0], parts[1])
    given = dict(zip(("from", "to"), bounds, strict=False)) | named  # `from` is no name in Python
    u = unit(key, self.shape, self.dtype)
    low, high = (jnp.asarray(given.get(k, v)).astype(u.dtype) for k, v in (("from", 0.0), ("to", 1.0)))
    values = (u * (high - low) + low).astype(self.dtype)
    return jnp.where(values >= high.astype(self.dtype), low.astype(self.dtype), values)


@lower("exponential", "exponential_", random=True, dynamic=["lambd"], write_only=["self"])
def exponential(self: Like, lambd: Number = 1.0, *, generator: Ignored = None, key: Array) -> Array:
    return -jnp.log(open_unit(key, self.shape, self.dtype)) / lambd


@lower("cauchy", "cauchy_", random=True, dynamic=["median", "sigma"], write_only=["self"])
def cauchy(self: Like, median: Number = 0.0, sigma: Number = 1.0, *, generator: Ignored = None, key: Array) -> Array:
    return median + sigma * jnp.tan(math.pi * (open_unit(key, self.shape, self.dtype) - 0.5))


@lower("geometric", "geometric_", random=True, dynamic=["p"], write_only=["self"])
def geometric(self: Like, p: Number, *, generator: Ignored = None, key: Array) -> Array:
    """The number of trials up to the first success, 1 and more."""
    u = open_unit(key, self.shape, _real(self.dtype))
    return jnp.maximum(jnp.ceil(jnp.log(u) / jnp.log1p(-jnp.asarray(p).astype(u.dtype))), 1)


@lower("bernoulli_.float", "bernoulli.p", random=True, dynamic=["p"], write_only=["self"])
def bernoulli_constant(self: Like, p: Number = 0.5, *, generator: Ignored = None, key: Array) -> Array:
    return unit(key, self.shape, np.dtype(np.float32)) < p


@lower("bernoulli_.Tensor", "bernoulli.Tensor", random=True, write_only=["self"])
def bernoulli_tensor(self: Like, p: Array, *, generator: Ignored = None, key: Array) -> Array:
    require((p >= 0) & (p <= 1), _PROBABILITY)
    return unit(key, self.shape, np.dtype(np.float32)) < p


@lower("bernoulli", random=True)
def bernoulli(self: Array, *, generator: Ignored = None, key: Array) -> Array:
    require((self >= 0) & (self <= 1), _PROBABILITY)
    return unit(key, self.shape, np.dtype(np.float32)) < self


_PROBABILITY = "bernoulli: expected probabilities between 0 and 1 (p_in >= 0 && p_in <= 1)"


@lower("random", "random_", "random.to", "random_.to", "random.from", "random_.from", random=True, write_only=["self"])
def random(self: Like, *bounds: int | None, generator: Ignored = None, key: Array, **named: int | None) -> Array:
    """Whole numbers: [0, to), [from, to), or from `from` (0) up to the largest number the dtype counts to exactly."""
    given = [named[name] for name in ("from", "to") if name in named]
    low, high = [0, *bounds, *given][-2:] if bounds or given else (0, None)
    last = _last_counted(self.dtype) + 1
    return whole(key, self.shape, self.dtype, low or 0, last if high is None else high)


def whole(key: Array, shape: Sequence[int], dtype: np.dtype, low: int, high: int) -> Array:
    """Uniform whole numbers in [low, high), none of which rounds up to `high` in `dtype`."""
    span = high - low
    if span <= _SMALL_SPAN:
        drawn = (random_bits(key, shape) % np.uint32(span)).astype(np.int64)
    elif span < 2**64:
        drawn = (random_bits(key, shape, np.uint64) % np.uint64(span)).astype(np.int64)
    else:
        drawn = random_bits(key, shape, np.uint64).astype(np.int64)
    values = drawn + low
    if jnp.issubdtype(dtype, jnp.floating):
        last = np.asarray(high - 1).astype(dtype)
        if int(last) >= high:
            last = np.nextafter(last, np.asarray(0, dtype))
        values = jnp.minimum(values, int(last))
    return values.astype(dtype)


# A remainder of 32 random bits favours some values by span / 2^32: up to here by less than one in 65,536.
_SMALL_SPAN = 2**16


def _last_counted(dtype: np.dtype) -> int:
    if dtype == np.bool_:
        return 1
    if jnp.issubdtype(dtype, jnp.floating):
        return int(2 ** (jnp.finfo(dtype).nmant + 1))
    return int(jnp.iinfo(dtype).max)


@lower("rand", "rand.generator", random=True)
def rand(size: Sequence[int], *, dtype: torch.dtype | None = None, key: Array, **factory: Ignored) -> Array:
    return unit(key, size, _float(dtype))


@lower("rand.out", "rand.generator_out", random=True, write_only=["out"])
def rand_out(size: Sequence[int], *, generator: Ignored = None, out: Like, key: Array) -> Array:
    return unit(key, size, out.dtype)


@lower("rand_like", "rand_like.generator", random=True)
def rand_like(self: Array, *, dtype: torch.dtype | None = None, key: Array, **factory: Ignored) -> Array:
    return unit(key, self.shape, _like(self, dtype))


@lower("randn", "randn.generator", random=True)
def randn(size: Sequence[int], *, dtype: torch.dtype | None = None, key: Array, **factory: Ignored) -> Array:
    return standard_normal(key, size, _float(dtype))


@lower("randn_like", "randn_like.generator", random=True)
def randn_like(self: Array, *, dtype: torch.dtype | None = None, key: Array, **factory: Ignored) -> Array:
    return standard_normal(key, self.shape, _like(self, dtype))


@lower("randint", "randint.generator", random=True)
def randint(
    high: int, size: Sequence[int], *, dtype: torch.dtype | None = None, key: Array, **factory: Ignored
) -> Array:
    return whole(key, size, to_numpy(dtype or torch.int64), 0, high)


@lower("randint.low", "randint.low_generator", random=True)
def randint_low(
    low: int, high: int, size: Sequence[int], *, dtype: torch.dtype | None = None, key: Array, **factory: Ignored
) -> Array:
    return whole(key, size, to_numpy(dtype or torch.int64), low, high)


@lower("randint_like", "randint_like.generator", random=True)
def randint_like(self: Array, high: int, *, dtype: torch.dtype | None = None, key: Array, **factory: Ignored) -> Array:
    return whole(key, self.shape, _like(self, dtype), 0, high)


@lower("randint_like.low_dtype", "randint_like.low_generator_dtype", random=True)
def randint_like_low(
    self: Array, low: int, high: int, *, dtype: torch.dtype | None = None, key: Array, **factory: Ignored
) -> Array:
    return whole(key, self.shape, _like(self, dtype), low, high)


@lower("randperm", "randperm.generator", random=True)
def randperm(n: int, *, key: Array, **factory: Ignored) -> Array:
    """The order of 64 random bits per element, as two keys: chips sort 32-bit numbers faster."""
    first, second = random_bits(key, (2, n))
    return lax.sort((first, second, lax.iota(np.int32, n)), num_keys=2, is_stable=False)[2]


@lower("native_dropout", random=True, dynamic=["p"])
def native_dropout(input: Array, p: Number, train: bool | None, *, key: Array) -> tuple[Array, Array]:
    """(input / (1 - p) where kept, else 0; which were kept)."""
    if train is False:
        return input, jnp.ones(input.shape, np.bool_)
    x = widen(input)
    keep = 1 - jnp.asarray(p).astype(np.float32)
    kept = unit(key, input.shape, np.dtype(np.float32)) < keep
    scale = jnp.where(keep == 0, 0, 1 / jnp.where(keep == 0, 1, keep))
    return jnp.where(kept, x * scale.astype(x.dtype), 0), kept


@lower("native_dropout_backward", "_masked_scale", dynamic=["scale"])
def native_dropout_backward(grad_output: Array, mask: Array, scale: Number) -> Array:
    grad = widen(grad_output)
    return grad * mask.astype(grad.dtype) * scale


def _float(dtype: torch.dtype | None) -> np.dtype:
    return to_numpy(dtype or torch.get_default_dtype())


def _like(x: Array, dtype: torch.dtype | None) -> np.dtype:
    return x.dtype if dtype is None else to_numpy(dtype)


def _real(dtype: np.dtype) -> np.dtype:
    """A float dtype to compute in for a tensor of `dtype`, which may hold integers."""
    return to_numpy(opmath(to_torch(dtype))) if jnp.issubdtype(dtype, jnp.floating) else np.dtype(np.float32)
