"""strict, async and fused: the same results, chosen by environment, globally or for a block."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ..conftest import DEVICE
from ..process import output, python

module = getattr(torch, DEVICE)
MODES = ["strict", "async", "fused"]


def train(mode: str, read: bool = False) -> list[float]:
    with module.eager_mode(mode):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 2)).to(DEVICE)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        x = torch.linspace(-1, 1, 12).reshape(3, 4).to(DEVICE)
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            if read:
                print(loss.item())
            loss.backward()
            optimizer.step()
            losses.append(loss)
        return [loss.item() for loss in losses]


@pytest.mark.parametrize("mode", MODES)
def test_training_gives_the_same_losses_in_every_mode_wherever_they_are_read(mode: str) -> None:
    expected = train("strict")
    assert train(mode) == pytest.approx(expected, rel=1e-6)
    assert train(mode, read=True) == pytest.approx(expected, rel=1e-6)


def test_fused_runs_one_program_where_the_others_run_one_an_op() -> None:
    for mode, traces in (("fused", 1), ("async", 4), ("strict", 4)):
        with module.eager_mode(mode):
            module.reset_metrics()
            y = (torch.ones(3, device=DEVICE) + 1).exp().sum()  # ones is a fill
            module.synchronize()
            assert module.metrics()["traces_run"] == traces, mode
            assert y.item() == pytest.approx(22.167168)


def test_the_mode_can_be_set_globally_and_for_a_block() -> None:
    assert module.get_eager_mode() == "fused"
    with module.eager_mode("strict"):
        assert module.get_eager_mode() == "strict"
        with module.eager_mode("async"):
            assert module.get_eager_mode() == "async"
        assert module.get_eager_mode() == "strict"
    assert module.get_eager_mode() == "fused"
    with pytest.raises(ZeroDivisionError), module.eager_mode("strict"):
        1 / 0  # noqa: B018
    assert module.get_eager_mode() == "fused"
    module.set_eager_mode("async")
    assert module.get_eager_mode() == "async"


def test_switching_runs_what_was_recorded() -> None:
    x = torch.ones(2, device=DEVICE) + 1
    module.reset_metrics()
    module.set_eager_mode("strict")
    assert module.metrics()["traces_run"] == 1
    assert x.tolist() == [2, 2]


def test_an_unknown_mode_is_refused_with_the_modes_there_are() -> None:
    with pytest.raises(ValueError, match="eager mode 'lazy': expected one of strict, async, fused"):
        module.set_eager_mode("lazy")


def test_the_environment_sets_the_mode() -> None:
    program = "import torch; print(torch.pjrt.get_eager_mode())"
    for mode in MODES:
        assert output(program, TORCH_PJRT_EAGER=mode).strip() == mode
    failed = python(program, TORCH_PJRT_EAGER="lazy")
    assert failed.returncode != 0
    assert "expected one of strict, async, fused" in failed.stderr


def test_a_mode_is_not_told_of_what_compiling_calls() -> None:
    class Telling(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    seen: list[str] = []
    x = torch.rand(3, 7, device=DEVICE)
    with Telling():
        y = (x.exp() + 3).to(torch.float64)
        getattr(torch, DEVICE).synchronize()  # compiles what is recorded, with the mode on
    assert seen == ["aten.exp.default", "aten.add.Tensor", "aten._to_copy.default"]
    assert y.dtype == torch.float64
