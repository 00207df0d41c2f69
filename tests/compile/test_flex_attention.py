"""`flex_attention` in compiled programs, against PyTorch's own attention on the CPU with the same scores and masks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask, flex_attention

from ..conftest import DEVICE
from .check import same

module = getattr(torch, DEVICE)
Tensor = torch.Tensor
ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
compiled = torch.compile(flex_attention, backend="pjrt", fullgraph=True)


def reference(
    q: Tensor, k: Tensor, v: Tensor, score: Callable[..., Tensor] | None, mask: Callable[..., Tensor] | None
) -> tuple[Tensor, Tensor]:
    """(output, logsumexp), written out with whole index tensors."""
    groups = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(groups, 1).expand(q.shape[0], *[-1] * 3) for t in (k, v))
    scores = (q.float() if q.dtype != torch.float64 else q) @ k.to(scores_dtype(q)).mT / q.shape[-1] ** 0.5
    b, h, i, j = torch.meshgrid(*(torch.arange(n) for n in scores.shape), indexing="ij")
    scores = scores if score is None else score(scores, b, h, i, j)
    if mask is not None:
        scores = scores.masked_fill(~mask(b, h, i, j), -torch.inf)
    return torch._safe_softmax(scores, -1).to(q.dtype) @ v, scores.logsumexp(-1)


def scores_dtype(q: Tensor) -> torch.dtype:
    return torch.float64 if q.dtype == torch.float64 else torch.float32


def inputs(
    batch: int = 2,
    heads: int = 4,
    kv_heads: int = 4,
    length: int = 24,
    keys: int = 24,
    dtype: torch.dtype = torch.float32,
) -> list[Tensor]:
    torch.manual_seed(0)
    shapes = [(batch, heads, length, 8), (batch, kv_heads, keys, 8), (batch, kv_heads, keys, 16)]
    return [torch.randn(s, dtype=dtype).requires_grad_() for s in shapes]


def on_device(tensors: list[Tensor]) -> list[Tensor]:
    return [t.detach().to(DEVICE).requires_grad_(t.requires_grad) for t in tensors]


def agree(
    there: list[Tensor],
    here: list[Tensor],
    got: Tensor,
    expected: Tensor,
    rtol: float = 1e-4,
    atol: float = 1e-5,
) -> None:
    """Assert that outputs and the gradients of an uneven weighting of them are equal."""
    same(got, expected, rtol, atol)
    weights = torch.linspace(-1, 1, expected.numel()).reshape(expected.shape).to(expected.dtype)
    (expected * weights).sum().backward()
    (got * weights.to(DEVICE)).sum().backward()
    for a, b in zip(there, here, strict=True):
        if b.requires_grad:
            same(a.grad, b.grad, rtol, atol)
    graphs = module.compiler.report().graphs
    assert all(g.segments == 1 for g in graphs), [g.eager_ops for g in graphs]


def causal(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return i >= j


def relative(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return score + (i - j) * 0.1


def softcap(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return 5 * torch.tanh(score / 5) * (h + 1)


def block_mask(mask: Callable[..., Tensor], q: Tensor, k: Tensor, **shape: int) -> BlockMask:
    return create_block_mask(mask, shape.get("B"), shape.get("H"), q.shape[2], k.shape[2], device=DEVICE)


@pytest.mark.parametrize("score", [None, relative, softcap])
@pytest.mark.parametrize("mask", [None, causal])
def test_scores_and_masks(score: ScoreMod | None, mask: Any) -> None:
    here = inputs()
    there = on_device(here)
    blocks = None if mask is None else block_mask(mask, *there[:2])
    agree(there, here, compiled(*there, score, blocks), reference(*here, score, mask)[0])


def test_grouped_query_heads_and_another_number_of_keys() -> None:
    here = inputs(heads=6, kv_heads=2, length=10, keys=17)
    there = on_device(here)
    agree(there, here, compiled(*there, relative, enable_gqa=True), reference(*here, relative, None)[0])


def test_one_batch_of_keys_for_all_queries() -> None:
    here = inputs()
    here[1:] = [t.detach()[:1].requires_grad_() for t in here[1:]]
    there = on_device(here)
    agree(there, here, compiled(*there, None, block_mask(causal, *there[:2], B=2)), reference(*here, None, causal)[0])


def test_captured_tensors_get_gradients() -> None:
    here = [*inputs(), torch.randn(4).requires_grad_(), torch.randn(47).requires_grad_()]
    there = on_device(here)

    def attend(q: Tensor, k: Tensor, v: Tensor, slope: Tensor, bias: Tensor) -> Tensor:
        return flex_attention(q, k, v, lambda s, b, h, i, j: s * slope[h] + bias[i - j + 23])

    got = torch.compile(attend, backend="pjrt", fullgraph=True)(*there)
    q, k, v, slope, bias = here
    expected = reference(q, k, v, lambda s, b, h, i, j: s * slope[h] + bias[i - j + 23], None)[0]
    agree(there, here, got, expected)


def test_documents_and_rows_with_nothing_to_see() -> None:
    here = inputs()
    there = on_device(here)
    document = torch.arange(24) // 7
    seen = document.to(DEVICE)
    blocks = block_mask(lambda b, h, i, j: (seen[i] == seen[j]) & (i != 3) & (b + h + i >= j), *there[:2], B=2, H=4)
    expected = reference(*here, None, lambda b, h, i, j: (document[i] == document[j]) & (i != 3) & (b + h + i >= j))
    agree(there, here, compiled(*there, block_mask=blocks), expected[0])


def test_logsumexp_is_returned_and_has_a_gradient() -> None:
    here = inputs()
    there = on_device(here)
    got, aux = compiled(
        *there, relative, block_mask(causal, *there[:2]), return_aux=AuxRequest(lse=True, max_scores=True)
    )
    expected, total = reference(*here, relative, causal)
    same(aux.lse, total, 1e-4, 1e-5)
    agree(there, here, got.sum(-1) + aux.lse.sin(), expected.sum(-1) + total.sin())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_dtypes(dtype: torch.dtype) -> None:
    here = inputs(dtype=dtype)
    there = on_device(here)
    close = (1e-6, 1e-6) if dtype == torch.float64 else (6e-2, 6e-2)
    agree(
        there,
        here,
        compiled(*there, softcap, block_mask(causal, *there[:2])),
        reference(*here, softcap, causal)[0],
        *close,
    )


def test_lengths_that_change() -> None:
    attend = torch.compile(flex_attention, backend="pjrt", fullgraph=True, dynamic=True)
    for length in (16, 20, 33):
        here = inputs(length=length, keys=length)
        there = on_device(here)
        agree(there, here, attend(*there, relative), reference(*here, relative, None)[0])


def test_the_mask_made_in_the_graph_and_autocast_around() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        blocks = create_block_mask(causal, None, None, q.shape[2], k.shape[2], device=q.device)
        with torch.autocast(q.device.type, dtype=torch.bfloat16):
            return flex_attention(q, k, v, relative, blocks)

    here = [t.detach() for t in inputs()]
    got = torch.compile(attend, backend="pjrt", fullgraph=True)(*on_device(here))
    assert got.dtype == torch.bfloat16
    same(got, reference(*(t.bfloat16() for t in here), relative, causal)[0], 3e-2, 3e-2)
