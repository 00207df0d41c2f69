import pytest
import torch

from torch_pjrt.lowering import Spec, apply
from torch_pjrt.lowering.matmul import precision

from ..conftest import DEVICE
from .check import check, to_cpu, to_jax

aten = torch.ops.aten
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int8, torch.complex64]


def tolerance(dtype: torch.dtype) -> dict[str, float]:
    """CPU PyTorch rounds some half-precision sums along the way; ours are rounded once."""
    return {"rtol": 2e-2, "atol": 5e-2} if dtype.is_floating_point and dtype.itemsize == 2 else {}


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(*shape, dtype=dtype)
    return torch.randint(-5, 6, shape, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_batch_of_one_may_be_transposed(dtype: torch.dtype) -> None:
    # XLA:CPU had no product for bfloat16 here.
    x, y = rand(1, 8, 15, dtype=dtype), rand(1, 8, 4, dtype=dtype)
    check(aten.bmm.default, x.transpose(1, 2), y, **tolerance(dtype))
    got = torch.bmm(x.to(DEVICE).transpose(1, 2), y.to(DEVICE)).cpu()
    torch.testing.assert_close(got, torch.bmm(x.transpose(1, 2), y), **tolerance(dtype))


def test_8_bit_floats_of_two_kinds_meet() -> None:
    a, b = rand(15, 16).to(torch.float8_e4m3fn), rand(32, 16).to(torch.float8_e5m2).t()
    one = torch.ones(())
    check(aten._scaled_mm.default, a, b, one, one, out_dtype=torch.float32, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("dtype", DTYPES)
def test_products_of_matrices_and_vectors_agree_with_cpu(dtype: torch.dtype) -> None:
    a, b, v = rand(3, 4, dtype=dtype), rand(4, 5, dtype=dtype), rand(4, dtype=dtype)
    check(aten.mm.default, a, b)
    check(aten.bmm.default, rand(2, 3, 4, dtype=dtype), rand(2, 4, 5, dtype=dtype))
    check(aten.mv.default, a, v)
    check(aten.dot.default, v, rand(4, dtype=dtype))
    check(aten.vdot.default, v, rand(4, dtype=dtype))
    check(aten.outer.default, v, rand(3, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("beta", "alpha"), [(1, 1), (0, 1), (2, 3), (1, 2)])
def test_added_products_scale_by_beta_and_alpha(dtype: torch.dtype, beta: int, alpha: int) -> None:
    a, b, v = rand(3, 4, dtype=dtype), rand(4, 5, dtype=dtype), rand(4, dtype=dtype)
    a3, b3 = rand(2, 3, 4, dtype=dtype), rand(2, 4, 5, dtype=dtype)
    scale = {"beta": beta, "alpha": alpha, **tolerance(dtype)}
    check(aten.addmm.default, rand(5, dtype=dtype), a, b, **scale)
    check(aten.addmm.default, rand(3, 1, dtype=dtype), a, b, **scale)
    check(aten.addmm_.default, rand(3, 5, dtype=dtype), a, b, **scale)
    check(aten.addmv.default, rand(3, dtype=dtype), a, v, **scale)
    check(aten.baddbmm.default, rand(2, 3, 5, dtype=dtype), a3, b3, **scale)
    check(aten.addbmm.default, rand(3, 5, dtype=dtype), a3, b3, **scale)
    check(aten.addr.default, rand(3, 4, dtype=dtype), rand(3, dtype=dtype), v, **scale)


def test_beta_zero_ignores_nan_in_self() -> None:
    self = torch.full((3, 5), float("nan"))
    check(aten.addmm.default, self, rand(3, 4), rand(4, 5), beta=0, alpha=0.5)
    check(aten.addmv.default, self[:, 0], rand(3, 4), rand(4), beta=0.0, alpha=2.5)


def test_addr_of_bools_is_logical() -> None:
    self, v, w = (torch.rand(s) > 0.5 for s in ((3, 4), (3,), (4,)))
    check(aten.addr.default, self, v, w)
    check(aten.addr.default, self, v, w, beta=0)
    check(aten.addr.default, self, v, w, alpha=0)


def test_empty_contractions_are_zero() -> None:
    check(aten.mm.default, rand(3, 0), rand(0, 5))
    check(aten.mm.default, rand(0, 4), rand(4, 5))
    check(aten.addmm.default, rand(5), rand(3, 0), rand(0, 5))
    check(aten.bmm.default, rand(0, 3, 4), rand(0, 4, 5))
    check(aten.dot.default, rand(0), rand(0))


@pytest.mark.parametrize("shapes", [((4,), (4,)), ((3, 4), (4,)), ((4,), (4, 5)), ((2, 1, 3, 4), (6, 4, 5))])
def test_matmul_broadcasts(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    check(aten.matmul.default, *(rand(*s) for s in shapes))
    check(aten.matmul.default, *(rand(*s, dtype=torch.bfloat16) for s in shapes))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_linear_takes_any_leading_dimensions(dtype: torch.dtype) -> None:
    for lead in ((), (3,), (2, 3)):
        check(aten.linear.default, rand(*lead, 4, dtype=dtype), rand(5, 4, dtype=dtype), rand(5, dtype=dtype))
        check(aten.linear.default, rand(*lead, 4, dtype=dtype), rand(5, 4, dtype=dtype))


@pytest.mark.parametrize("mask", [[True, True, True], [False, True, False]])
def test_linear_backward_is_autograd_of_linear(mask: list[bool]) -> None:
    x, w, b, g = rand(2, 3, 4), rand(5, 4), rand(5), rand(2, 3, 5)
    leaves = [t.requires_grad_() for t in (x, w, b)]
    every = torch.autograd.grad(torch.nn.functional.linear(x, w, b), leaves, g)
    want = [t for t, m in zip(every, mask, strict=True) if m]
    args = [to_jax(x), to_jax(g), to_jax(w), mask]
    got = apply(aten.linear_backward.default, args, {}, [Spec(tuple(t.shape), t.dtype) for t in want])
    for g_, w_ in zip(got, want, strict=True):
        torch.testing.assert_close(to_cpu(g_), w_)


def test_mm_with_out_dtype_keeps_the_float32_accumulator() -> None:
    a, b = rand(3, 64, dtype=torch.bfloat16), rand(64, 5, dtype=torch.bfloat16)
    spec = [Spec((3, 5), torch.float32)]
    (got,) = apply(aten.mm.dtype, [to_jax(a), to_jax(b), torch.float32], {}, spec)
    torch.testing.assert_close(to_cpu(got), a.float() @ b.float())


def test_int8_products_accumulate_in_int32() -> None:
    check(aten._int_mm.default, torch.full((32, 64), 127, dtype=torch.int8), torch.full((64, 8), 127, dtype=torch.int8))


@pytest.mark.parametrize("use_gelu", [False, True])
def test_addmm_activation_applies_relu_or_gelu(use_gelu: bool) -> None:
    check(aten._addmm_activation.default, rand(5), rand(3, 4), rand(4, 5), use_gelu=use_gelu)


def test_scaled_products_of_8_bit_weights_agree_with_cpu() -> None:
    a, b = rand(16, 32).to(torch.float8_e4m3fn), rand(16, 32).to(torch.float8_e4m3fn).t()
    one = torch.tensor(0.5)
    check(aten._scaled_mm.default, a, b, one, one, out_dtype=torch.float32)
    weight = rand(16, 32, dtype=torch.int8)
    scales = torch.rand(16).bfloat16()
    check(aten._weight_int8pack_mm.default, rand(8, 32, dtype=torch.bfloat16), weight, scales, rtol=2e-2, atol=1e-1)


def test_precision_follows_torch_matmul_precision() -> None:
    before = torch.get_float32_matmul_precision()
    try:
        seen = []
        for name in ("highest", "high", "medium"):
            torch.set_float32_matmul_precision(name)
            seen.append(precision().name)
        assert seen == ["HIGHEST", "HIGH", "DEFAULT"]
    finally:
        torch.set_float32_matmul_precision(before)
