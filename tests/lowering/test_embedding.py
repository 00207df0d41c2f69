"""Embedding tables and bags against CPU PyTorch."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import torch

from torch_pjrt.lowering import Spec, apply
from torch_pjrt.lowering.target import Target, compiling_for

from ..conftest import DEVICE
from .check import check, to_cpu, to_jax

aten = torch.ops.aten
TABLE = torch.randn(7, 3)
INDICES = torch.tensor([[1, 4, 1], [6, 0, 1]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_embedding_looks_rows_up(dtype: torch.dtype) -> None:
    check(aten.embedding.default, TABLE.to(dtype), INDICES)
    check(aten.embedding.default, TABLE.to(dtype), torch.tensor(3, dtype=torch.int32))


@pytest.mark.parametrize("padding_idx", [-1, 1])
@pytest.mark.parametrize("scale_grad_by_freq", [False, True])
def test_embedding_backward_sums_the_occurrences(padding_idx: int, scale_grad_by_freq: bool) -> None:
    grad = torch.randn(2, 3, 3)
    check(aten.embedding_dense_backward.default, grad, INDICES, 7, padding_idx, scale_grad_by_freq)


def test_embedding_backward_of_half_sums_in_float32() -> None:
    n = 1000  # in bfloat16 a running sum of ones stops at 256
    grad, indices = torch.ones(n, 1).bfloat16(), torch.zeros(n, dtype=torch.long)
    spec = Spec((2, 1), torch.bfloat16)
    total = apply(aten.embedding_dense_backward.default, [to_jax(grad), to_jax(indices), 2, -1, False], {}, [spec])
    assert to_cpu(total[0]).tolist() == [[1000.0], [0.0]]


def test_each_device_of_a_mesh_sums_the_rows_of_its_own_examples() -> None:
    """On one device the numbers are CPU PyTorch's; of four each sums a quarter of the rows, and nothing is gathered."""
    grad, indices = torch.randn(8, 3, 5), torch.randint(0, 7, (8, 3))
    expected = aten.embedding_dense_backward(grad, indices, 7, 1, False)

    def run(mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh, *arrays: jax.Array) -> list[jax.Array]:
        with compiling_for(Target("tpu", mesh, ("dp", "fsdp"))):  # type: ignore[arg-type]
            arguments = [*arrays, 7, 1, False]
            return apply(aten.embedding_dense_backward.default, arguments, {}, [Spec((7, 5), torch.float32)])

    arrays = [to_jax(grad), to_jax(indices)]
    alone = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("dp", "fsdp"))
    torch.testing.assert_close(to_cpu(run(alone, *arrays)[0]), expected)
    of_four = jax.sharding.AbstractMesh((2, 2), ("dp", "fsdp"))
    text = str(jax.make_jaxpr(lambda *x: run(of_four, *x))(*arrays))
    assert "psum" in text and "all_gather" not in text
    assert "[6,5]" in text and "[24,5]" not in text


@pytest.mark.parametrize("norm_type", [1.0, 2.0, float("inf")])
def test_embedding_renorm_scales_long_rows_down(norm_type: float) -> None:
    check(aten.embedding_renorm_.default, TABLE * 3, INDICES.reshape(-1), 1.5, norm_type)


FLAT = torch.tensor([1, 4, 1, 6, 0, 1, 5])


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("include_last_offset", [False, True])
@pytest.mark.parametrize("padding_idx", [-1, 1])
def test_embedding_bag_and_its_backward_agree(mode: int, include_last_offset: bool, padding_idx: int) -> None:
    offsets = torch.tensor([0, 2, 2, 3, 7]) if include_last_offset else torch.tensor([0, 2, 2, 3])
    args = (FLAT, offsets, False, mode, False, None, include_last_offset, padding_idx)
    _bag_agrees(TABLE, *args)


def test_embedding_bag_weighs_its_samples() -> None:
    weights = torch.randn(7)
    _bag_agrees(TABLE, FLAT, torch.tensor([0, 3]), False, 0, False, weights, False, -1)
    grad, offset2bag = torch.randn(2, 3), torch.tensor([0, 0, 0, 1, 1, 1, 1])
    offsets = torch.tensor([0, 3])
    op = aten._embedding_bag_per_sample_weights_backward.default
    check(op, grad, TABLE, FLAT, offsets, offset2bag, 0, padding_idx=4)


def test_embedding_bag_scales_gradients_by_frequency() -> None:
    """Against the formula, sum / count: PyTorch's CPU kernel divides some rows by another row's count."""
    grad, offset2bag = torch.randn(2, 3), torch.tensor([0, 0, 0, 1, 1, 1, 1])
    none = torch.zeros(0, dtype=torch.long)
    args = [to_jax(t) for t in (grad, FLAT, offset2bag, torch.tensor([3, 4]), none)]
    spec = Spec((7, 3), torch.float32)
    ours = apply(aten._embedding_bag_dense_backward.default, [*args, 7, True, 0, None, -1], {}, [spec])[0]
    total = torch.zeros(7, 3).index_add(0, FLAT, grad[offset2bag])
    torch.testing.assert_close(to_cpu(ours), total / FLAT.bincount(minlength=7).clamp(min=1)[:, None])


def _bag_agrees(
    table: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    by_frequency: bool,
    mode: int,
    sparse: bool,
    weights: torch.Tensor | None,
    include_last_offset: bool,
    padding_idx: int,
) -> None:
    """Output and table gradient, the latter through our own saved tensors: their shapes differ from the CPU's."""
    weight = table.clone().requires_grad_()
    out = aten._embedding_bag(
        weight, indices, offsets, by_frequency, mode, sparse, weights, include_last_offset, padding_idx
    )[0]
    grad = torch.randn_like(out)
    out.backward(grad)
    assert weight.grad is not None
    bags = out.shape[0]
    winners = (bags, table.shape[1]) if mode == 2 else (0,)
    shapes = [tuple(out.shape), tuple(indices.shape), tuple(offsets.shape), winners]
    specs = [Spec(s, torch.int64 if i else torch.float32) for i, s in enumerate(shapes)]
    with jax.enable_x64(True):
        scale = None if weights is None else to_jax(weights)
        args = [to_jax(table), to_jax(indices), to_jax(offsets), by_frequency, mode, sparse, scale]
        ours = apply(aten._embedding_bag.default, [*args, include_last_offset, padding_idx], {}, specs)
        torch.testing.assert_close(to_cpu(ours[0]), out.detach())
        back = [to_jax(grad), to_jax(indices), *ours[1:], len(table), by_frequency, mode, scale, padding_idx]
        spec = Spec(tuple(table.shape), torch.float32)
        ours_grad = apply(aten._embedding_bag_dense_backward.default, back, {}, [spec])[0]
        torch.testing.assert_close(to_cpu(ours_grad), weight.grad)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_a_bag_trains_on_the_device(mode: str) -> None:
    module = getattr(torch, DEVICE)
    module.reset_metrics()

    def gradient(device: str) -> torch.Tensor:
        table = TABLE.clone().to(device).requires_grad_()
        offsets = torch.tensor([0, 3], device=device)
        bags = torch.nn.functional.embedding_bag(FLAT.to(device), table, offsets, mode=mode)
        (bags * torch.arange(1.0, 7.0, device=device).reshape(2, 3)).sum().backward()
        assert table.grad is not None
        return table.grad.cpu()

    torch.testing.assert_close(gradient(DEVICE), gradient("cpu"))
    assert module.metrics()["fallbacks"] == {}
