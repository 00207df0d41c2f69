"""Errors come where CPU PyTorch's come; a program that cannot be compiled or run names its ops and the user's lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from torch_pjrt.eager import bridge
from torch_pjrt.eager.trace import TraceError

from ..conftest import DEVICE

module = getattr(torch, DEVICE)
MODES = ["strict", "async", "fused"]


def places(n: int, device: str) -> torch.Tensor:
    return torch.arange(n, device=device)


BAD: dict[str, Callable[[str], Any]] = {
    "shapes that do not broadcast": lambda d: torch.ones(2, 3, device=d) + torch.ones(4, device=d),
    "a tensor without elements broadcast in place": lambda d: torch.ones(0, 1, device=d).atan2_(
        torch.ones(0, 3, device=d)
    ),
    "inner dimensions": lambda d: torch.ones(2, 3, device=d) @ torch.ones(2, 3, device=d),
    "a layer's input": lambda d: nn.Linear(3, 4).to(d)(torch.ones(2, 5, device=d)),
    "a view of another size": lambda d: torch.ones(6, device=d).view(4),
    "parts of other shapes": lambda d: torch.cat([torch.ones(2, 3, device=d), torch.ones(3, 2, device=d)]),
    "a dimension that is not": lambda d: torch.ones(2, device=d).sum(3),
    "an index beyond the end": lambda d: torch.ones(2, device=d)[5],
    "a mask of another shape": lambda d: torch.ones(3, device=d)[torch.ones(2, dtype=torch.bool, device=d)],
    "a row to write that is not": lambda d: torch.ones(5, 4, device=d).select_scatter(torch.ones(4, device=d), 0, 9),
    "a dimension to write along": lambda d: torch.ones(5, 4, device=d).select_scatter(torch.ones(4, device=d), 3, 0),
    "rows to write, more than there are": lambda d: torch.ones(5, 4, device=d).slice_scatter(
        torch.ones(2, 4, device=d), 0, 9, 11
    ),
    "a diagonal that is not": lambda d: torch.ones(5, 4, device=d).diagonal_scatter(torch.ones(4, device=d), 9),
    "three indices into a number": lambda d: torch.ones((), device=d).index_select(0, places(3, d) * 0),
    "a float into an integer": lambda d: torch.ones(2, dtype=torch.int64, device=d).add_(1.5),
    "out= of another kind": lambda d: torch.add(
        torch.ones(2, device=d), 1, out=torch.ones(2, dtype=torch.int8, device=d)
    ),
    "channels": lambda d: nn.functional.conv2d(torch.ones(1, 3, 4, 4, device=d), torch.ones(2, 2, 3, 3, device=d)),
    "float indices": lambda d: nn.functional.embedding(torch.ones(2, device=d), torch.ones(2, 3, device=d)),
    "a leaf in place": lambda d: torch.ones(2, device=d, requires_grad=True).add_(1),
    "backward of a vector": lambda d: torch.ones(2, device=d, requires_grad=True).exp().backward(),
    "item of two": lambda d: torch.ones(2, device=d).item(),
    "bool of two": lambda d: bool(torch.ones(2, device=d)),
    "batch sizes": lambda d: nn.functional.cross_entropy(
        torch.ones(2, 3, device=d), torch.ones(3, dtype=torch.long, device=d)
    ),
    "two dtypes": lambda d: torch.ones(2, 2, device=d) @ torch.ones(2, 2, dtype=torch.float64, device=d),
    "bits of floats": lambda d: torch.ones(2, device=d) & torch.ones(2, device=d),
    "softmax of integers": lambda d: torch.ones(2, dtype=torch.int64, device=d).softmax(0),
    "a write to an expanded tensor": lambda d: torch.ones(1, device=d).expand(3).add_(1),
    "the maximum of nothing": lambda d: torch.ones(2, 0, device=d).max(),
    "the least of nothing, a whole number": lambda d: torch.ones(0, dtype=torch.int64, device=d).min(),
    "the place of the maximum of nothing": lambda d: torch.ones(2, 0, device=d).argmax(),
    "both extremes along nothing": lambda d: torch.ones(2, 0, device=d).aminmax(dim=1),
    "the k-th of nothing": lambda d: torch.ones(0, device=d).kthvalue(1),
    "indices that do not broadcast": lambda d: torch.ones(2, 3, device=d)[places(2, d), places(3, d)],
    "an assignment by such indices": lambda d: torch.ones(2, 3, device=d).index_put_(
        (places(2, d), places(3, d)), torch.ones((), device=d)
    ),
    "values that do not fit what is indexed": lambda d: torch.ones(2, 3, device=d).index_put_(
        (places(2, d),), torch.ones(5, device=d)
    ),
    "one more dimension than is indexed": lambda d: torch.ones(2, 3, device=d).index_put_(
        (places(2, d),), torch.ones(2, 2, 3, device=d)
    ),
    "values for a mask": lambda d: (
        torch.ones(3, device=d)
        .masked_fill(torch.ones(3, device=d) > 0, 0)
        .index_put_((torch.tensor([True, True, False], device=d),), torch.ones(3, device=d))
    ),
    "a matrix of places": lambda d: torch.ones(2, 3, device=d).index_select(0, places(2, d)[None]),
    "more places than rows": lambda d: torch.ones(2, 3, device=d).index_copy(
        0, places(2, d), torch.ones(1, 3, device=d)
    ),
    "more values than places": lambda d: torch.ones(4, device=d).put_(places(2, d), torch.ones(3, device=d)),
    "a reduction that is none": lambda d: torch.ones(2, device=d).index_reduce(
        0, places(1, d), torch.ones(1, device=d), "nope"
    ),
    "a matrix of boundaries": lambda d: torch.bucketize(torch.ones(2, device=d), torch.ones(2, 2, device=d)),
    "more draws than choices": lambda d: torch.ones(3, device=d).multinomial(5),
    "no draws": lambda d: torch.ones(3, device=d).multinomial(0),
    "draws from nothing": lambda d: torch.ones(2, 0, device=d).multinomial(1),
    "an empty range": lambda d: torch.randint(3, 1, (2,), device=d),
    "an image without rows": lambda d: nn.functional.adaptive_avg_pool2d(torch.ones(1, 2, 0, 3, device=d), 2),
    "a matrix without an inverse": lambda d: torch.linalg.inv(torch.zeros(2, 2, device=d)),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", BAD)
def test_the_exception_is_the_cpus_raised_at_the_call(name: str, mode: str) -> None:
    with pytest.raises(Exception) as expected:
        BAD[name]("cpu")
    with module.eager_mode(mode):
        with pytest.raises(expected.type):
            BAD[name](DEVICE)
        assert (torch.ones(2, device=DEVICE) + 1).tolist() == [2, 2]


DRAWS: dict[str, tuple[float, ...]] = {
    # a method, then numbers that it takes, then numbers that it refuses
    "uniform_": (0, 1, 1, 0),
    "normal_": (0, 1, 0, -1),
    "log_normal_": (0, 1, 0, 0),
    "cauchy_": (0, 1, 0, 0),
    "exponential_": (1, 0),
    "geometric_": (0.5, 1),
    "bernoulli_": (0.5, 1.5),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_distribution_refuses_the_cpus_numbers_at_every_call_and_draws_nothing(name: str) -> None:
    numbers = DRAWS[name]
    good, bad = numbers[: len(numbers) // 2], numbers[len(numbers) // 2 :]
    with pytest.raises(RuntimeError):
        getattr(torch.ones(3), name)(*bad)
    x = torch.ones(3, device=DEVICE)
    getattr(x, name)(*good)  # the same op and layouts: from now on Python is not asked about shapes
    state = module.get_rng_state()
    with pytest.raises(RuntimeError):
        getattr(x, name)(*bad)
    assert torch.equal(module.get_rng_state(), state)
    if name == "normal_":
        with pytest.raises(RuntimeError, match=r"normal expects std >= 0\.0, but found std -1"):
            torch.normal(x, -1.0)


@pytest.mark.parametrize("mode", MODES)
def test_operands_on_the_cpu_and_the_device_are_refused_at_the_call(mode: str) -> None:
    a, b = torch.ones(2), torch.ones(2, device=DEVICE)
    with module.eager_mode(mode):
        for call in (
            lambda: a + b,
            lambda: b + a,
            lambda: torch.cat([a, b]),
            lambda: b.add_(a),
            lambda: a.add_(b),
            lambda: torch.add(b, b, out=a),
            lambda: nn.Linear(2, 2)(b),
        ):
            with pytest.raises(
                RuntimeError, match=f"Expected all tensors to be on the same device.*{DEVICE}:0 and cpu"
            ):
                call()
        assert (b + torch.tensor(1.0)).tolist() == [2, 2]  # a 0-d CPU tensor is a number


@pytest.fixture
def broken_lowering(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from torch_pjrt.lowering import find, registry

    def broken(*args: Any) -> Any:
        raise ValueError("broken on purpose")

    (torch.ones(1, device=DEVICE) + 1).tolist()  # the lowerings are loaded by now
    find.cache_clear()
    monkeypatch.setitem(registry._TABLE, "heaviside", registry.Lowering(broken))
    yield
    monkeypatch.undo()
    find.cache_clear()


def test_a_program_that_does_not_compile_names_its_ops_and_the_users_lines(broken_lowering: None) -> None:
    x = torch.ones(2, device=DEVICE)
    bad = torch.heaviside(x, x * 2)
    after = bad + 1
    with pytest.raises(TraceError, match="broken on purpose") as raised:
        after.tolist()
    message = str(raised.value)
    assert "aten::heaviside" in message
    assert f"{Path(__file__).name}:" in message
    assert "ValueError" in message


def test_after_a_failed_flush_later_reads_raise_the_original_error_and_the_rest_goes_on(broken_lowering: None) -> None:
    unrelated = torch.arange(3.0, device=DEVICE)
    module.synchronize()
    x = torch.ones(3, device=DEVICE)
    bad = torch.heaviside(x, x)
    with pytest.raises(TraceError) as first:
        bad.tolist()
    for read in (bad.tolist, lambda: (bad + 1).tolist(), lambda: bad.sum().item(), lambda: bad.cpu()):
        with pytest.raises(TraceError) as again:
            read()
        assert again.value is first.value
    assert (unrelated + 1).tolist() == [1, 2, 3]
    bad = torch.zeros(3, device=DEVICE)
    assert bad.tolist() == [0, 0, 0]


def test_what_was_overwritten_in_a_failed_flush_is_not_silently_the_old(broken_lowering: None) -> None:
    x = torch.ones(3, device=DEVICE)
    module.synchronize()
    x.add_(torch.heaviside(x, x))
    with pytest.raises(TraceError, match="broken on purpose"):
        module.synchronize()
    with pytest.raises(TraceError, match="broken on purpose"):
        x.tolist()
    x.zero_()
    assert x.tolist() == [0, 0, 0]


def test_strict_raises_at_the_op_that_broke(broken_lowering: None) -> None:
    with module.eager_mode("strict"):
        x = torch.ones(2, device=DEVICE)
        with pytest.raises(TraceError, match="broken on purpose"):
            torch.heaviside(x, x)
        assert (x + 1).tolist() == [2, 2]


def test_a_program_that_fails_at_run_time_names_its_ops_and_later_reads_raise_the_same() -> None:
    class Failing:
        summary = "aten::exp(tensor)  # somewhere.py:1"
        executable = SimpleNamespace(index=0, working_memory=0)

        def __call__(self, *args: object) -> list[object]:
            raise RuntimeError("INTERNAL: the chip is gone")

    with pytest.raises(TraceError, match=r"running a trace failed(.|\n)*INTERNAL: the chip is gone(.|\n)*aten::exp"):
        bridge.run(Failing(), [], None, None, None)


def test_a_run_time_failure_is_raised_by_every_later_read(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch_pjrt.runtime.executable import Executable

    def fail(self: Executable, *args: object) -> list[object]:
        raise RuntimeError("INTERNAL: the chip is gone")

    x = torch.ones(3, device=DEVICE)
    module.synchronize()
    y = x * 3
    with monkeypatch.context() as patch:
        patch.setattr(Executable, "__call__", fail)
        with pytest.raises(TraceError, match="INTERNAL: the chip is gone") as first:
            y.tolist()
    with pytest.raises(TraceError) as again:
        (y + 1).tolist()
    assert again.value is first.value
    assert (x * 3).tolist() == [3, 3, 3]


def test_a_backward_pass_names_its_node_where_there_is_no_line(broken_lowering: None) -> None:
    x = torch.ones(2, device=DEVICE, requires_grad=True)
    x.register_hook(lambda g: torch.heaviside(g, g))
    x.exp().sum().backward()
    with pytest.raises(TraceError, match="aten::heaviside"):
        x.grad.tolist()  # type: ignore[union-attr]
