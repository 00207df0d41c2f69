"""Ops without a lowering run on the CPU: right, warned of once, counted."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor

from torch_pjrt.eager import fallback

from ..conftest import DEVICE
from ..process import output

module = getattr(torch, DEVICE)
# A fusion that PyTorch makes for its own quantized models on the CPU.
add_relu = torch.ops.aten._add_relu.Tensor


@pytest.fixture(autouse=True)
def _nothing_warned_of_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fallback, "_WARNED", set())


def silently(fn: object) -> object:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fallback.FallbackWarning)
        return fn()  # type: ignore[operator]


def test_it_warns_once_an_op_with_the_users_line_and_counts_every_call() -> None:
    x = torch.arange(-2.0, 2.0, device=DEVICE)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            result = add_relu(x, x)
    messages = [str(w.message) for w in caught if w.category is fallback.FallbackWarning]
    assert len(messages) == 1
    assert messages[0].startswith("aten::_add_relu")
    assert f"{Path(__file__).name}:" in messages[0]
    assert module.metrics()["fallbacks"] == {"aten::_add_relu.Tensor": 3}
    assert result.tolist() == [0, 0, 0, 2]
    assert result.device == x.device


def test_views_are_read_as_they_look() -> None:
    x = torch.arange(12.0).reshape(3, 4)

    def run(t: Tensor) -> Tensor:
        return add_relu(t.T[1:, ::2], -t.T[1:, 1:])

    torch.testing.assert_close(silently(lambda: run(x.to(DEVICE))).cpu(), run(x))  # type: ignore[attr-defined]


def test_out_is_written_through_a_view_and_resized_where_empty() -> None:
    x = torch.arange(1.0, 5.0)
    whole = torch.zeros(2, 4, device=DEVICE)
    silently(lambda: torch.ops.aten._add_relu.out(x.to(DEVICE), x.to(DEVICE), out=whole[1]))
    expected = x + x
    torch.testing.assert_close(whole.cpu(), torch.stack([torch.zeros(4), expected]))
    empty = torch.empty(0, device=DEVICE)
    returned = silently(lambda: torch.ops.aten._add_relu.out(x.to(DEVICE), x.to(DEVICE), out=empty))
    assert returned is empty
    torch.testing.assert_close(empty.cpu(), expected)


def test_an_in_place_op_changes_the_tensor_and_its_aliases(monkeypatch: pytest.MonkeyPatch) -> None:
    base = torch.arange(6.0, device=DEVICE)
    result = fallback.fallback("aten::sinc_", [base[1::2]])
    assert result.data_ptr() == base[1::2].data_ptr()
    expected = torch.arange(6.0)
    expected[1::2].sinc_()
    torch.testing.assert_close(base.cpu(), expected)


def test_lists_of_tensors_go_to_the_cpu_and_back() -> None:
    parts = [torch.full((2,), float(i), device=DEVICE) for i in range(3)]
    result = fallback.fallback("aten::cat", [parts, 0])
    assert (result.device.type, result.tolist()) == (DEVICE, [0, 0, 1, 1, 2, 2])
    fallback.fallback("aten::_foreach_add_.Scalar", [parts, 10])
    assert [p.tolist() for p in parts] == [[10, 10], [11, 11], [12, 12]]
    pieces = fallback.fallback("aten::split_copy.Tensor", [result, 4, 0])
    assert [p.tolist() for p in pieces] == [[0, 0, 1, 1], [2, 2]]


def test_several_results_keep_their_dtypes() -> None:
    matrix = torch.tensor([[4.0, 1.0], [1.0, 3.0]])
    values, pivots = silently(lambda: torch.linalg.ldl_factor(matrix.to(DEVICE)))  # type: ignore[misc]
    expected = torch.linalg.ldl_factor(matrix)
    torch.testing.assert_close(values.cpu(), expected.LD)
    assert torch.equal(pivots.cpu(), expected.pivots)


def test_gradients_flow_through_it() -> None:
    """A Dirichlet draw's gradient, https://arxiv.org/abs/1805.08498, is an op without a lowering."""
    concentration = torch.tensor([[1.0, 2.0, 3.0], [0.5, 4.0, 2.0]])
    x = concentration.to(DEVICE).requires_grad_()
    drawn = torch.distributions.Dirichlet(x).rsample()
    weights = torch.tensor([1.0, -2.0, 0.5])
    silently(lambda: (drawn * weights.to(DEVICE)).sum().backward())
    assert x.grad is not None
    assert "aten::_dirichlet_grad" in module.metrics()["fallbacks"]
    sample = drawn.detach().cpu()
    slope = torch._dirichlet_grad(sample, concentration, concentration.sum(-1, True).expand_as(concentration))
    expected = slope * (weights - (sample * weights).sum(-1, True))
    torch.testing.assert_close(x.grad.cpu(), expected)


def test_the_cpus_error_is_the_users_error() -> None:
    with pytest.raises(RuntimeError):
        silently(lambda: torch.linalg.ldl_factor(torch.ones(2, 3, device=DEVICE)))


def test_the_environment_makes_it_an_error_or_silent() -> None:
    program = """
        import torch, warnings
        warnings.simplefilter("always")
        x = torch.ones(2, device="pjrt")
        with warnings.catch_warnings(record=True) as caught:
            try:
                print(torch.ops.aten._add_relu.Tensor(x, x).shape)
            except NotImplementedError as error:
                said = str(error)
                print("NotImplementedError", "aten::_add_relu" in said, "<string>" in said or "line" in said)
        print(len(caught), torch.pjrt.metrics()["fallbacks"])
    """
    counted = "{'aten::_add_relu.Tensor': 1}"
    assert output(program, TORCH_PJRT_FALLBACK="silent").splitlines() == ["torch.Size([2])", f"0 {counted}"]
    assert output(program, TORCH_PJRT_FALLBACK="warn").splitlines() == ["torch.Size([2])", f"1 {counted}"]
    assert output(program, TORCH_PJRT_FALLBACK="error").splitlines()[0].startswith("NotImplementedError True")
