"""Random fills have the distribution, the range and the repeatability that PyTorch documents."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import numpy as np
import pytest
import torch
from scipy import stats

from torch_pjrt.lowering import Spec, apply
from torch_pjrt.lowering.dtypes import to_numpy

from .check import check, to_cpu, to_jax

aten = torch.ops.aten
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
N = 20_000


def draw(
    op: torch._ops.OpOverload,
    *args: object,
    seed: int = 1,
    out: list[tuple[tuple[int, ...], torch.dtype]],
    **kwargs: object,
) -> list[torch.Tensor]:
    """Run one random op with a fixed key; `out` says what it promises. Tensors arrive as arrays, floats as such."""
    with jax.enable_x64(True):
        key = jax.numpy.asarray([seed, 2, 3, 4], dtype=np.uint32)
        arrays = [to_jax(a) if isinstance(a, torch.Tensor) else a for a in args]
        return [to_cpu(x) for x in apply(op, arrays, kwargs, [Spec(*o) for o in out], key)]


def fill(
    op: torch._ops.OpOverload, shape: tuple[int, ...], dtype: torch.dtype, *args: object, seed: int = 1
) -> torch.Tensor:
    """The new value of a tensor that an in-place random op fills: it sees a shape and a dtype only."""
    with jax.enable_x64(True):
        like = jax.ShapeDtypeStruct(shape, to_numpy(dtype))
        key = jax.numpy.asarray([seed, 2, 3, 4], dtype=np.uint32)
        return to_cpu(apply(op, [like, *args], {}, [Spec(shape, dtype)], key)[0])


def fits(x: torch.Tensor, cdf: Callable[[np.ndarray], np.ndarray]) -> bool:
    """Kolmogorov-Smirnov: a fixed key makes this a fixed verdict; 1e-3 leaves room for its draw."""
    return bool(stats.kstest(x.double().flatten().numpy(), cdf).pvalue > 1e-3)


@pytest.mark.parametrize("size", [N, 7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_continuous_fills_have_their_distributions(dtype: torch.dtype, size: int) -> None:
    shape = (size // 7, 7)
    assert fits(fill(aten.normal_.default, shape, dtype, 1.0, 2.0), stats.norm(1, 2).cdf)
    assert fits(fill(aten.uniform_.default, shape, dtype, -1.0, 3.0), stats.uniform(-1, 4).cdf)
    assert fits(fill(aten.exponential_.default, shape, dtype, 2.0), stats.expon(scale=0.5).cdf)
    assert fits(fill(aten.cauchy_.default, shape, dtype, 1.0, 0.5), stats.cauchy(1, 0.5).cdf)
    assert fits(fill(aten.log_normal_.default, shape, dtype, 0.5, 0.7), stats.lognorm(0.7, scale=math.exp(0.5)).cdf)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_fills_have_the_mean_and_variance_of_their_distributions(dtype: torch.dtype) -> None:
    normal = fill(aten.normal_.default, (N,), dtype).double()
    assert abs(normal.mean()) < 0.03 and abs(normal.var() - 1) < 0.05
    exponential = fill(aten.exponential_.default, (N,), dtype, 0.5).double()
    assert abs(exponential.mean() - 2) < 0.06 and abs(exponential.var() - 4) < 0.4
    assert abs(fill(aten.uniform_.default, (N,), dtype).double().var() - 1 / 12) < 0.002


def test_a_complex_normal_has_half_its_variance_in_each_part() -> None:
    x = fill(aten.normal_.default, (N,), torch.complex64, 0.0, 2.0)
    assert abs(x.real.var() - 2) < 0.1 and abs(x.imag.var() - 2) < 0.1
    assert abs((x.real * x.imag).mean()) < 0.05


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-2.0, 5.0), (100.0, 100.5), (3.0, 3.0)])
def test_uniform_never_reaches_its_upper_bound(low: float, high: float, dtype: torch.dtype) -> None:
    x = fill(aten.uniform_.default, (N,), dtype, low, high)
    upper = torch.tensor(high, dtype=dtype)
    assert bool((x >= low).all()) and bool(((x < upper) | (upper == low)).all())


@pytest.mark.parametrize("dtype", FLOATS)
def test_functional_factories_draw_the_dtype_they_are_asked_for(dtype: torch.dtype) -> None:
    (u,) = draw(aten.rand.default, [N], dtype=dtype, out=[((N,), dtype)])
    assert u.dtype == dtype and u.min() >= 0 and u.max() < 1 and abs(u.double().mean() - 0.5) < 0.01
    (n,) = draw(aten.randn.default, [N], dtype=dtype, out=[((N,), dtype)])
    assert abs(n.double().mean()) < 0.03 and abs(n.double().std() - 1) < 0.03
    like = torch.zeros(N, dtype=dtype)
    assert draw(aten.rand_like.default, like, out=[((N,), dtype)])[0].equal(u)
    assert draw(aten.randn_like.default, like, out=[((N,), dtype)])[0].equal(n)


@pytest.mark.parametrize("dtype", FLOATS)
def test_out_overloads_draw_in_the_dtype_of_out(dtype: torch.dtype) -> None:
    with jax.enable_x64(True):
        like = jax.ShapeDtypeStruct((N,), to_numpy(dtype))
        key = jax.numpy.asarray([1, 2, 3, 4], dtype=np.uint32)
        (u,) = apply(aten.rand.out, [[N]], {"out": like}, [Spec((N,), dtype)], key)
        (n,) = apply(aten.normal.out, [1.0, 2.0, [N]], {"out": like}, [Spec((N,), dtype)], key)
    assert to_cpu(u).min() >= 0 and to_cpu(u).max() < 1
    assert abs(to_cpu(n).double().mean() - 1) < 0.06 and abs(to_cpu(n).double().std() - 2) < 0.06


def test_exponential_is_never_zero_nor_infinite() -> None:
    x = fill(aten.exponential_.default, (200_000,), torch.float32)
    assert bool((x > 0).all()) and bool(x.isfinite().all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.uint8])
@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_bernoulli_is_one_with_probability_p(p: float, dtype: torch.dtype) -> None:
    x = fill(aten.bernoulli_.float, (N,), dtype, p).double()
    assert set(x.tolist()) <= {0.0, 1.0} and abs(x.mean() - p) < 0.015
    probabilities = torch.tensor([0.0, p, 1.0]).repeat(N, 1)
    (y,) = draw(aten.bernoulli_.Tensor, torch.zeros(N, 3).to(dtype), probabilities, out=[((N, 3), dtype)])
    assert torch.allclose(y.double().mean(0), torch.tensor([0.0, p, 1.0]).double(), atol=0.015)
    (z,) = draw(aten.bernoulli.default, probabilities, out=[((N, 3), torch.float32)])
    assert torch.allclose(z.mean(0), torch.tensor([0.0, p, 1.0]), atol=0.015)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_geometric_counts_trials_from_one(dtype: torch.dtype) -> None:
    x = fill(aten.geometric_.default, (N,), dtype, 0.25).double()
    assert x.min() == 1 and abs(x.mean() - 4) < 0.12 and abs(x.var() - 12) < 1
    assert abs((x == 1).double().mean() - 0.25) < 0.015
    assert bool((fill(aten.geometric_.default, (50,), dtype, 1.0) == 1).all())


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
def test_random_with_bounds_gives_every_whole_number_below_the_upper(dtype: torch.dtype) -> None:
    low = 0 if dtype == torch.uint8 else -3
    x = fill(getattr(aten.random_, "from"), (N,), dtype, low, 9).double()
    assert sorted(set(x.tolist())) == list(range(low, 9)) and abs(x.mean() - (low + 8) / 2) < 0.15
    assert set(fill(aten.random_.to, (500,), dtype, 3).tolist()) == {0, 1, 2}


@pytest.mark.parametrize(
    ("dtype", "last"),
    [
        (torch.float32, 2**24), (torch.float64, 2**53), (torch.bfloat16, 2**8), (torch.float16, 2**11),
        (torch.int64, 2**63 - 1), (torch.int32, 2**31 - 1), (torch.int16, 2**15 - 1), (torch.int8, 127),
        (torch.uint8, 255), (torch.bool, 1),
    ],
)  # fmt: skip
def test_random_without_bounds_fills_the_exact_range_of_the_dtype(dtype: torch.dtype, last: int) -> None:
    x = fill(aten.random_.default, (N,), dtype).double()
    assert x.min() >= 0 and x.max() <= last
    assert x.max() >= 0.99 * last and abs(x.mean() / last - 0.5) < 0.015


def test_random_covers_all_of_int64() -> None:
    x = fill(getattr(aten.random_, "from"), (N,), torch.int64, -(2**63), None)
    assert abs((x < 0).double().mean() - 0.5) < 0.015


def test_whole_numbers_do_not_round_up_to_the_bound_in_half_types() -> None:
    x = fill(getattr(aten.random_, "from"), (N,), torch.bfloat16, 0, 1000)
    assert x.max() < 1000 and bool((x == x.round()).all())


def test_randint_stays_in_its_range() -> None:
    (x,) = draw(aten.randint.low, -5, 70_000, [N], out=[((N,), torch.int64)])
    assert x.min() >= -5 and x.max() < 70_000 and fits(x, stats.uniform(-5, 70_005).cdf)
    (y,) = draw(aten.randint.default, 4, [N], dtype=torch.float32, out=[((N,), torch.float32)])
    assert set(y.tolist()) == {0.0, 1.0, 2.0, 3.0}
    (z,) = draw(aten.randint_like.low_dtype, torch.zeros(N, dtype=torch.int32), 7, 9, out=[((N,), torch.int32)])
    assert set(z.tolist()) == {7, 8}


@pytest.mark.parametrize("n", [0, 1, 10, 5000])
def test_randperm_is_a_permutation(n: int) -> None:
    (x,) = draw(aten.randperm.default, n, out=[((n,), torch.int64)])
    assert torch.equal(x.sort().values, torch.arange(n))
    assert n < 10 or not torch.equal(x, torch.arange(n))
    with jax.enable_x64(True):
        like = jax.ShapeDtypeStruct((n,), np.dtype(np.int32))
        key = jax.numpy.asarray([1, 2, 3, 4], dtype=np.uint32)
        (y,) = apply(aten.randperm.generator_out, [n], {"generator": None, "out": like}, [Spec((n,), torch.int32)], key)
    assert torch.equal(to_cpu(y).long(), x)


def test_every_permutation_of_three_is_equally_likely() -> None:
    seen: dict[tuple[int, ...], int] = {}
    for seed in range(600):
        (x,) = draw(aten.randperm.default, 3, seed=seed, out=[((3,), torch.int64)])
        seen[tuple(x.tolist())] = seen.get(tuple(x.tolist()), 0) + 1
    assert len(seen) == 6 and stats.chisquare(list(seen.values())).pvalue > 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("p", [0.0, 0.2, 1.0])
def test_dropout_scales_what_it_keeps(p: float, dtype: torch.dtype) -> None:
    x = torch.ones(N, dtype=dtype)
    y, mask = draw(aten.native_dropout.default, x, p, True, out=[((N,), dtype), ((N,), torch.bool)])
    assert abs(mask.double().mean() - (1 - p)) < 0.015
    assert torch.equal(y, torch.where(mask, torch.tensor(1 / (1 - p) if p < 1 else 0.0, dtype=dtype), 0))
    same, all_kept = draw(aten.native_dropout.default, x, p, False, out=[((N,), dtype), ((N,), torch.bool)])
    assert torch.equal(same, x) and bool(all_kept.all())


def test_dropout_backward_agrees_with_cpu() -> None:
    check(aten.native_dropout_backward.default, torch.randn(8), torch.rand(8) > 0.5, 1.25)
    check(aten.native_dropout_backward.default, torch.randn(8).bfloat16(), torch.rand(8) > 0.5, 1.25)


def test_normal_takes_tensors_for_mean_and_standard_deviation() -> None:
    mean, std = torch.tensor([[0.0], [10.0]]).repeat(1, N), torch.full((N,), 2.0)
    (x,) = draw(aten.normal.Tensor_Tensor, mean, std, out=[((2, N), torch.float32)])
    assert torch.allclose(x.mean(1), torch.tensor([0.0, 10.0]), atol=0.06) and abs(x[0].std() - 2) < 0.06
    (y,) = draw(aten.normal.Tensor_float, mean[1], 0.5, out=[((N,), torch.float32)])
    assert fits(y, stats.norm(10, 0.5).cdf)
    (z,) = draw(aten.normal.float_Tensor, 1.0, std, out=[((N,), torch.float32)])
    assert fits(z, stats.norm(1, 2).cdf)
    (w,) = draw(aten.normal.float_float, 1.0, 3.0, [N], out=[((N,), torch.float32)])
    assert fits(w, stats.norm(1, 3).cdf)


def test_one_key_gives_one_result_and_another_key_another() -> None:
    first, again, other = (fill(aten.normal_.default, (100,), torch.float32, seed=s) for s in (5, 5, 6))
    assert torch.equal(first, again) and not torch.equal(first, other)


@pytest.mark.parametrize("name", ["normal_", "uniform_", "exponential_", "random_"])
@pytest.mark.parametrize("shape", [(), (0, 3)])
def test_scalar_and_empty_tensors_are_filled(name: str, shape: tuple[int, ...]) -> None:
    assert fill(getattr(aten, name).default, shape, torch.float32).shape == shape
