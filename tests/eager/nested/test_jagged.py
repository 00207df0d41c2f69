"""Jagged tensors, PyTorch's NestedTensor(layout=torch.jagged). Expected values are CPU PyTorch's."""

from __future__ import annotations

import copy
import io
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from ...conftest import DEVICE
from ..agree import agree, both_raise
from .parts import LENGTHS, alone, apart, jagged, no_fallback, sequences, with_gradients


def test_they_are_made_taken_apart_moved_and_saved() -> None:
    def program(d: str) -> Any:
        x = jagged(d)
        file = io.BytesIO()
        torch.save(x, file)
        file.seek(0)
        views = torch.nested.narrow(torch.arange(40.0, device=d).view(2, 5, 4), 1, torch.tensor([1, 0], device=d),
                                    torch.tensor([2, 4], device=d), layout=torch.jagged)  # fmt: skip
        made = [x, x.clone(), x.to("cpu").to(d), x.double(), torch.load(file, weights_only=False), copy.deepcopy(x)]
        of_parts = torch.nested.nested_tensor_from_jagged(x.values(), x.offsets())
        return [apart(t) for t in (*made, of_parts, views.contiguous(), torch.zeros_like(x), x[1], x.offsets())]

    agree(program)


def test_layers_and_their_gradients() -> None:
    torch.manual_seed(0)
    linear, norm, table = nn.Linear(8, 6), nn.LayerNorm(8), torch.randn(5, 4)

    def embedded(x: Tensor) -> Tensor:
        ids = [torch.tensor([1, 2]), torch.tensor([0, 3, 1])]
        return F.embedding(torch.nested.nested_tensor(ids, layout=torch.jagged, device=x.device), table.to(x.device))

    with_gradients(
        jagged,
        lambda x: copy.deepcopy(linear).to(x.device)(x),
        lambda x: copy.deepcopy(norm).to(x.device)(x),
        lambda x: F.rms_norm(x, (8,)),
        lambda x: F.gelu(x) + 2 * x,
        lambda x: F.dropout(x, 0.5, training=False),
        lambda x: x.softmax(-1),
        lambda x: x @ torch.ones(8, 3, device=x.device),
        lambda x: torch.cat([x, x], -1),
        lambda x: x.chunk(2, -1),
        lambda x: x + torch.ones(8, device=x.device),
        embedded,
    )


def test_reductions_over_the_ragged_dimension_and_to_padded() -> None:
    with_gradients(
        jagged,
        lambda x: x.sum(),
        lambda x: x.amax(1),
        lambda x: x.softmax(1),
        lambda x: x.unbind(),
        lambda x: torch.nested.to_padded_tensor(x, 0.0),
        lambda x: torch.nested.to_padded_tensor(x, -1.0, (len(LENGTHS), 7, 8)),
    )
    agree(lambda d: [jagged(d).detach().sum(1), jagged(d).detach().mean(1), jagged(d).detach().sum(-1).values()])


def test_padded_tensors_are_packed_again_with_and_without_their_total() -> None:
    def program(d: str) -> Any:
        dense = torch.arange(36.0, device=d).view(3, 4, 3)
        offsets = [torch.tensor([0, 2, 2, 6], device=d)]
        back = torch.ops.aten._padded_dense_to_jagged_forward
        return [back(dense, offsets), back(dense, offsets, 6), back(dense[..., 0].int(), offsets, 6)]

    no_fallback(lambda: agree(program))


@pytest.mark.parametrize("lengths", [LENGTHS, (4, 0, 2), (0, 0), (7,)])
def test_attention_of_parts_of_one_tensor_is_that_of_each_sequence(lengths: Sequence[int]) -> None:
    for causal in (False, True):
        expected_of = sequences("cpu", 24, lengths)
        given = torch.nested.nested_tensor(sequences(DEVICE, 24, lengths), layout=torch.jagged).requires_grad_()

        def attended(x: Tensor, causal: bool = causal) -> Tensor:
            q, k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in x.chunk(3, -1))
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2)

        got = no_fallback(lambda x=given: attended(x))
        got.values().square().sum().backward()
        for x, out, grad in zip(expected_of, got.unbind(), given.grad.unbind(), strict=True):
            x.requires_grad_()
            expected = alone(*(t.unflatten(-1, (2, 4)) for t in x.chunk(3, -1)), is_causal=causal)
            expected.square().sum().backward()
            torch.testing.assert_close(out.cpu(), expected)
            torch.testing.assert_close(grad.cpu(), x.grad)


def test_attention_by_the_formula_as_on_the_cpu() -> None:
    def program(d: str) -> Any:
        x = jagged(d).unflatten(-1, (2, 4)).transpose(1, 2)
        with sdpa_kernel(SDPBackend.MATH):
            return apart(F.scaled_dot_product_attention(x, x, x).transpose(1, 2))

    agree(program)

    def causal(d: str) -> Any:
        x = jagged(d).unflatten(-1, (2, 4)).transpose(1, 2)
        with sdpa_kernel(SDPBackend.MATH):
            return F.scaled_dot_product_attention(x, x, x, is_causal=True)

    both_raise(causal)


def test_dropout_of_attention_keeps_the_mean_and_draws_the_same_for_the_gradient() -> None:
    x = torch.nested.nested_tensor([torch.zeros(40, 2, 8) for _ in range(50)], layout=torch.jagged, device=DEVICE)
    v = torch.nested.nested_tensor([torch.ones(40, 2, 8) for _ in range(50)], layout=torch.jagged, device=DEVICE)
    v.requires_grad_()
    out = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (x, x, v)), dropout_p=0.25).transpose(1, 2)
    # 40 equal probabilities, of which each row keeps some: the mean is 1, the deviation sqrt(p / (1 - p) / 40).
    values = out.values()
    assert values.mean().item() == pytest.approx(1, abs=0.005)
    assert values[..., 0].std().item() == pytest.approx((0.25 / 0.75 / 40) ** 0.5, rel=0.1)
    # The sum of the outputs is linear in v: its gradient, times v, is the sum itself.
    out.values().sum().backward()
    assert v.grad.values().sum().item() == pytest.approx(values.sum().item(), rel=1e-5)


def test_training_steps_are_the_cpus_and_lengths_that_vary_compile_little() -> None:
    def program(d: str) -> Any:
        torch.manual_seed(1)
        model = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)).to(d)
        optimizer = torch.optim.AdamW(model.parameters(), 0.05)
        losses = []
        for step in range(4):
            optimizer.zero_grad()
            x = jagged(d, lengths=(3, 1 + step, 5 - step)).detach()
            loss = torch.nested.to_padded_tensor(model(x), 0.0).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return losses

    agree(program)
    assert getattr(torch, DEVICE).metrics()["fallbacks"] == {}


def test_compiled_graphs_take_and_give_jagged_tensors() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.GELU()).to(DEVICE)

    def attended(x: Tensor) -> Tensor:
        q = model(x).unflatten(-1, (2, 4)).transpose(1, 2)
        return x + F.scaled_dot_product_attention(q, q, q, is_causal=True).transpose(1, 2).flatten(-2)

    torch._dynamo.reset()
    compiled = torch.compile(attended, backend="pjrt", fullgraph=True)
    for lengths in ((3, 5), (2, 6), (1, 2, 7), (4, 4)):
        found = []
        for function in (attended, compiled):
            x = jagged(DEVICE, lengths=lengths)
            out = function(x)
            out.values().square().sum().backward()
            found.append([*apart(out), *apart(x.grad)])
        torch.testing.assert_close(found[1], found[0])


def test_compiled_graphs_take_batches_of_other_lengths_without_another_program() -> None:
    """The total length and the longest are padded as any size that varies (compile/padded.py)."""

    def attended(x: Tensor) -> Tensor:
        q = x.unflatten(-1, (2, 4)).transpose(1, 2)
        return F.gelu(F.scaled_dot_product_attention(q, q, q, is_causal=True).transpose(1, 2).flatten(-2))

    torch._dynamo.reset()
    module = getattr(torch, DEVICE)
    module.compiler.reset()
    compiled = torch.compile(attended, backend="pjrt", fullgraph=True)
    for lengths in ((6, 4), (8, 5), (8, 7), (7, 8), (8, 6)):
        x = jagged(DEVICE, lengths=lengths).detach()
        torch.testing.assert_close(compiled(x).values(), attended(x).values())
    (graph,) = module.compiler.report().graphs
    assert graph.not_padded is None
    assert [p.padded for p in graph.programs] == [False, True]  # the first batch's own; up to 16 tokens, 8 in each


def test_attention_of_other_keys_is_that_of_each_sequence() -> None:
    queries, keys = (3, 1, 4), (2, 5, 3)
    q, k, v = (
        torch.nested.nested_tensor(
            [t.unflatten(-1, (2, 4)) for t in sequences(DEVICE, 8, lengths)], layout=torch.jagged
        )
        for lengths in (queries, keys, keys)
    )
    attend = F.scaled_dot_product_attention
    got = attend(*(t.transpose(1, 2) for t in (q, k, 2 * v)), scale=0.3).transpose(1, 2).unbind()
    for out, a, b in zip(got, q.unbind(), k.unbind(), strict=True):
        torch.testing.assert_close(out.cpu(), alone(a.cpu(), b.cpu(), 2 * b.cpu(), scale=0.3))
    with pytest.raises(RuntimeError, match="different lengths"):
        other = torch.nested.nested_tensor([torch.ones(n, 2, 4) for n in (5, 2, 3)], layout=torch.jagged, device=DEVICE)
        attend(*(t.transpose(1, 2) for t in (q, k, other))).values().cpu()
    with pytest.raises(RuntimeError, match="as many sequences and tokens"):
        attend(*(t.transpose(1, 2) for t in (q, k, q)))


def test_attention_refuses_what_it_refuses_on_the_cpu() -> None:
    def holes(d: str) -> Any:
        offsets, lengths = torch.tensor([0, 5, 10], device=d), torch.tensor([2, 4], device=d)
        x = torch.nested.nested_tensor_from_jagged(torch.ones(10, 2, 8, device=d), offsets, lengths=lengths)
        return F.scaled_dot_product_attention(*[x.transpose(1, 2)] * 3)

    def of(d: str, dtype: torch.dtype = torch.float32, **options: Any) -> Any:
        parts = [torch.ones(n, 2, 8, dtype=dtype) for n in (3, 2)]
        x = torch.nested.nested_tensor(parts, layout=torch.jagged, device=d).transpose(1, 2)
        return F.scaled_dot_product_attention(x, x, x, **options).values()

    both_raise(holes)
    both_raise(lambda d: F.scaled_dot_product_attention(*[jagged(d)] * 3))
    both_raise(lambda d: of(d, torch.int64))
    both_raise(lambda d: of(d, dropout_p=1.5))


def test_padding_with_infinities_is_the_end_of_integers_and_bools() -> None:
    def program(d: str) -> Any:
        b = [torch.tensor([[False, True]]), torch.tensor([[False, False], [False, True]])]
        x = torch.nested.nested_tensor(b, layout=torch.jagged).to(d)
        whole = torch.nested.nested_tensor([t.long() for t in b], layout=torch.jagged).to(d)
        ends = [torch.nested.to_padded_tensor(t, e) for t in (x, whole) for e in (float("inf"), float("-inf"), 2.0)]
        return [x.amax(1), x.amin(1), whole.amax(1), *ends]

    agree(program)


def test_what_jagged_tensors_cannot_do_is_refused_as_on_the_cpu() -> None:
    both_raise(lambda d: jagged(d)[torch.tensor([1, 0], device=d)])
    both_raise(lambda d: jagged(d) + jagged(d, lengths=(1, 2, 3, 4)))
    both_raise(lambda d: jagged(d).view(3, 2))
    back = torch.ops.aten._padded_dense_to_jagged_forward
    for total, length in ((4, 2), (5, 3)):
        said = both_raise(lambda d, t=total, n=length: back(torch.ones(2, n, 2, device=d),
                                                            [torch.tensor([0, 3, 4], device=d)], t).cpu())  # fmt: skip
        assert "_padded_dense_to_jagged_forward()" in said
