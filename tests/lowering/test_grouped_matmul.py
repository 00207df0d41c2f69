"""Grouped and scaled products agree with a loop over the groups, or with CPU PyTorch."""

from __future__ import annotations

import jax
import torch

from torch_pjrt.lowering import Spec, apply

from .check import check, lowered, to_cpu, to_jax

aten = torch.ops.aten


def test_each_group_is_multiplied_by_its_matrix() -> None:
    dtype = torch.bfloat16
    torch.manual_seed(0)
    offs = torch.tensor([16, 48, 64], dtype=torch.int32)
    rows, matrices = torch.randn(64, 32).to(dtype), torch.randn(3, 32, 16).to(dtype)
    bounds = [(0, 16), (16, 48), (48, 64)]
    (ours,), _ = lowered(aten._grouped_mm.default, rows, matrices, offs)
    want = torch.cat([rows[a:b].float() @ matrices[g].float() for g, (a, b) in enumerate(bounds)])
    torch.testing.assert_close(ours.float(), want, rtol=2e-2, atol=0.1)
    (ours,), _ = lowered(aten._grouped_mm.default, matrices.mT.contiguous(), rows.mT.contiguous(), offs)
    want = torch.cat([matrices[g].T.float() @ rows[a:b].T.float() for g, (a, b) in enumerate(bounds)], 1)
    torch.testing.assert_close(ours.float(), want, rtol=2e-2, atol=0.1)
    left, right = torch.randn(16, 64).to(dtype), torch.randn(64, 16).to(dtype)
    (ours,), _ = lowered(aten._grouped_mm.default, left, right, offs)
    want = torch.stack([left[:, a:b].float() @ right[a:b].float() for a, b in bounds])
    torch.testing.assert_close(ours.float(), want, rtol=2e-2, atol=0.1)
    check(aten._grouped_mm.default, matrices, matrices.mT.contiguous(), rtol=2e-2, atol=0.1)


def test_scaled_products_agree_with_the_formula() -> None:
    torch.manual_seed(0)
    a, b = torch.randn(16, 32).to(torch.float8_e4m3fn), torch.randn(32, 16).to(torch.float8_e4m3fn)
    one, two = torch.rand(1) + 0.5, torch.rand(1) + 0.5
    rows, columns = torch.rand(16, 1) + 0.5, torch.rand(1, 16) + 0.5
    for recipe, x, y in ((0, one, two), (1, rows, columns)):
        (ours,) = run(aten._scaled_mm_v2.default, a, b, [x], [recipe], [0], [y], [recipe], [0], None, torch.float32)
        torch.testing.assert_close(ours, (a.float() * x) @ (b.float() * y), rtol=1e-4, atol=1e-4)


def run(op: torch._ops.OpOverload, *args: object) -> list[torch.Tensor]:
    with jax.enable_x64(True):
        arrays = torch.utils._pytree.tree_map(lambda t: to_jax(t) if isinstance(t, torch.Tensor) else t, list(args))
        return [to_cpu(x) for x in apply(op, arrays, {}, [Spec((16, 16), torch.float32)])]
