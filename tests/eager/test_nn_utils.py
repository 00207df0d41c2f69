"""torch.nn.utils, averaged models, lazy modules, recurrent and transformer modules: as on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize, prune, rnn, stateless
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn

from ..conftest import DEVICE
from .agree import agree


def linear(device: str) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(4, 3).to(device)


def trained(layer: nn.Module, device: str) -> Any:
    """Two steps of training and the results of the layer after each."""
    optimizer = optim.SGD(layer.parameters(), 0.1)
    seen = []
    for _ in range(2):
        y = layer(torch.linspace(-1, 1, 8, device=device).reshape(2, 4))
        y.square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append(y)
    return seen


class Symmetric(nn.Module):
    """A parametrization that makes a weight antisymmetric around its transposed flip."""

    def forward(self, w: Tensor) -> Tensor:
        return w - w.flip(0)

    def right_inverse(self, w: Tensor) -> Tensor:
        return w / 2


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
@pytest.mark.parametrize(
    "change",
    [
        lambda m: parametrizations.weight_norm(m),
        lambda m: parametrizations.spectral_norm(m),
        lambda m: parametrizations.orthogonal(m, orthogonal_map="householder"),
        lambda m: parametrizations.orthogonal(m, orthogonal_map="cayley"),
        lambda m: (parametrize.register_parametrization(m, "weight", Symmetric()), m)[1],
        lambda m: nn.utils.weight_norm(m),
        lambda m: nn.utils.spectral_norm(m.cpu()),  # it draws a vector, the same on both devices from here
        lambda m: prune.l1_unstructured(m, "weight", 0.4),
        lambda m: prune.ln_structured(m, "weight", 0.4, n=2, dim=0),
        lambda m: prune.custom_from_mask(m, "bias", torch.tensor([1, 0, 1], device=m.bias.device)),
    ],
    ids=[
        "weight_norm", "spectral_norm", "orthogonal householder", "orthogonal cayley", "own", "old weight_norm",
        "old spectral_norm", "l1 pruning", "structured pruning", "pruning by a mask",
    ],
)  # fmt: skip
def test_a_reparametrized_layer_trains_as_on_the_cpu(change: Callable[[nn.Module], nn.Module]) -> None:
    agree(lambda d: trained(change(linear(d)).to(d), d), rtol=1e-4, atol=1e-5)


def test_a_parametrization_made_permanent_keeps_the_weight() -> None:
    layer = parametrizations.weight_norm(linear(DEVICE))
    before = layer.weight.detach().cpu()
    parametrize.remove_parametrizations(layer, "weight")
    assert isinstance(layer.weight, nn.Parameter)
    torch.testing.assert_close(layer.weight.detach().cpu(), before)
    pruned = linear(DEVICE)
    prune.l1_unstructured(pruned, "weight", 0.5)
    prune.remove(pruned, "weight")
    assert int((pruned.weight == 0).sum()) == 6


def test_global_and_random_pruning_of_a_model() -> None:
    def program(device: str) -> Any:
        model = nn.Sequential(linear(device), nn.Tanh(), nn.Linear(3, 3, device=device))
        parts = [(model[0], "weight"), (model[2], "weight")]
        prune.global_unstructured(parts, prune.L1Unstructured, amount=0.5)
        kept = sum(int(m.weight_mask.sum()) for m, _ in parts)
        return kept, prune.is_pruned(model)

    agree(program)


def test_gradient_and_parameter_utilities() -> None:
    def program(device: str) -> Any:
        layer = linear(device)
        layer(torch.ones(2, 4, device=device)).pow(2).sum().backward()
        total = nn.utils.clip_grad_norm_(layer.parameters(), 0.5)
        nn.utils.clip_grad_value_(layer.parameters(), 0.1)
        flat = nn.utils.parameters_to_vector(layer.parameters())
        nn.utils.vector_to_parameters(flat * 2, layer.parameters())
        norm = nn.utils.get_total_norm([p.grad for p in layer.parameters() if p.grad is not None])
        skipped = nn.utils.skip_init(nn.Linear, 4, 3, device=device)
        nn.init.orthogonal_(skipped.weight)
        identity = skipped.weight @ skipped.weight.T
        return total, norm, flat, list(layer.parameters()), [p.grad for p in layer.parameters()], identity.round()

    agree(program)


def test_fused_convolution_and_batch_norm() -> None:
    def program(device: str) -> Any:
        conv, norm = nn.Conv2d(2, 3, 3).to(device), nn.BatchNorm2d(3).to(device)
        x = torch.linspace(0, 1, 50, device=device).reshape(1, 2, 5, 5)
        norm(conv(x))
        return nn.utils.fusion.fuse_conv_bn_eval(conv.eval(), norm.eval())(x), norm(conv(x))

    agree(program, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_functional_calls_swap_parameters_and_put_them_back() -> None:
    def program(device: str) -> Any:
        layer = linear(device)
        zeros = {name: torch.zeros_like(p) for name, p in layer.named_parameters()}
        x = torch.ones(1, 4, device=device)
        return stateless.functional_call(layer, zeros, x), torch.func.functional_call(layer, zeros, x), layer(x)

    agree(program)


def test_averaged_models() -> None:
    def program(device: str) -> Any:
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).to(device)
        optimizer = optim.SGD(model.parameters(), 0.1)
        schedule = SWALR(optimizer, 0.05)
        mean = AveragedModel(model)
        moving = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
        x, y = torch.randn(16, 4).to(device), torch.randn(16, 1).to(device)
        for _ in range(4):
            optimizer.zero_grad()
            functional.mse_loss(model(x), y).backward()
            optimizer.step()
            mean.update_parameters(model)
            moving.update_parameters(model)
            schedule.step()
        update_bn([(x,)], mean)
        return mean.module.state_dict(), moving.module.state_dict(), mean(x), moving(x)

    agree(program, rtol=1e-4, atol=1e-5)


def test_lazy_modules_take_their_shapes_from_the_first_batch() -> None:
    def program(device: str) -> Any:
        model = nn.Sequential(nn.LazyConv2d(3, 2), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(2)).to(device)
        before = type(model[3].weight).__name__
        shape = tuple(model(torch.ones(2, 1, 4, 4, device=device)).shape)
        return before, type(model[3].weight).__name__, shape, [tuple(p.shape) for p in model.parameters()]

    agree(program)
    model = nn.Sequential(nn.LazyLinear(2, device=DEVICE), nn.LazyLinear(3, device=DEVICE))
    model(torch.ones(1, 5, device=DEVICE)).sum().backward()
    assert {p.device.type for p in model.parameters()} == {DEVICE}


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_modules_on_packed_sequences(kind: Callable[..., nn.Module]) -> None:
    def program(device: str) -> Any:
        model = kind(3, 4, 2, bidirectional=True, batch_first=True).to(device)
        x = torch.randn(3, 5, 3).to(device).requires_grad_()
        packed = rnn.pack_padded_sequence(x, torch.tensor([5, 2, 3]), batch_first=True, enforce_sorted=False)
        y, hidden = model(packed)
        padded, lengths = rnn.pad_packed_sequence(y, batch_first=True)
        padded.sum().backward()
        assert lengths.device.type == "cpu"
        return padded, lengths.tolist(), hidden, x.grad, [p.grad for p in model.parameters()][:4]

    agree(program, rtol=1e-4, atol=1e-5)


def test_sequences_are_padded_packed_and_unpacked() -> None:
    def program(device: str) -> Any:
        parts = [torch.ones(n, 2, device=device) * n for n in (3, 1, 2)]
        padded = rnn.pad_sequence(parts, batch_first=True)
        packed = rnn.pack_sequence(parts, enforce_sorted=False)
        return padded, packed.data, rnn.unpad_sequence(padded, torch.tensor([3, 1, 2]), batch_first=True)

    agree(program)


def test_multi_head_attention_with_masks_in_training_and_evaluation() -> None:
    def program(device: str) -> Any:
        model = nn.MultiheadAttention(8, 2, batch_first=True).to(device)
        x = torch.randn(2, 5, 8).to(device)
        hidden = torch.tensor([[0, 0, 0, 1, 1], [0, 0, 0, 0, 1]], dtype=torch.bool, device=device)
        causal = nn.Transformer.generate_square_subsequent_mask(5, device=device)
        masked = model(x, x, x, key_padding_mask=hidden)
        plain = model(x, x, x, attn_mask=causal, is_causal=True, need_weights=False)[0]
        masked[0].sum().backward()
        model.eval()
        with torch.no_grad():
            evaluated = model(x, x, x, key_padding_mask=hidden), model(x, x, x, need_weights=False)[0]
        return masked, plain, evaluated, model.in_proj_weight.grad

    agree(program, rtol=1e-4, atol=1e-5)


def test_a_transformer_with_padding_in_training_and_evaluation() -> None:
    def program(device: str) -> Any:
        model = nn.Transformer(16, 2, 1, 1, 32, dropout=0.0, batch_first=True).to(device)
        source, target = torch.randn(2, 6, 16).to(device), torch.randn(2, 4, 16).to(device)
        hidden = torch.tensor([[0] * 6, [0] * 4 + [1] * 2], dtype=torch.bool, device=device)
        causal = nn.Transformer.generate_square_subsequent_mask(4, device=device)
        y = model(source, target, tgt_mask=causal, src_key_padding_mask=hidden)
        y.sum().backward()
        model.eval()
        with torch.no_grad():
            encoded = model.encoder(source, src_key_padding_mask=hidden)
            decoded = model(source, target, src_key_padding_mask=hidden, memory_key_padding_mask=hidden)
            unmasked = model(source, target, src_key_padding_mask=hidden)  # the encoder has left zeros for padding
        return y, encoded, decoded, unmasked, [p.grad for p in model.parameters()][:3]

    agree(program, rtol=1e-4, atol=1e-5)
