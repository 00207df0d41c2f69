"""The device takes the dtypes that CPU PyTorch takes, gives the dtype it gives, and raises what it raises."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import methodcaller
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from torch_pjrt.eager import cpu_probe

from ..conftest import DEVICE

module = getattr(torch, DEVICE)
SINGLE = [
    torch.bool, torch.uint8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32,
    torch.float64, torch.complex64, torch.complex128,
]  # fmt: skip
F32, F64, BF, I64, BOOL, C64 = (
    torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64,
)  # fmt: skip
PAIRS = [
    (F32, F64), (F64, F32), (F32, I64), (I64, F32), (BOOL, F32), (F32, BOOL), (C64, F32), (F32, C64), (BF, F32),
    (F32, BF), (torch.int32, I64), (I64, BOOL), (BOOL, I64),
]  # fmt: skip

_UNARY = """
    abs acos acosh angle asin atan ceil conj_physical cos cosh digamma erf erfinv exp exp2 expm1 floor frac isinf isnan
    isposinf lgamma log log1p logical_not neg positive reciprocal relu round rsqrt sgn sigmoid sign signbit sin sinc
    sqrt square tan tanh trunc bitwise_not nan_to_num nan_to_num_ relu_ floor_ sqrt_ argmax argmin max min amax amin sum
    nansum mean nanmean prod std var median nanmedian mode sort argsort msort all any count_nonzero norm softmax
"""
_BINARY = """
    add sub mul div floor_divide remainder fmod pow maximum minimum fmax fmin atan2 hypot copysign nextafter heaviside
    logaddexp logaddexp2 xlogy gcd lcm bitwise_and bitwise_or bitwise_left_shift bitwise_right_shift logical_and eq ne
    lt le gt ge dist add_ mul_ div_ sub_ pow_ floor_divide_ remainder_ copysign_ bitwise_and_ lt_
"""


def _method(name: str, x: Tensor, y: Tensor) -> Any:
    return getattr(x, name)(y)


ONE: dict[str, Callable[[Tensor], Any]] = {
    **{n: methodcaller(n) for n in _UNARY.split() if n != "softmax"},
    "softmax": methodcaller("softmax", 0),
    "cumulative": lambda x: (x.cumsum(0), x.cumprod(0)),
    "cummax": lambda x: x.cummax(0),
    "logsumexp": lambda x: x.logsumexp(0),
    "logcumsumexp": lambda x: x.logcumsumexp(0),
    "topk": lambda x: x.topk(1),
    "kthvalue": lambda x: x.kthvalue(1),
    "clamp": lambda x: x.clamp(0, 1),
    "shift by a number": lambda x: x << 1,
    "inv": torch.linalg.inv_ex,
    "cholesky": torch.linalg.cholesky_ex,
    "svd": torch.linalg.svdvals,
    "eigh": torch.linalg.eigvalsh,
    "fft": torch.fft.fft,
    "masked_fill by x": lambda x: torch.ones(2, 2, device=x.device).masked_fill(x, 1.0),
    "index by x": lambda x: torch.ones(4, 2, device=x.device)[x],
    "gather by x": lambda x: torch.ones(2, 2, device=x.device).gather(0, x),
    "index_select by x": lambda x: torch.ones(4, 2, device=x.device).index_select(0, x[0]),
    "embedding by x": lambda x: F.embedding(x, torch.ones(4, 2, device=x.device)),
    "log_softmax": lambda x: x.log_softmax(1),
    "log_softmax of nothing": lambda x: x[:0].log_softmax(1),
    "gelu": F.gelu,
    "silu": F.silu,
    "elu": F.elu,
    "leaky_relu": F.leaky_relu,
    "hardtanh": F.hardtanh,
    "softplus": F.softplus,
    "logsigmoid": F.logsigmoid,
    "hardswish": F.hardswish,
    "max_pool2d": lambda x: F.max_pool2d(x[None], 2),
    "avg_pool2d": lambda x: F.avg_pool2d(x[None], 2),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x[None], 1),
    "bilinear": lambda x: F.interpolate(x[None, None], size=(3, 3), mode="bilinear"),
    "nearest": lambda x: F.interpolate(x[None, None], size=(3, 3)),
    "multinomial": lambda x: torch.multinomial(x + x, 1) if x.dtype != BOOL else torch.multinomial(x, 1),
    "normal_": lambda x: x.normal_(),
    "uniform_": lambda x: x.uniform_(),
    "bernoulli_": lambda x: x.bernoulli_(0.5),
    "exponential_": lambda x: x.exponential_(),
    "random_": lambda x: x.random_(),
}
TWO: dict[str, Callable[[Tensor, Tensor], Any]] = {
    **{n: partial(_method, n) for n in _BINARY.split()},
    "clamp by a tensor": lambda x, y: x.clamp(y, y),
    "matmul": lambda x, y: x @ y,
    "addmm": lambda x, y: torch.addmm(x, x, y),
    "bmm": lambda x, y: torch.bmm(x[None], y[None]),
    "dot": lambda x, y: torch.dot(x[0], y[0]),
    "baddbmm": lambda x, y: torch.baddbmm(x[None], x[None], y[None]),
    "addcdiv": lambda x, y: torch.addcdiv(x, x, y),
    "lerp": lambda x, y: torch.lerp(x, y, 0.5),
    "where by x": lambda x, y: torch.where(x, y, y),
    "where": lambda x, y: torch.where(torch.ones(2, 2, dtype=torch.bool, device=x.device), x, y),
    "cat": lambda x, y: torch.cat([x, y]),
    "cross": lambda x, y: torch.linalg.cross(x.new_zeros(3), y.new_zeros(3)),
    "masked_fill_": lambda x, y: x.masked_fill_(torch.ones(2, 2, dtype=torch.bool, device=x.device), y[0, 0]),
    "index_add": lambda x, y: x.index_add(0, torch.zeros(2, dtype=torch.int64, device=x.device), y),
    "index_copy": lambda x, y: x.index_copy(0, torch.arange(2, device=x.device), y),
    "index_put": lambda x, y: x.index_put((torch.arange(2, device=x.device),), y),
    "scatter": lambda x, y: x.scatter(0, torch.zeros(2, 2, dtype=torch.int64, device=x.device), y),
    "searchsorted": lambda x, y: torch.searchsorted(x, y),
    "complex": torch.complex,
    "cdist": lambda x, y: torch.cdist(x, y),
    "conv1d": lambda x, y: F.conv1d(x[None], y[:, :, None]),
    "conv2d with a bias": lambda x, y: F.conv2d(x[None, :, :, None], x[:, :, None, None], y[0]),
    "conv_transpose2d": lambda x, y: F.conv_transpose2d(x[None, :, :, None], y[:, :, None, None]),
    "linear": lambda x, y: F.linear(x, y),
    "batch_norm": lambda x, y: F.batch_norm(x, y[0], y[1], training=True),
    "layer_norm": lambda x, y: F.layer_norm(x, (2,), y[0], y[1]),
    "group_norm": lambda x, y: F.group_norm(x, 2, y[0], y[1]),
    "cross_entropy": lambda x, y: F.cross_entropy(x, y),
    "cross_entropy of classes": lambda x, y: F.cross_entropy(x, y[0]),
    "cross_entropy with weights": lambda x, y: F.cross_entropy(
        x, torch.zeros(2, dtype=torch.int64, device=x.device), y[0]
    ),
    "nll_loss": lambda x, y: F.nll_loss(x, y[0]),
    "mse_loss": lambda x, y: F.mse_loss(x, y),
    "l1_loss": lambda x, y: F.l1_loss(x, y),
    "huber_loss": lambda x, y: F.huber_loss(x, y),
    "smooth_l1_loss": lambda x, y: F.smooth_l1_loss(x, y),
    "soft_margin_loss": lambda x, y: F.soft_margin_loss(x, y),
    "kl_div": lambda x, y: F.kl_div(x, y, reduction="sum"),
    "binary_cross_entropy": lambda x, y: F.binary_cross_entropy(x, y),
    "binary_cross_entropy_with_logits": lambda x, y: F.binary_cross_entropy_with_logits(x, y),
    "prelu": lambda x, y: F.prelu(x, y[0]),
    "grid_sample": lambda x, y: F.grid_sample(x[None, None], y[None, None], align_corners=False),
}


def tried(fn: Callable[..., Any], dtypes: list[torch.dtype], device: str) -> tuple[type[Exception] | None, Any]:
    """(the exception's type, None) or (None, the results' dtypes)."""
    try:
        result = fn(*(torch.ones(2, 2).to(d).to(device) for d in dtypes))
    except Exception as error:
        return type(error), None
    return None, [t.dtype for t in (result if isinstance(result, tuple) else [result]) if isinstance(t, Tensor)]


def differences(fn: Callable[..., Any], combinations: list[list[torch.dtype]]) -> list[str]:
    found = []
    for dtypes in combinations:
        expected, got = tried(fn, dtypes, "cpu"), tried(fn, dtypes, DEVICE)
        half = any(d in (torch.float16, torch.bfloat16) for d in dtypes)
        if got == expected or (half and expected[0] is NotImplementedError and got[0] is None):
            continue  # the device has half precision where CPU PyTorch has not
        found.append(f"{dtypes}: CPU {expected}, {DEVICE} {got}")
    return found


@pytest.mark.parametrize("name", ONE)
def test_an_op_of_one_tensor_takes_and_refuses_the_cpus_dtypes(name: str) -> None:
    assert differences(ONE[name], [[d] for d in SINGLE]) == []


@pytest.mark.parametrize("name", TWO)
def test_an_op_of_two_tensors_takes_and_refuses_the_cpus_dtypes(name: str) -> None:
    assert differences(TWO[name], [[d, d] for d in SINGLE] + [list(p) for p in PAIRS]) == []


def test_a_refusal_is_the_same_for_large_tensors() -> None:
    with pytest.raises(RuntimeError, match="expected scalar type Float but found Double"):
        F.cross_entropy(
            torch.zeros(512, 5000, device=DEVICE),
            torch.zeros(512, dtype=torch.int64, device=DEVICE),
            torch.zeros(5000, dtype=torch.float64, device=DEVICE),
        )
    with pytest.raises(RuntimeError, match=r"Input type .* and weight type"):
        F.conv2d(torch.zeros(8, 64, 56, 56, device=DEVICE), torch.zeros(64, 64, 3, 3, dtype=F64, device=DEVICE))


def test_linear_algebra_in_half_precision_is_refused_at_the_call() -> None:
    for dtype in (torch.float16, BF):
        with pytest.raises(NotImplementedError, match="not implemented for"):
            torch.linalg.svd(torch.ones(2, 2, dtype=dtype, device=DEVICE))


def test_asking_the_cpu_draws_nothing_from_its_generator_and_warns_of_nothing(recwarn: pytest.WarningsRecorder) -> None:
    state = torch.get_rng_state()
    cpu_probe._PASSED.clear()
    x = torch.ones(5, 7, device=DEVICE)
    (x.normal_(), F.dropout(x), x.bernoulli_(0.5), torch.multinomial(x, 2), F.rrelu(x, training=True))
    assert torch.equal(torch.get_rng_state(), state)
    assert [str(w.message) for w in recwarn] == []


def test_the_cpu_is_asked_once_per_combination_of_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    ask = cpu_probe._ask
    monkeypatch.setattr(cpu_probe, "_ask", lambda op, *args: asked.append(op.name()) or ask(op, *args))
    monkeypatch.setattr(cpu_probe, "_PASSED", {})
    for n in (701, 702, 703):
        torch.hypot(torch.ones(n, device=DEVICE), torch.ones(n, device=DEVICE))
    assert asked.count("aten::hypot") == 1


def test_asking_the_cpu_warns_of_nothing(monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder) -> None:
    # With every number cut to the same bound there is nothing left between start and end, of which PyTorch warns.
    monkeypatch.setattr(cpu_probe, "_PASSED", {})
    assert len(torch.arange(140807, 140935, device=DEVICE)) == 128
    assert not recwarn.list
