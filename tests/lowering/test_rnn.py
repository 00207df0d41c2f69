from typing import Any

import pytest
import torch

from torch_pjrt.lowering import Spec, apply

from .check import to_cpu, to_jax

aten = torch.ops.aten


def run(op: Any, args: list[Any], like: list[torch.Tensor | None]) -> list[torch.Tensor]:
    """The results of the lowering that are not None, where `like` says they are."""
    arrays = [to_jax(a) if isinstance(a, torch.Tensor) else a for a in args]
    specs = [None if t is None else Spec(tuple(t.shape), t.dtype) for t in like]
    return [to_cpu(x) for x in apply(op, arrays, {}, specs) if x is not None]


def close(got: list[torch.Tensor], want: list[torch.Tensor]) -> None:
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("biased", [True, False])
def test_fused_lstm_cell_and_its_gradient_are_those_of_lstm_cell(biased: bool) -> None:
    x, h, c = torch.randn(3, 5), torch.randn(3, 4), torch.randn(3, 4)
    weights = [torch.randn(16, 5), torch.randn(16, 4)]
    biases = [torch.randn(16), torch.randn(16)] if biased else []
    leaves = [t.requires_grad_() for t in (c, *biases)]
    gates = [(x @ weights[0].T).requires_grad_(), (h @ weights[1].T).requires_grad_()]
    sums = sum([*gates, *biases])
    i, f, g, o = sums.chunk(4, 1)
    cy = f.sigmoid() * c + i.sigmoid() * g.tanh()
    hy = o.sigmoid() * cy.tanh()
    close(list(aten.lstm_cell(x, [h, c], *weights, *biases)), [hy, cy])  # the formula is PyTorch's
    got = run(aten._thnn_fused_lstm_cell.default, [*gates, c, *biases], [hy, cy, sums])
    close(got[:2], [hy, cy])
    grad_hy, grad_cy = torch.randn(3, 4), torch.randn(3, 4)
    for gh, gc in ((grad_hy, grad_cy), (grad_hy, None), (None, grad_cy)):
        outs, grads = zip(*[(o_, g_) for o_, g_ in ((hy, gh), (cy, gc)) if g_ is not None], strict=True)
        want = torch.autograd.grad(outs, [gates[0], *leaves[:2]], grads, retain_graph=True)
        args = [gh, gc, c, cy, got[2], biased]
        got_grads = run(aten._thnn_fused_lstm_cell_backward_impl.default, args, [*want, *([] if biased else [None])])
        close(got_grads[: len(want)], list(want))


@pytest.mark.parametrize("biased", [True, False])
def test_fused_gru_cell_and_its_gradient_are_those_of_gru_cell(biased: bool) -> None:
    x, h = torch.randn(3, 5), torch.randn(3, 4).requires_grad_()
    weights = [torch.randn(12, 5), torch.randn(12, 4)]
    biases = [torch.randn(12).requires_grad_() for _ in range(2)] if biased else []
    gates = [(x @ weights[0].T).requires_grad_(), (h.detach() @ weights[1].T).requires_grad_()]
    ir, iz, in_ = (gates[0] + (biases[0] if biased else 0)).chunk(3, 1)
    hr, hz, hn = (gates[1] + (biases[1] if biased else 0)).chunk(3, 1)
    r, z = (ir + hr).sigmoid(), (iz + hz).sigmoid()
    n = (in_ + r * hn).tanh()
    hy = (1 - z) * n + z * h
    close([aten.gru_cell(x, h, *weights, *biases)], [hy])
    got = run(aten._thnn_fused_gru_cell.default, [*gates, h, *biases], [hy, torch.empty(3, 20)])
    close(got[:1], [hy])
    grad = torch.randn(3, 4)
    want = torch.autograd.grad(hy, [*gates, h, *biases], grad)
    outs = [*want, *([] if biased else [None, None])]
    close(run(aten._thnn_fused_gru_cell_backward.default, [grad, got[1], biased], outs)[: len(want)], list(want))
