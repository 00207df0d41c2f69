"""What a joint graph computes twice is merged, as PyTorch's partitioner would, without importing Inductor."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.fx import GraphModule

from torch_pjrt.compile import backend, merge

from ..conftest import DEVICE
from ..process import output
from .check import check


def test_training_does_not_import_inductors_lowerings() -> None:
    program = """
        import sys, torch
        model = torch.nn.Linear(3, 2).to("pjrt")
        torch.compile(model, backend="pjrt")(torch.ones(2, 3, device="pjrt")).sum().backward()
        print("torch._inductor.lowering" in sys.modules)
    """
    assert output(program) == "False\n"


def test_as_much_is_merged_as_by_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._functorch.compile_utils import fx_graph_cse

    counts: list[tuple[int, int, int]] = []
    ours = merge.merge_equal

    def both(joint: GraphModule) -> None:
        joint.graph.eliminate_dead_code()
        before, theirs = len(joint.graph.nodes), len(fx_graph_cse(joint.graph).nodes)
        ours(joint)
        joint.graph.lint()
        counts.append((before, theirs, len(joint.graph.nodes)))

    monkeypatch.setattr(backend, "merge_equal", both)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).to(DEVICE)
    compiled = torch.compile(layer, backend="pjrt")
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        compiled(torch.randn(2, 5, 8).to(DEVICE)).float().sum().backward()
    ((before, theirs, merged),) = counts
    assert merged == theirs < before


def test_equal_outputs_stay_two_tensors() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x + 1, x + 1

    check(fn, torch.arange(3.0, requires_grad=True))
    x = torch.arange(3.0, device=DEVICE, requires_grad=True)
    one, two = torch.compile(fn, backend="pjrt")(x)
    with torch.no_grad():
        one.mul_(2)
    assert two.tolist() == [1, 2, 3]


def test_numbers_that_compare_equal_are_different_arguments() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (1 / (x * 0.0)).sum(), (1 / (x * -0.0)).sum(), (x.long() * 1).sum(), (x.long() * 1.0).sum()

    check(fn, torch.ones(3, requires_grad=True))


def test_each_draw_is_another() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x, 0.5) - nn.functional.dropout(x, 0.5) + (torch.rand_like(x) - torch.rand_like(x))

    x = torch.ones(64, device=DEVICE, requires_grad=True)
    assert torch.compile(fn, backend="pjrt")(x).abs().min().item() > 0


def test_pytorchs_switch_turns_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "merge_equal", lambda joint: pytest.fail("merged"))
    with torch._functorch.config.patch(cse=False):
        check(lambda x: x.sin() * x.sin(), torch.ones(3, requires_grad=True))
