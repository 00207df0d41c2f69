"""Nested tensors of the strided layout. Expected values are CPU PyTorch's."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ...conftest import DEVICE
from ..agree import agree, both_raise
from .parts import apart, no_fallback, sequences, strided, with_gradients


@pytest.fixture(autouse=True)
def _no_prototype_warning() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The PyTorch API of nested tensors is in prototype stage")
        yield


def test_they_are_made_taken_apart_and_moved() -> None:
    def program(d: str) -> Any:
        x = strided(d).detach()
        padded = torch.arange(160.0, device=d).view(4, 5, 8)
        mask = torch.tensor([[1, 1, 0, 0, 0], [1] * 5, [1, 0, 0, 0, 0], [1, 1, 1, 0, 0]], device=d).bool()
        made = [
            x, x.clone(), x.cpu().to(d), x.double(), pickle.loads(pickle.dumps(x)), torch.zeros_like(x),
            torch.ones_like(x), torch.empty_like(x).copy_(x), torch.nested.as_nested_tensor(sequences(d)), x[1],
            torch._nested_tensor_from_mask(padded, mask), torch._nested_from_padded_and_nested_example(padded, x),
            torch.cat([x, x]), x.chunk(2, -1), x.transpose(1, 2).contiguous(), x.unsqueeze(1).squeeze(1), x.values(),
            x.view(4, -1, 2, 4), torch.nested.to_padded_tensor(x, -1.0, (4, 6, 9)),
        ]  # fmt: skip
        return apart(made)

    no_fallback(lambda: agree(program))


def test_layers_and_their_gradients() -> None:
    torch.manual_seed(0)
    linear, norm = nn.Linear(8, 6), nn.LayerNorm(8)
    nn.init.normal_(norm.weight)
    no_fallback(
        lambda: with_gradients(
            strided,
            lambda x: copy.deepcopy(linear).to(x.device)(x),
            lambda x: copy.deepcopy(norm).to(x.device)(x),
            lambda x: F.gelu(x) + 2 * x - x / 3,
            lambda x: F.silu(-x).abs(),
            lambda x: x.softmax(-1),
            lambda x: x.sum(-1, keepdim=True),
            lambda x: x @ x.transpose(1, 2),
            lambda x: torch.bmm(x, x.transpose(1, 2)),
            lambda x: x.masked_fill(x > 0, 0.5),
            lambda x: x.relu().sqrt().isnan(),
            lambda x: torch.nested.to_padded_tensor(x, 0.0),
            lambda x: x.unbind(),
        )
    )


def test_parameters_of_a_norm_have_the_cpus_gradients() -> None:
    def program(d: str) -> Any:
        norm = nn.LayerNorm(8).to(d)
        norm(strided(d)).to_padded_tensor(0.0).square().sum().backward()
        return [norm.weight.grad, norm.bias.grad]

    agree(program)


@pytest.mark.parametrize("half", [False, True])
def test_attention_modules_in_inference(half: bool) -> None:
    torch.manual_seed(1)
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()

    def program(d: str) -> Any:
        with torch.no_grad():
            x = strided(d).detach()
            parts = [copy.deepcopy(m).to(d) for m in (attention, layer)]
            if half:
                x, parts = x.bfloat16(), [m.bfloat16() for m in parts]
            return apart([parts[0](x, x, x, need_weights=False)[0], parts[1](x)])

    agree(program, rtol=0.05 if half else None, atol=0.05 if half else None)


@pytest.mark.parametrize("lengths", [[5, 3, 1], [5, 5, 3], [5, 5, 5], [2, 2, 2], [4], [1, 5]])
def test_an_encoder_leaves_zeros_for_padding(lengths: list[int]) -> None:
    torch.manual_seed(2)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()
    batch = torch.randn(len(lengths), 5, 8)
    padding = torch.arange(5) >= torch.tensor(lengths)[:, None]

    def program(d: str) -> Any:
        there = copy.deepcopy(encoder).to(d)
        with torch.no_grad():
            behind = there(batch.to(d), src_key_padding_mask=padding.to(d))
            before = there(batch.to(d), src_key_padding_mask=padding.flip(1).to(d))
        return [behind, before[~padding.flip(1).to(d)]]

    agree(program)


def test_an_encoder_runs_batches_of_all_lengths_with_the_same_programs() -> None:
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval().to(DEVICE)
    compiled = []
    for lengths in ([6, 3, 1], [6, 5, 2], [1, 2, 6], [4, 4, 4]):
        padding = torch.arange(6) >= torch.tensor(lengths)[:, None]
        with torch.no_grad():
            encoder(torch.ones(3, 6, 8, device=DEVICE), src_key_padding_mask=padding.to(DEVICE)).sum().item()
        compiled.append(torch.get_device_module(DEVICE).metrics()["executables_compiled"])
    assert compiled[1] == compiled[2] == compiled[3]


@pytest.mark.parametrize("where", ["layers.0", "layers.1", "layers.0.linear1", "layers.1.self_attn", "layers.1.norm1"])
@pytest.mark.parametrize("norm_first", [False, True])
def test_an_encoder_with_a_hook_goes_layer_by_layer(where: str, norm_first: bool) -> None:
    torch.manual_seed(3)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=norm_first, activation="gelu")
    encoder = nn.TransformerEncoder(layer, 2).eval()
    batch, padding = torch.randn(3, 5, 8), torch.arange(5) >= torch.tensor([5, 3, 1])[:, None]

    def program(d: str) -> Any:
        there = copy.deepcopy(encoder).to(d)
        there.get_submodule(where).register_forward_hook(lambda *_: None)
        with torch.no_grad():
            return there(batch.to(d), src_key_padding_mask=padding.to(d))

    agree(program)


def test_what_stands_in_the_padding_of_an_encoder_does_not_matter() -> None:
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()
    padding = torch.arange(5) >= torch.tensor([5, 3, 1])[:, None]
    batch = torch.randn(3, 5, 8).masked_fill(padding.unsqueeze(2), float("nan"))

    def program(d: str, batch: torch.Tensor, padding: torch.Tensor) -> Any:
        with torch.no_grad():
            return copy.deepcopy(encoder).to(d)(batch.to(d), src_key_padding_mask=padding.to(d))

    agree(lambda d: program(d, batch, padding))
    both_raise(lambda d: program(d, batch[:0], padding[:0]))
    both_raise(lambda d: program(d, batch, torch.ones(3, 5).bool()))


def test_tensors_over_a_batch_are_packed_for_what_wants_them_so() -> None:
    batch, mask = torch.randn(3, 5, 8), torch.arange(5) < torch.tensor([5, 3, 1])[:, None]

    def program(d: str) -> Any:
        def nested() -> torch.Tensor:
            return torch._nested_tensor_from_mask(batch.to(d), mask.to(d), mask_check=False)

        x = nested()
        x.relu_()
        x.mul_(2)
        weight = torch.ones(4, 8, device=d)
        return apart([x, nested() + x, F.linear(x, weight), F.gelu(x), x.half().float(), nested() > 0])

    agree(program)


def test_from_a_mask_packed_and_refused() -> None:
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]]).bool()
    batch = torch.randn(2, 3, 8)
    agree(lambda d: apart([torch._nested_tensor_from_mask(batch.to(d), mask.to(d))]))
    agree(lambda d: [torch._nested_tensor_from_mask(batch.to(d), mask.to(d)).to_padded_tensor(0.5, (2, 4, 9))])
    unchecked = lambda d: torch._nested_tensor_from_mask(batch.to(d), mask.to(d), mask_check=False)  # noqa: E731
    agree(lambda d: [unchecked(d).to_padded_tensor(0.5), unchecked(d).to_padded_tensor(0.5, (2, 4, 9))])
    both_raise(lambda d: unchecked(d).to_padded_tensor(0.0, (2, 1, 8)))
    both_raise(lambda d: torch._nested_tensor_from_mask(batch.to(d), mask.flip(1).to(d)))
    both_raise(lambda d: torch._nested_tensor_from_mask_left_aligned(batch.to(d), mask[:1].to(d)))
    both_raise(lambda d: torch._nested_tensor_from_mask_left_aligned(batch.to(d), mask.int().to(d)))


def test_halves_stay_halves_in_the_projection_of_attention() -> None:
    def program(d: str) -> Any:
        bias = torch.ones(24, device=d).bfloat16()
        padded = torch.ones(2, 3, 24, device=d).bfloat16()
        nested = strided(d, 24).detach().bfloat16()
        return [torch._transform_bias_rescale_qkv(x, bias, 2) for x in (padded, nested)]

    agree(program)


def test_in_place_and_random() -> None:
    def program(d: str) -> Any:
        x = strided(d).detach()
        x.tanh_()
        x.mul_(2)
        x.add_(x)
        noise = torch.empty_like(x).normal_()
        return apart([x, x.clone().fill_(3), x.clone().zero_(), noise * 0, F.dropout(x, 0.5) * 0])

    agree(program)


def test_what_they_cannot_do_is_refused_as_on_the_cpu() -> None:
    both_raise(lambda d: strided(d).exp())
    both_raise(lambda d: F.layer_norm(strided(d), (8,)))
    both_raise(lambda d: strided(d).sum(0))
    both_raise(lambda d: strided(d).sum(-1, keepdim=True, dtype=torch.float64))
    both_raise(lambda d: strided(d).transpose(1, 2).sum(-1, keepdim=True))
    ones = [torch.ones(n, device=d) for d in ("cpu", DEVICE) for n in (4, 8)]
    both_raise(lambda d: F.layer_norm(strided(d), (4,), *[ones[0] if d == "cpu" else ones[2]] * 2))
    both_raise(lambda d: F.layer_norm(strided(d).transpose(1, 2), (8,), *[ones[1] if d == "cpu" else ones[3]] * 2))
    sizes = torch.tensor([[2, 4], [3, 4]], device=DEVICE)
    with pytest.raises(RuntimeError, match="must be a CPU tensor"):
        torch._nested_from_padded(torch.ones(2, 3, 4, device=DEVICE), sizes)
    with pytest.raises(RuntimeError, match="must be a CPU tensor"):
        torch._nested_view_from_buffer(torch.ones(24, device=DEVICE), sizes, sizes, sizes[:, 0])
    both_raise(lambda d: strided(d) + torch.ones(8, device=d))
    both_raise(lambda d: strided(d).narrow(2, 0, 2))
