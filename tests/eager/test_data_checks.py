"""What XLA would clamp, drop or make up is raised: at the next synchronization, or at the call in strict mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ..process import output

MODES = ("strict", "async", "fused")


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> Iterator[str]:
    with torch.pjrt.eager_mode(request.param):  # type: ignore[attr-defined]
        yield request.param


def _index(*values: int) -> Callable[[str], Tensor]:
    return lambda device: torch.tensor(values, device=device)


def _assigned(x: Tensor, i: Tensor) -> Tensor:
    x = x.clone()
    x[i] = 1.0
    return x


# What to do with x of shape (3, 4) and an index made on the device.
BAD: dict[str, tuple[Callable[[Tensor, Tensor], Any], Callable[[str], Tensor]]] = {
    "indexing": (lambda x, i: x[i], _index(0, 3)),
    "indexing from the end": (lambda x, i: x[i], _index(0, -4)),
    "indexing the second dimension": (lambda x, i: x[:, i], _index(4)),
    "two indices": (lambda x, i: x[i, i + 3], _index(0, 1)),
    "index_put": (lambda x, i: x.clone().index_put_((i,), torch.zeros(4, device=x.device)), _index(3)),
    "index_put accumulating": (
        lambda x, i: x.clone().index_put_((i,), torch.ones(4, device=x.device), accumulate=True),
        _index(5),
    ),
    "assignment": (_assigned, _index(3)),
    "index_select": (lambda x, i: x.index_select(1, i), _index(4)),
    "index_select never counts from the end": (lambda x, i: x.index_select(1, i), _index(-1)),
    "index_add": (lambda x, i: x.index_add(0, i, torch.ones(1, 4, device=x.device)), _index(3)),
    "index_copy": (lambda x, i: x.index_copy(0, i, torch.ones(1, 4, device=x.device)), _index(3)),
    "index_fill": (lambda x, i: x.index_fill(0, i, 1.0), _index(7)),
    "index_reduce": (lambda x, i: x.index_reduce(0, i, torch.ones(1, 4, device=x.device), "amax"), _index(3)),
    "gather": (lambda x, i: x.gather(0, i[None]), _index(0, 3)),
    "take": (lambda x, i: x.take(i), _index(12)),
    "put": (lambda x, i: x.clone().put_(i, torch.ones(1, device=x.device)), _index(-13)),
    "scatter": (lambda x, i: x.scatter(0, i[None], 1.0), _index(3)),
    "scatter_add": (lambda x, i: x.scatter_add(1, i[:, None], torch.ones(1, 1, device=x.device)), _index(-1)),
    "scatter_reduce": (
        lambda x, i: x.scatter_reduce(1, i[:, None], torch.ones(1, 1, device=x.device), "amax"),
        _index(4),
    ),
    "embedding": (lambda x, i: F.embedding(i, x), _index(1, 3)),
    "embedding_bag": (lambda x, i: F.embedding_bag(i[None], x), _index(1, 3)),
    "indexing a dimension of none": (lambda x, i: x[:0][i], _index(0)),
    "index_select from none": (lambda x, i: x[:0].index_select(0, i), _index(0)),
    "index_select from a number": (lambda x, i: x[0, 0].index_select(0, i), _index(1)),
    "searchsorted with a sorter": (
        lambda x, i: torch.searchsorted(x[0], x[1], sorter=torch.cat([i, i.new_zeros(3)])),
        _index(4),
    ),
    "one_hot": (lambda x, i: F.one_hot(i, 3), _index(0, 3)),
    "cross_entropy": (lambda x, i: F.cross_entropy(x, i), _index(0, 1, 4)),
    "nll_loss": (lambda x, i: F.nll_loss(x, i), _index(0, -1, 1)),
    "max_unpool2d": (
        lambda x, i: F.max_unpool2d(torch.ones(1, 1, 1, 1, device=x.device), i.reshape(1, 1, 1, 1), 2),
        _index(4),
    ),
}
GOOD: dict[str, tuple[Callable[[Tensor, Tensor], Any], Callable[[str], Tensor]]] = {
    "indexing from the end": (lambda x, i: x[i], _index(-3, 2)),
    "take": (lambda x, i: x.take(i), _index(-12, 11)),
    "an ignored target": (lambda x, i: F.cross_entropy(x, i, ignore_index=-100), _index(0, -100, 3)),
    "no index at all": (lambda x, i: x[i], lambda device: torch.zeros(0, dtype=torch.long, device=device)),
    "no index into nothing": (lambda x, i: x[:0][i], lambda device: torch.zeros(0, dtype=torch.long, device=device)),
}


def base(device: str) -> Tensor:
    return torch.arange(12.0, device=device).reshape(3, 4)


def bags(device: str, *offsets: int) -> Tensor:
    where = torch.zeros(3, dtype=torch.long, device=device)
    return F.embedding_bag(where, base(device), offsets=torch.tensor(offsets, device=device))


def segments(device: str, *lengths: int) -> Tensor:
    return torch.segment_reduce(base(device), "sum", lengths=torch.tensor(lengths, device=device))


@pytest.mark.parametrize("case", BAD)
def test_an_index_out_of_range(case: str, mode: str) -> None:
    op, index = BAD[case]
    with pytest.raises((IndexError, RuntimeError)):
        op(base("cpu"), index("cpu"))
    at_the_call = True
    with pytest.raises(IndexError, match=r"-?\d+ is out of bounds .*size \d+.*test_data_checks.py:\d+"):
        held = op(base("pjrt"), index("pjrt"))  # noqa: F841 (what nobody holds is not computed)
        at_the_call = False
        torch.pjrt.synchronize()  # type: ignore[attr-defined]
    assert at_the_call == (mode == "strict")
    # The device goes on.
    assert (base("pjrt") + 1).sum().item() == 78


@pytest.mark.parametrize("case", GOOD)
def test_what_is_in_range_passes(case: str, mode: str) -> None:
    op, index = GOOD[case]
    torch.testing.assert_close(op(base("pjrt"), index("pjrt")).cpu(), op(base("cpu"), index("cpu")))


@pytest.mark.parametrize(
    "op",
    [
        lambda a, b: a // b,
        lambda a, b: a % b,
        torch.fmod,
        lambda a, b: torch.div(a, b, rounding_mode="trunc"),
        lambda a, b: a.clone().floor_divide_(b),
        lambda a, b: a % 0,
        lambda a, b: a // 0,
    ],
)
def test_an_integer_division_by_zero(op: Callable[[Tensor, Tensor], Tensor], mode: str) -> None:
    a, b = torch.tensor([4, 5]), torch.tensor([2, 0])
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        op(a, b)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        op(a.to("pjrt"), b.to("pjrt")).cpu()


def test_a_float_division_by_zero_is_no_error(mode: str) -> None:
    a, b = torch.tensor([4.0, -5.0]), torch.tensor([0.0, 0.0])
    assert torch.equal((a.to("pjrt") / b.to("pjrt")).cpu(), a / b)
    assert torch.equal((a.to("pjrt") // b.to("pjrt")).cpu(), a // b)


@pytest.mark.parametrize(
    ("draw", "text"),
    [
        (lambda d: torch.bernoulli(torch.tensor([0.5, 1.5], device=d)), "p_in"),
        (lambda d: torch.tensor([0.5, -1.0], device=d).bernoulli(), "p_in"),
        (lambda d: torch.multinomial(torch.tensor([0.5, -1.0], device=d), 1), "element < 0"),
        (lambda d: torch.multinomial(torch.tensor([0.5, float("nan")], device=d), 1), "element < 0"),
        (lambda d: torch.multinomial(torch.zeros(3, device=d), 1), "sum of probabilities"),
        (lambda d: torch.normal(0.0, torch.tensor([1.0, -1.0], device=d)), "all elements of std >= 0.0"),
        (lambda d: F.binary_cross_entropy(torch.tensor([1.5], device=d), torch.ones(1, device=d)), "between 0 and 1"),
        (lambda d: F.multi_margin_loss(torch.ones(2, 3, device=d), torch.tensor([0, 3], device=d)), "out of range"),
        (lambda d: F.multilabel_margin_loss(torch.ones(2, device=d), torch.tensor([2, -1], device=d)), "out of range"),
        (lambda d: torch.poisson(torch.tensor([1.0, -1.0], device=d)), "invalid Poisson rate"),
        (lambda d: bags(d, 1, 2), "offsets.0. has to be 0"),
        (lambda d: bags(d, 0, 4), "offsets.-1. can not be greater than input's length 3"),
        (lambda d: segments(d, 2, 2), "lengths along axis to sum to"),
        (lambda d: segments(d, 5, -2), "lengths contains negative value"),
        (lambda d: torch._assert_async(torch.tensor(0, device=d), "the user's {words}"), "the user's {words}"),
    ],
)
def test_arguments_that_depend_on_data(draw: Callable[[str], object], text: str, mode: str) -> None:
    with pytest.raises(RuntimeError, match=text):
        draw("cpu")
    with pytest.raises(RuntimeError, match=text):
        held = draw("pjrt")  # noqa: F841 (what nobody holds is not computed)
        torch.pjrt.synchronize()  # type: ignore[attr-defined]


def test_in_strict_mode_the_error_does_not_recommend_it() -> None:
    with torch.pjrt.eager_mode("strict"), pytest.raises(IndexError) as error:  # type: ignore[attr-defined]
        base("pjrt")[torch.tensor([3], device="pjrt")]
    assert "set_eager_mode" not in str(error.value)


def test_an_assertion_that_holds_says_nothing(mode: str) -> None:
    torch._assert_async(torch.tensor(1, device="pjrt"), "never seen")
    torch.pjrt.synchronize()  # type: ignore[attr-defined]


def test_what_was_computed_from_it_raises_when_read_and_nothing_else_does() -> None:
    x = base("pjrt")
    wrong = x[torch.tensor([9], device="pjrt")]
    later = wrong + 1
    with pytest.raises(IndexError, match="index 9 is out of bounds for dimension 0 with size 3"):
        later.cpu()
    for tensor in (wrong, later):
        with pytest.raises(IndexError, match="index 9"):
            tensor.cpu()
    with pytest.raises(IndexError, match="index 9"):
        (later * 3).cpu()
    assert torch.equal(x.cpu(), base("cpu"))


def test_a_later_run_that_read_it_fails_with_it() -> None:
    x = base("pjrt")
    # Long enough that the device is still at it when the runs that follow are dispatched.
    slow = torch.ones(600, 600, device="pjrt")
    for _ in range(20):
        slow = slow @ slow / 600
    index = (slow[0, :1] * 0 + 3).long()
    wrong = x.index_select(0, index)
    chain = [wrong]
    with torch.pjrt.eager_mode("async"):  # type: ignore[attr-defined]
        fine = x + 1
        with pytest.raises(IndexError, match="index 3"):
            for _ in range(5):
                chain.append(chain[-1] + 1)
            torch.pjrt.synchronize()  # type: ignore[attr-defined]
        torch.pjrt.synchronize()  # type: ignore[attr-defined]
        for tensor in chain:
            with pytest.raises(IndexError, match="index 3"):
                tensor.cpu()
        assert torch.equal(fine.cpu(), base("cpu") + 1)


def test_a_training_step_raises_at_its_loss() -> None:
    table = torch.nn.Embedding(5, 4).to("pjrt")
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
    for step in range(4):
        ids = torch.tensor([1, 2, 7 if step == 2 else 3]).to("pjrt")
        optimizer.zero_grad()
        loss = table(ids).square().mean()
        loss.backward()
        optimizer.step()
        if step == 2:
            with pytest.raises(IndexError, match=r"aten::embedding: index 7 .*size 5"):
                loss.item()
            break
        assert loss.item() > 0


def test_a_program_from_the_cache_checks_too(tmp_path: Any) -> None:
    program = """
import torch
x = torch.arange(3.0).to("pjrt")
try:
    print(x[torch.tensor([5]).to("pjrt")].cpu())
except IndexError as error:
    print("index 5 is out of bounds for dimension 0 with size 3" in str(error), "<string>:5" in str(error))
print(torch.pjrt.metrics()["executables_loaded"] > 0)
"""
    assert output(program, TORCH_PJRT_CACHE_DIR=str(tmp_path)).split() == ["True", "True", "False"]
    assert output(program, TORCH_PJRT_CACHE_DIR=str(tmp_path)).split() == ["True", "True", "True"]


def test_a_loop_of_checked_steps_compiles_nothing_new() -> None:
    table = base("pjrt")
    compiled = []
    for step in range(6):
        before = torch.pjrt.metrics()["executables_compiled"]  # type: ignore[attr-defined]
        rows = table[torch.tensor([step % 3]).to("pjrt")]
        assert rows.sum().item() == base("cpu")[step % 3].sum().item()
        compiled.append(torch.pjrt.metrics()["executables_compiled"] - before)  # type: ignore[attr-defined]
    assert compiled[2:] == [0] * 4


def test_every_check_that_fails_spoils_what_depends_on_it() -> None:
    x, y = base("pjrt"), base("pjrt")
    a = x.index_select(0, torch.tensor([9]).to("pjrt"))
    b = y.index_select(0, torch.tensor([77]).to("pjrt"))
    for tensor in (a, b, a, b):
        with pytest.raises(IndexError, match="is out of bounds for dimension 0 with size 3"):
            tensor.cpu()


def test_two_programs_with_findings_both_raise() -> None:
    with torch.pjrt.eager_mode("async"):  # type: ignore[attr-defined]
        for text in ("first", "second"):
            with pytest.raises(RuntimeError, match=text):
                torch._assert_async(torch.tensor(0, device="pjrt"), text)
                torch.pjrt.synchronize()  # type: ignore[attr-defined]
    torch.pjrt.synchronize()  # type: ignore[attr-defined]


def test_what_leaves_the_device_has_been_checked() -> None:
    program = """
import numpy as np, torch
x = torch.arange(12.0).reshape(3, 4)
bad = torch.tensor([9])
def wrong():
    return x.to("pjrt:0").index_select(0, bad.to("pjrt:0"))
for leave in (lambda t: t.to("pjrt:1"), np.from_dlpack, torch.pjrt.to_jax):
    try:
        leave(wrong())
        print("left")
    except IndexError as error:
        print("index 9" in str(error))
"""
    assert output(program, JAX_NUM_CPU_DEVICES="2").split() == ["True"] * 3


def test_a_checked_result_gives_its_memory_back_at_once() -> None:
    big = torch.ones(64, 4096, device="pjrt")
    index = torch.tensor([1, 2, 3]).to("pjrt")
    torch.pjrt.synchronize()  # type: ignore[attr-defined]
    before = torch.pjrt.memory_allocated()  # type: ignore[attr-defined]
    with torch.pjrt.eager_mode("async"):  # type: ignore[attr-defined]
        rows = big.index_select(0, index)
        assert torch.pjrt.memory_allocated() == before + 3 * 4096 * 4  # type: ignore[attr-defined]
        del rows
        assert torch.pjrt.memory_allocated() == before  # type: ignore[attr-defined]
