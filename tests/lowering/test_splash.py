"""Attention as the TPU's kernels, which JAX interprets here, against CPU PyTorch."""

from __future__ import annotations

from typing import Any

import jax
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from torch_pjrt import _C
from torch_pjrt.lowering import Spec, apply, splash
from torch_pjrt.lowering.target import Target, compiling_for

from ..conftest import DEVICE
from .check import to_cpu, to_jax

aten = torch.ops.aten
FORWARD = aten._scaled_dot_product_fused_attention_overrideable.default
BACKWARD = aten._scaled_dot_product_fused_attention_overrideable_backward.default
KERNELS = Target("tpu", interpret=True)
# What a bfloat16 result may be off by: three of its 8 bits.
CLOSE = {"rtol": 3e-2, "atol": 3e-2}


def operands(heads: int, kv_heads: int, queries: int, keys: int, width: int = 64, batch: int = 1) -> list[torch.Tensor]:
    torch.manual_seed(0)
    shapes = [(batch, heads, queries, width)] + [(batch, kv_heads, keys, width)] * 2
    return [torch.randn(s, dtype=torch.bfloat16) for s in shapes]


def run(target: Target | None, op: Any, args: list[Any], specs: list[Spec]) -> list[torch.Tensor]:
    def traced(arrays: list[Any]) -> list[Any]:
        given = iter(arrays)
        with compiling_for(target):
            return list(apply(op, [next(given) if isinstance(a, torch.Tensor) else a for a in args], {}, specs, None))

    with jax.enable_x64(True):
        return [to_cpu(x) for x in jax.jit(traced)([to_jax(a) for a in args if isinstance(a, torch.Tensor)])]


def forward_and_backward(
    target: Target | None, leaves: list[torch.Tensor], causal: bool, scale: float | None, grad: torch.Tensor
) -> list[torch.Tensor]:
    """The output, and gradients of query, key and value."""
    query, number = leaves[0], Spec((), torch.int64)
    specs = [Spec(grad.shape, query.dtype), Spec(query.shape[:3], torch.float32), number, number]
    with torch.no_grad():
        out, logsumexp, seed, offset = run(target, FORWARD, [*leaves, None, 0.0, causal, False, scale], specs)
        rest = [None, [True] * 4, out, logsumexp, None, None, 0, 0, 0.0, causal, seed, offset, scale]
        grads = run(target, BACKWARD, [grad, *leaves, *rest], [Spec(tuple(x.shape), x.dtype) for x in leaves])
    return [out, *grads]


@pytest.mark.parametrize(
    ("heads", "kv_heads", "queries", "keys", "causal", "scale"),
    [(1, 1, 512, 512, True, None), (2, 1, 640, 512, False, 0.3), (2, 1, 512, 768, True, None)],
)
def test_the_kernels_and_their_gradient_are_cpu_pytorchs_attention(
    heads: int, kv_heads: int, queries: int, keys: int, causal: bool, scale: float | None
) -> None:
    leaves = [x.requires_grad_() for x in operands(heads, kv_heads, queries, keys)]
    wide = [x.detach().float().requires_grad_() for x in leaves]
    want = scaled_dot_product_attention(*wide, is_causal=causal, scale=scale, enable_gqa=True)
    grad = torch.randn(want.shape).bfloat16()
    expected = [want.detach(), *torch.autograd.grad(want, wide, grad.float())]
    got = forward_and_backward(KERNELS, leaves, causal, scale, grad)
    for g, w in zip(got, expected, strict=True):
        torch.testing.assert_close(g.float(), w, **CLOSE)


@pytest.mark.parametrize(
    ("batch", "heads", "part"),
    [(("fsdp",), ("tp",), (2, 2)), (("fsdp",), (), (2, 4)), (("fsdp", "tp"), (), (1, 4)), ((), ("tp",), (4, 2))],
)
def test_each_device_of_a_mesh_runs_the_kernel_on_its_part(
    batch: tuple[str, ...], heads: tuple[str, ...], part: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, ...]] = []
    kernel = splash._kernel
    monkeypatch.setattr(splash, "_kernel", lambda query, *rest: seen.append(query) or kernel(query, *rest))
    mesh = jax.sharding.AbstractMesh((2, 2), ("fsdp", "tp"))
    arrays = [to_jax(x) for x in operands(4, 2, 512, 512, batch=4)]
    with compiling_for(Target("tpu", mesh, batch, heads)):  # type: ignore[arg-type]
        assert splash.fits(*arrays, None, 0.0)
        out, logsumexp = jax.eval_shape(lambda *x: splash.forward(*x, True, 0.125), *arrays)
        assert (out.shape, logsumexp.shape) == ((4, 4, 512, 64), (4, 4, 512))
        jax.eval_shape(lambda *x: splash.backward(*x, True, 0.125), out, *arrays, out, logsumexp)
    assert seen == [(*part, 512, 64)] * 2


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, ""),
        ({"target": None}, "no platform is named"),
        ({"target": Target("cpu")}, "no TPU"),
        ({"dtype": torch.float32}, "float32 products would lose digits"),
        ({"queries": 500}, "no whole block"),
        ({"keys": 256}, "short"),
        ({"dropout": 0.1}, "dropout"),
        ({"masked": True}, "a mask"),
        ({"batch": 0}, "nothing to do"),
        ({"kv_heads": 3}, "query heads that share no key head"),
    ],
)
def test_the_kernels_are_taken_where_their_conditions_hold(change: dict[str, Any], why: str) -> None:
    sizes = {"heads": 4, "kv_heads": 2, "queries": 512, "keys": 512}
    sizes |= {k: v for k, v in change.items() if k in ("queries", "keys", "kv_heads", "batch")}
    arrays = [to_jax(x.to(change.get("dtype", torch.bfloat16))) for x in operands(**sizes)]
    with compiling_for(change.get("target", KERNELS)):
        taken = splash.fits(*arrays, arrays[0] if change.get("masked") else None, change.get("dropout", 0.0))
    assert taken is (why == "")


def test_a_batch_that_the_mesh_does_not_divide_is_left_to_the_partitioner() -> None:
    mesh = jax.sharding.AbstractMesh((2,), ("fsdp",))
    arrays = [to_jax(x) for x in operands(2, 2, 512, 512, batch=3)]
    for target in (Target("tpu", mesh, ("fsdp",)), Target("tpu", mesh, None)):  # type: ignore[arg-type]
        with compiling_for(target):
            assert not splash.fits(*arrays, None, 0.0)


def test_training_on_a_device_with_kernels_goes_through_them_if_no_heads_are_shared(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    ran: list[str] = []
    scope = splash._scope
    monkeypatch.setattr(splash, "_scope", lambda phase, *rest: ran.append(phase) or scope(phase, *rest))
    want = [x.float().requires_grad_() for x in operands(2, 2, 512, 512)]
    scaled_dot_product_attention(*want, is_causal=True).square().sum().backward()
    leaves = [x.to(DEVICE).requires_grad_() for x in operands(2, 2, 512, 512)]
    _C.set_attention_kernels(True)
    request.addfinalizer(lambda: _C.set_attention_kernels(False))
    with compiling_for(KERNELS):
        out = scaled_dot_product_attention(*leaves, is_causal=True)
        assert "EfficientAttention" in type(out.grad_fn).__name__
        out.float().square().sum().backward()
        got = [x.grad.cpu().float() for x in leaves if x.grad is not None]
        shared = scaled_dot_product_attention(leaves[0], *(x[:, :1] for x in leaves[1:]), enable_gqa=True)
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            asked = scaled_dot_product_attention(*leaves, is_causal=True)
        assert set(ran) == {"forward", "backward"}
        assert not any("Efficient" in type(x.grad_fn).__name__ for x in (shared, asked))
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w.grad, rtol=5e-2, atol=5e-2)


def test_without_kernels_the_device_keeps_the_formula() -> None:
    leaves = [x.to(DEVICE).requires_grad_() for x in operands(2, 2, 512, 512)]
    assert "Efficient" not in type(scaled_dot_product_attention(*leaves).grad_fn).__name__
