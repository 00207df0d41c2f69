"""Random programs leave on the device, in every eager mode, exactly what they leave on the CPU.

TORCH_PJRT_FUZZ_N programs in total (1,000 unless set), from TORCH_PJRT_FUZZ_SEED on (0 unless set), on
TORCH_PJRT_FUZZ_DEVICE: "pjrt:1", say, with JAX_NUM_CPU_DEVICES=2.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import hypothesis
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings

from .programs import Program, Raised, compare, differences, programs, run, smallest
from .rarer_steps import KINDS
from .writer import Kind, Writer

MODES = ["strict", "async", "fused"]
THREADS = 3
COUNT = int(os.environ.get("TORCH_PJRT_FUZZ_N", "1000"))
SEED = int(os.environ.get("TORCH_PJRT_FUZZ_SEED", "0"))
DEVICE = os.environ.get("TORCH_PJRT_FUZZ_DEVICE") or torch._C._get_privateuse1_backend_name()


def eager_mode(mode: str) -> contextlib.AbstractContextManager[None]:
    """The device's eager mode, for a while."""
    return contextlib.nullcontext() if DEVICE == "cpu" else torch.get_device_module(DEVICE).eager_mode(mode)


def random_programs(count: int, seed: int, *, drawing: bool = False) -> list[Program]:
    found: list[Program] = []

    @hypothesis.seed(seed)
    @_unshrunk(count)
    @given(programs(drawing=drawing))
    def collect(program: Program) -> None:
        found.append(program)

    collect()
    return found


def _unshrunk(count: int) -> settings:
    # Hypothesis shrinks the choices behind a program; leaving out lines is quicker and leaves less.
    return settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_random_programs_leave_what_they_leave_on_cpu(mode: str) -> None:
    @hypothesis.seed(SEED * len(MODES) + MODES.index(mode))
    @_unshrunk(-(-COUNT // len(MODES)))
    @given(programs())
    def holds(program: Program) -> None:
        with eager_mode(mode):
            if differences(program, DEVICE):
                least = smallest(program, lambda shorter: bool(differences(shorter, DEVICE)))
                said = "\n".join(differences(least, DEVICE)) or "(not again when run alone)"
                pytest.fail(f"in mode {mode}:\n{said}\n\n{least.source(DEVICE)}", pytrace=False)

    holds()


@pytest.mark.slow
def test_programs_that_draw_leave_the_same_in_every_mode() -> None:
    for program in random_programs(-(-COUNT // 50), SEED, drawing=True):
        seen = []
        for mode in MODES:
            with eager_mode(mode):
                seen.append(run(program, DEVICE))
        for mode, left in zip(MODES[1:], seen[1:], strict=True):
            found = "\n".join(compare(seen[0], left, program.tolerance))
            assert not found, f"in mode {mode} (on the CPU: in mode strict):\n{found}\n\n{program.source(DEVICE)}"


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    """Threads that hand over to each other some hundred times as often as Python lets them."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(2e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_programs_that_run_at_once_in_threads_leave_what_they_leave_alone(mode: str, frequent_switches: None) -> None:
    found = random_programs(-(-COUNT // 50), SEED + 1)
    with eager_mode(mode), ThreadPoolExecutor(THREADS) as pool:
        for program, said in zip(found, pool.map(lambda p: differences(p, DEVICE), found), strict=True):
            assert not said, "\n".join([f"in mode {mode}, beside others:", *said, "", program.source(DEVICE)])


def test_random_programs_have_every_kind_of_line_and_some_raise() -> None:
    written: dict[str, int] = dict.fromkeys(KINDS, 0)

    class Counting(Writer):
        def add(self, of: Kind) -> None:
            before = len(self.lines)
            super().add(of)
            name = next(n for n, k in KINDS.items() if k is of)
            written[name] += len(self.lines) > before

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.eager.programs.Writer", Counting)
        found = random_programs(200, seed=1)
    raised = sum(isinstance(seen, Raised) for program in found for seen in run(program, "cpu"))
    assert min(written.values()) > 0, written
    assert 0 < raised < sum(len(program.lines) for program in found) / 10


def test_a_program_leaves_the_same_each_time_it_runs() -> None:
    for program in random_programs(100, seed=2):
        assert differences(program, "cpu") == []


def test_a_program_printed_as_source_runs_by_itself() -> None:
    program = random_programs(5, seed=3)[-1]
    sound = Program(tuple(n for n in program.lines if n not in _raising(program)), program.dtypes)
    done = subprocess.run([sys.executable, "-c", sound.source("cpu")], capture_output=True, text=True, check=True)
    assert "torch." in done.stdout


def _raising(program: Program) -> set[str]:
    return {seen.line for seen in run(program, "cpu") if isinstance(seen, Raised)}


def test_the_smallest_failing_program_keeps_only_the_lines_it_needs() -> None:
    lines = ("t1 = torch.ones(2)", "t2 = t1[1:]", "t3 = torch.zeros(2)", "t2.add_(1)", "t3.add_(1)", "del t2")
    program = Program(lines, frozenset({torch.float32}))

    def fails(shorter: Program) -> bool:
        return any("t1" in str(seen) and "2." in str(seen) for seen in run(shorter, "cpu"))

    assert smallest(program, fails).lines == ("t1 = torch.ones(2)", "t2 = t1[1:]", "t2.add_(1)")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("t1 = torch.ones(2, 2); t1[0, 0] = 1.001", "t1 is"),
        ("t1 = torch.ones(2, 2, dtype=torch.float64)", "dtype"),
        ("t1 = torch.ones(2, 2).t().contiguous().t()", "strides"),
        ("t1 = torch.ones(2, 2, requires_grad=True)", "requires_grad"),
        ("t1 = torch.ones(5)[1:].view(2, 2)", "storage_offset"),
        ("t1 = t1.sum(9)", "raised"),
        ("t1 = torch.ones(2, 2); t0 = t1", "tensors left"),
    ],
)
def test_a_device_that_does_something_else_is_noticed(wrong: str, said: str) -> None:
    # The "device" that a line can tell: one line that does one thing on the CPU and another on `meta`.
    line = "if device == 'cpu': t1 = torch.ones(2, 2)\nelse: " + wrong
    program = Program((line,), frozenset({torch.float32}))
    found = "\n".join(differences(program, "meta"))
    assert said in found
