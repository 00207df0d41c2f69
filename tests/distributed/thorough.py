"""What takes minutes: more processes, each fault. `make distributed` runs it with the tests beside it."""

from __future__ import annotations

import signal

import pytest
import torch

from . import test_faults, test_local_mesh, test_torchrun
from .ranks import run_ranks, said, store_elsewhere, succeed

NAME = torch._C._get_privateuse1_backend_name()


@pytest.mark.parametrize("size", [3, 4])
def test_every_collective_gives_what_gloo_gives(size: int) -> None:
    succeed("collectives", size=size)


@pytest.mark.parametrize("fault", sorted(test_faults.FAULTS.keys() - set(test_faults.OFTEN)))
def test_a_fault_is_an_error_that_says_who_and_what(fault: str) -> None:
    test_faults.check(fault)


@pytest.mark.parametrize(
    "fault",
    [
        "rank_0_is_killed_before_the_first_collective",
        "rank_0_is_killed_during_a_collective",
        "rank_0_is_killed_in_strict_mode",
    ],
)
def test_rank_0_dies_where_the_store_is_elsewhere(fault: str) -> None:
    with store_elsewhere() as environment:
        test_faults.check(fault, environment)


def test_ranks_go_on_without_one_that_has_ended_well() -> None:
    with store_elsewhere() as environment:
        ended = run_ranks("faults", "rank_0_ends_long_before_the_others", size=3, environment=environment)
    assert ended[0].code == 0, said(ended)
    for others in ended[1:]:
        assert "all_reduce(op=SUM) of float32 (3,), failed" in others.out, said(ended)
        assert "Rank 0 has ended" in others.out, said(ended)


def test_an_error_ends_the_other_ranks_as_it_ends_any_program() -> None:
    ended = run_ranks("faults", "an_error_ends_the_process", size=3)
    assert [e.code for e in ended] == [-signal.SIGKILL, 5, 5], said(ended)


def test_nothing_is_left_of_ranks_that_are_killed() -> None:
    ended = run_ranks("faults", "all_ranks_are_killed", size=3)  # which fails if something is
    assert [e.code for e in ended] == [-signal.SIGKILL] * 3, said(ended)


def test_models_train_in_parallel_as_alone_in_every_way() -> None:
    succeed("parallel")


def test_checkpoints_are_saved_resharded_and_saved_in_the_background() -> None:
    succeed("parallel", "checkpoints_are_resharded", environment={"BACKEND": f"cpu:gloo,{NAME}:{NAME}"})


def test_collectives_in_graphs_with_options_that_change_their_programs() -> None:
    succeed("compiled_options")


def test_collectives_in_compiled_graphs_of_a_mesh_of_two_dimensions() -> None:
    succeed("compiled", size=4)


def test_a_mesh_of_two_dimensions() -> None:
    succeed("parallel", "fsdp2_hybrid_over_two_dimensions", "ddp", "pipelines", size=4)


@pytest.mark.parametrize("example", ["tensor", "pipeline", "context", "experts"])
def test_the_examples_train_under_torchrun(example: str) -> None:
    test_torchrun.check(f"{example}_digits.py")


def test_the_example_trains_with_ddp_under_torchrun() -> None:
    test_torchrun.check("fsdp_digits.py", "--parallel", "ddp", "--epochs", "6")


def test_the_tensor_parallel_example_trains_in_one_process() -> None:
    test_torchrun.check("tensor_digits.py", launched=False)


def test_dtensors_over_four_devices_of_one_process() -> None:
    test_local_mesh.check()


def test_models_train_in_two_and_three_ways_at_once() -> None:
    succeed("combined", size=8)
