"""`torch.nn.attention.varlen`, against attention of each sequence by PyTorch's formula on the CPU."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn, varlen_attn_out

from ...conftest import DEVICE
from .parts import alone

CUMULATIVE = [0, 3, 8, 8, 10]


def operands(dtype: torch.dtype, tokens: int = 10, heads: int = 4) -> list[Tensor]:
    drawn = torch.Generator().manual_seed(5)
    return [torch.randn(tokens, heads, 8, generator=drawn).to(dtype).to(DEVICE).requires_grad_() for _ in range(3)]


def ends(*places: int) -> Tensor:
    return torch.tensor(places, dtype=torch.int32, device=DEVICE)


def one_by_one(q: Tensor, k: Tensor, v: Tensor, left: int, right: int) -> Tensor:
    made = []
    for begin, end in pairwise(CUMULATIVE):
        if end > begin:
            row, column = torch.arange(end - begin)[:, None], torch.arange(end - begin)[None]
            seen = (column >= row - left if left >= 0 else column >= 0) & (
                column <= row + right if right >= 0 else True
            )
            made.append(alone(q[begin:end], k[begin:end], v[begin:end], attn_mask=seen))
    return torch.cat(made)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (2, 0), (1, 1)])
def test_it_is_the_attention_of_each_sequence_with_its_gradient(dtype: torch.dtype, window: tuple[int, int]) -> None:
    given = operands(dtype)
    cumulative = ends(*CUMULATIVE)
    out = varlen_attn(*given, cumulative, cumulative, 5, 5, window_size=window)
    out.square().sum().backward()
    wide = [t.detach().cpu().double().requires_grad_() for t in given]
    expected = one_by_one(*wide, *window)
    expected.square().sum().backward()
    close = {"rtol": 0.05, "atol": 0.05} if dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-5}
    if dtype == torch.float64:
        close = {"rtol": 1e-10, "atol": 1e-10}
    for got, wanted in zip([out, *(t.grad for t in given)], [expected, *(t.grad for t in wide)], strict=True):
        torch.testing.assert_close(got.detach().cpu().double(), wanted.detach(), **close)


def test_into_a_tensor_that_is_given() -> None:
    q, k, v = (t.detach() for t in operands(torch.float32))
    cumulative = ends(*CUMULATIVE)
    out = torch.empty_like(q)
    varlen_attn_out(out, q, k, v, cumulative, cumulative, 5, 5)
    torch.testing.assert_close(out, varlen_attn(q, k, v, cumulative, cumulative, 5, 5))


def test_without_sequences_it_is_attention_of_a_batch() -> None:
    q, k, v = (t.detach().view(2, 5, 4, 8).requires_grad_() for t in operands(torch.float32))
    op = torch.ops.aten._flash_attention_forward
    out = op(q, k, v, None, None, 5, 5, 0.0, True, False)[0]
    out.sum().backward()
    wide = [t.detach().cpu().requires_grad_() for t in (q, k, v)]
    attend = torch.nn.functional.scaled_dot_product_attention
    expected = attend(*(t.transpose(1, 2) for t in wide), is_causal=True).transpose(1, 2)
    expected.sum().backward()
    for got, wanted in ((out, expected), (q.grad, wide[0].grad), (k.grad, wide[1].grad), (v.grad, wide[2].grad)):
        torch.testing.assert_close(got.detach().cpu(), wanted.detach())


@pytest.mark.parametrize("dynamic", [None, True])
def test_in_compiled_graphs_of_several_sizes(dynamic: bool | None) -> None:
    torch._dynamo.reset()

    def function(q: Tensor, cumulative: Tensor, longest: int) -> Tensor:
        return varlen_attn(q, q, q, cumulative, cumulative, longest, longest, window_size=(-1, 0)) * 2

    compiled = torch.compile(function, backend="pjrt", dynamic=dynamic)
    for places in ((0, 3, 5), (0, 4, 9), (0, 2, 7)):
        q = operands(torch.float32, places[-1])[0]
        longest = max(b - a for a, b in pairwise(places))
        found = []
        for f in (function, compiled):
            x = q.detach().clone().requires_grad_()
            out = f(x, ends(*places), longest)
            out.square().sum().backward()
            found.append([out.detach(), x.grad])
        torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"block_table": torch.zeros(2, 1, dtype=torch.int32)}, NotImplementedError, "block_table is not supported"),
        ({"cu_seq_k": (0, 10)}, RuntimeError, "of as many sequences"),
        ({"max_q": 4}, RuntimeError, "a sequence longer than 4"),
        ({"cu_seq_q": (0, 3, 8, 8, 12), "cu_seq_k": (0, 3, 8, 8, 12)}, RuntimeError, "fewer than its sequences end at"),
        ({"key": (10, 4, 4)}, RuntimeError, "do not fit each other"),
        ({"key": (10, 3, 8), "value": (10, 3, 8)}, RuntimeError, "do not fit each other"),
        ({"value": (9, 4, 8)}, RuntimeError, "do not fit each other"),
        ({"dtype": torch.int64}, RuntimeError, "torch.int64"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], error: type[Exception], said: str) -> None:
    q, k, v = (t.detach().to(change.get("dtype", torch.float32)) for t in operands(torch.float32))
    k = torch.ones(change["key"], device=DEVICE) if "key" in change else k
    v = torch.ones(change["value"], device=DEVICE) if "value" in change else v
    first, second = (ends(*change.get(name, CUMULATIVE)) for name in ("cu_seq_q", "cu_seq_k"))
    longest = change.get("max_q", 5)
    block_table = change["block_table"].to(DEVICE) if "block_table" in change else None
    with pytest.raises(error, match=said):
        torch.ops.aten._flash_attention_forward(
            q, k, v, first, second, longest, 5, 0.0, False, False, block_table=block_table
        )[0].cpu()
