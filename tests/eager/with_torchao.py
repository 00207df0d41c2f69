"""torchao's int8 linear layers on the device: `make quantized`. Expected values are torchao's on the CPU."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchao.quantization import (
    Int8DynamicActivationInt8WeightConfig,
    Int8WeightOnlyConfig,
    quantize_,
)

from ..conftest import DEVICE

CONFIGS = [Int8WeightOnlyConfig, Int8DynamicActivationInt8WeightConfig]
DTYPES = [torch.float32, torch.bfloat16]


def network(dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 32, bias=False)).to(dtype).eval()


def tolerances(dtype: torch.dtype) -> dict[str, float]:
    return {"rtol": 1e-5, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 0.02, "atol": 0.01}


@pytest.fixture(autouse=True)
def _without_fallbacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_PJRT_FALLBACK", "error")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("compiled", [False, True])
def test_a_quantized_network_gives_there_what_it_gives_on_the_cpu(
    config: Any, dtype: torch.dtype, compiled: bool
) -> None:
    exact, model = network(dtype), network(dtype)
    quantize_(model, config())
    there = copy.deepcopy(model).to(DEVICE)
    function = torch.compile(there, backend="pjrt") if compiled else there
    for batch in (1, 8):
        x = torch.randn(batch, 64).to(dtype)
        with torch.no_grad():
            expected, got, unquantized = model(x), function(x.to(DEVICE)).cpu(), exact(x)
        if config is Int8WeightOnlyConfig:
            torch.testing.assert_close(got, expected, **tolerances(dtype))
        # An activation that lies between two codes may go to either, which changes all outputs of its row.
        torch.testing.assert_close(got, expected, rtol=0, atol=0.02)
        assert (got - unquantized).float().norm() <= 1.1 * (expected - unquantized).float().norm() + 1e-3


@pytest.mark.parametrize("config", CONFIGS)
def test_quantizing_there_gives_the_codes_of_the_cpu(config: Any) -> None:
    here, there = network(torch.float32), network(torch.float32).to(DEVICE)
    quantize_(here, config())
    quantize_(there, config())
    for one, other in ((here[0], there[0]), (here[2], there[2])):
        assert other.weight.device.type == DEVICE
        off = one.weight.qdata.int() - other.weight.qdata.cpu().int()
        # XLA multiplies by a reciprocal where the CPU divides: a weight between two codes may go to either.
        assert off.abs().max() <= 1 and (off != 0).float().mean() < 0.01
        torch.testing.assert_close(one.weight.scale, other.weight.scale.cpu(), rtol=1e-6, atol=0)


def test_quantized_weights_are_saved_and_loaded() -> None:
    model = network(torch.float32)
    quantize_(model, Int8WeightOnlyConfig())
    there = copy.deepcopy(model).to(DEVICE)
    file = io.BytesIO()
    torch.save(there.state_dict(), file)
    file.seek(0)
    loaded = network(torch.float32)
    loaded.load_state_dict(torch.load(file, map_location="cpu", weights_only=False), assign=True)
    x: Tensor = torch.randn(4, 64)
    with torch.no_grad():
        torch.testing.assert_close(loaded(x), model(x))
