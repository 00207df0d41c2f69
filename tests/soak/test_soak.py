"""Memory stays flat: the short form of `make soak`, with the same bounds, in a process of its own."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ..process import output
from .leak import DEVICE, HOST_GROWTH, Figures, growth, soak
from .programs import TENSORS_A_TURN

FLAT = [Figures(turn, 100, 100, 5, 2) for turn in range(9)]


@pytest.mark.parametrize("grown", [{"device": 101}, {"arrays": 6}, {"programs": 3}, {"host": 101 + HOST_GROWTH}])
def test_what_grows_is_found(grown: dict[str, int]) -> None:
    assert growth(FLAT) == []
    found = growth([*FLAT[:6], *(replace(f, **grown) for f in FLAT[6:])])
    assert [sentence.split(":")[0] for sentence in found] == [*grown]


def test_a_tensor_that_is_kept_is_found() -> None:
    kept: list[torch.Tensor] = []
    found = growth(soak(lambda: kept.append(torch.ones(2).to(DEVICE)), range(9), warm=3))
    assert [sentence.split(":")[0] for sentence in found] == ["device", "arrays"]


@pytest.mark.slow
def test_memory_is_flat_over_300_training_steps_and_5000_tensors() -> None:
    # In a process of its own, since threads and caches of other tests come and go in this one's memory.
    said = output(
        f"""
        from tests.soak.leak import growth, soak
        from tests.soak.programs import churn, training
        print(growth(soak(training(), range(300), warm=100, readings=9)))
        print(growth(soak(churn(), range(5000 // {TENSORS_A_TURN}), warm=20, readings=9)))
        """
    )
    assert said.splitlines() == ["[]", "[]"]
