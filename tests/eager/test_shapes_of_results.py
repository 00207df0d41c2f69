"""The shapes of results and `out=` tensors where PyTorch has no meta kernel, or one that fails."""

from __future__ import annotations

import pytest
import torch

from ..conftest import DEVICE

module = getattr(torch, DEVICE)


@pytest.mark.parametrize("form", ["empty", "fitting", "gapped"])
def test_results_of_data_dependent_shape_are_written_into_out(form: str) -> None:
    x = torch.tensor([[1.0, 0.0, 3.0], [0.0, 5.0, 6.0]])
    there = x.to(DEVICE)

    def buffer(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        if form == "empty":
            return torch.empty(0, dtype=dtype, device=DEVICE)
        whole = torch.zeros(*shape, 2, dtype=dtype, device=DEVICE)
        return whole[..., 0] if form == "gapped" else whole[..., 0].clone()

    places, values = buffer((4, 2), torch.int64), buffer((4,), torch.float32)
    assert torch.nonzero(there, out=places) is places
    assert torch.masked_select(there, there > 0, out=values) is values
    assert torch.equal(places.cpu(), x.nonzero())
    assert torch.equal(values.cpu(), x[x > 0])
    assert module.metrics()["fallbacks"] == {}


def test_out_of_an_op_without_a_meta_kernel_is_resized() -> None:
    x = torch.tensor([[4.0, 1.0], [1.0, 3.0]])
    outs = tuple(torch.empty(0, device=DEVICE) for _ in range(2))
    torch.geqrf(x.to(DEVICE), out=outs)
    for got, want in zip(outs, torch.geqrf(x), strict=True):
        torch.testing.assert_close(got.cpu(), want)


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_the_loss_of_a_sample_without_a_batch_has_no_dimension(reduction: str) -> None:
    x, target = torch.randn(10), torch.tensor([1, 2, -1, 0, 0, 0, 0, 0, 0, 0])
    losses = [torch.nn.MultiLabelMarginLoss(reduction=reduction)(x.to(d), target.to(d)) for d in (DEVICE, "cpu")]
    torch.testing.assert_close(losses[0].cpu(), losses[1])
    (ours,), (theirs,) = (
        torch.autograd.grad(torch.nn.MultiLabelMarginLoss(reduction=reduction)(y, target.to(d)), y)
        for d in (DEVICE, "cpu")
        for y in (x.to(d).requires_grad_(),)
    )
    torch.testing.assert_close(ours.cpu(), theirs)


def test_a_batch_of_none_is_resampled_to_none() -> None:
    x = torch.empty(0, 2, 4, 4, device=DEVICE)
    assert torch.nn.functional.interpolate(x, scale_factor=2.0).shape == (0, 2, 8, 8)
    assert torch.nn.functional.interpolate(x, size=(3, 5), mode="nearest-exact").cpu().shape == (0, 2, 3, 5)
