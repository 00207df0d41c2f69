"""The harness tells right from wrong, and says of each case which it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from torch_pjrt.eager import trace

from . import batch, judge
from .case import Case
from .place import DEVICE, place
from .units import Unit, entries

UNIT = Unit("op_db", "add", "float32")


def row_of(monkeypatch: pytest.MonkeyPatch, program: Any, *inputs: Any) -> batch.Row:
    """What a program gives that the harness is made to take for a variant of `add`."""

    def make(_unit: Unit, _limit: int | None) -> Iterator[Case]:
        yield Case("0", inputs, program)

    monkeypatch.setitem(batch.OP_VARIANTS, "made up", make)
    monkeypatch.setenv("TORCH_PJRT_FALLBACK", "silent")
    return batch.run(UNIT, "made up")


def elsewhere(t: Tensor) -> bool:
    return t.device.type == DEVICE


@pytest.mark.parametrize(
    ("status", "program"),
    [
        ("native", lambda i, _: i[0] + 1),
        ("wrong", lambda i, _: i[0] + (2 if elsewhere(i[0]) else 1)),
        ("wrong", lambda i, _: i[0].double() if elsewhere(i[0]) else i[0]),
        ("wrong", lambda i, _: i[0].cpu()),
        ("wrong", lambda i, _: i[0].add_(2 if elsewhere(i[0]) else 1) * 0),
        ("wrong", lambda i, _: i[0] if elsewhere(i[0]) else i[0].reshape(7)),
        ("raises", lambda i, _: i[0].reshape(7) if elsewhere(i[0]) else i[0]),
        ("native", lambda i, _: i[0].reshape(7)),
        ("wrong", lambda i, _: i[0].uniform_(0, 1.5 if elsewhere(i[0]) else 1)),
        ("native", lambda i, _: i[0].uniform_()),
    ],
)
def test_a_case_ends_as_what_it_is(status: str, program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    row = row_of(monkeypatch, program, torch.linspace(0, 1, 400).reshape(20, 20))
    assert dict(row.counts) == {status: 1}, row.failures


def test_one_faulty_case_does_not_spoil_its_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(inputs: Any, _: list[Tensor]) -> Tensor:
        x: Tensor = inputs[0]
        return torch.sinc(x) if inputs[1] == 1 else x * 2

    applied = trace.apply

    def breaking(op: Any, *args: Any) -> Any:
        if "sinc" in op.name():
            raise TypeError("no such thing")
        return applied(op, *args)

    def make(_unit: Unit, _limit: int | None) -> Iterator[Case]:
        for i in range(3):
            yield Case(str(i), (torch.ones(3), i), program)

    monkeypatch.setattr(trace, "apply", breaking)
    monkeypatch.setitem(batch.OP_VARIANTS, "made up", make)
    row = batch.run(UNIT, "made up")
    assert dict(row.counts) == {"native": 2, "raises": 1}
    assert row.failures[0]["sample"] == "1"


def test_tensors_arrive_as_they_lie() -> None:
    base = torch.arange(24).reshape(4, 6).to(torch.complex64)
    first, second, third = place([base[1:, ::2], base.T.conj(), torch.ones(3, 1).expand(3, 5)])
    assert (first.stride(), first.storage_offset()) == ((6, 2), 6)
    assert second.is_conj()
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    assert third.stride() == (1, 0)
    assert torch.equal(first.cpu(), base[1:, ::2])
    assert torch.equal(second.cpu().resolve_conj(), base.T.conj().resolve_conj())


def test_tolerances_are_those_that_pytorchs_tests_grant() -> None:
    assert judge.tolerance(UNIT) == judge.Tolerance()
    granted = judge.tolerance(Unit("op_db", "nn.functional.conv_transpose3d", "float32"))
    assert granted.atol is not None and granted.atol >= 1e-4


def test_a_result_nearer_to_float64_than_the_cpus_is_right() -> None:
    exact = torch.tensor([1.0, 2.0], dtype=torch.float64)
    cpu, ours = torch.tensor([1.01, 2.0]), torch.tensor([1.001, 2.001])
    assert judge.closer([ours], [cpu], [exact], [], judge.Tolerance())
    assert not judge.closer([cpu], [ours], [exact], [], judge.Tolerance())
    assert judge.closer([cpu], [ours], [exact], [[exact + (cpu - exact).abs().max()]], judge.Tolerance())
    assert judge.difference([ours], [cpu], judge.Tolerance()) is not None


def test_the_databases_are_whole() -> None:
    assert len(entries("op_db")) >= 700
    assert {"_foreach_add", "_foreach_norm"} <= set(entries("foreach_db"))
    assert len(entries("module_db")) >= 100
    assert {"Adam", "SGD", "LBFGS"} <= set(entries("optim_db"))
