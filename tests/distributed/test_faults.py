"""What goes wrong between ranks is an error in good time, on the ranks that are still there, and says who and what."""

from __future__ import annotations

import re

import pytest

from .ranks import run_ranks, said

# What each rank prints; None: the rank itself ends, or hangs until it is killed.
BEHIND = "DistBackendError: collective 2 of this process group, all_reduce.op=SUM. of float32 .3,., "
DIFFER = r"DistBackendError: the ranks of this process group do not call the same collectives: as number \d+, "
FAULTS: dict[str, list[str | None]] = {
    "a_rank_dies_before_the_first_collective": [
        "DistBackendError: rank 1 ended before coming to the first collective .*, all_reduce",
        None,
    ],
    "a_rank_dies_between_collectives": [BEHIND + r"failed: .*Rank 1 last said", None],
    "a_rank_hangs": [BEHIND + r"did not end within 6 s. Rank 1 last said it had come to number 1, all_reduce", None],
    "a_rank_hangs_in_place_of_a_send": [
        None,
        r"DistBackendError: recv of float32 .3,. from rank 0 did not end within 6",
    ],
    "rank_0_is_killed_before_the_first_collective": [
        None,
        *[r"DistBackendError: rank 0.* ended before coming to the first collective .*, all_reduce\(op=SUM\)"] * 2,
    ],
    "rank_0_is_killed_during_a_collective": [None, *[BEHIND + r"failed: .*Rank 0 has ended"] * 2],
    "rank_0_is_killed_in_strict_mode": [
        None,
        *[r"DistBackendError: rank 0.* ended before coming to collective 2 of this process group, all_reduce"] * 2,
    ],
    "rank_0_is_killed_during_a_compiled_graph": [
        None,
        *[r"DistBackendError: collective 2 of .*, a compiled inference graph \(\w+\) with .*Rank 0 has ended"] * 2,
    ],
    "rank_0_is_killed_before_a_graph_is_compiled": [
        None,
        *[r"DistBackendError: rank 0.* ended before coming to the compiling of a graph with collectives"] * 2,
    ],
    "rank_0_is_killed_during_a_send": [
        None,
        r"DistBackendError: recv of float32 \(3,\) from rank 0 failed: .*Rank 0 has ended",
        BEHIND + r"failed: .*Rank 0 has ended",
    ],
    "rank_0_raises": [None, *[BEHIND + r"failed: .*Rank 0 has ended"] * 2],
    "shapes_differ": [DIFFER + r"rank \d calls .*float32 \([34],\), rank \d calls .*float32 \([34],\)"] * 2,
    "collectives_differ": [DIFFER + r"rank \d calls (all_reduce|broadcast).*, rank \d calls (all_reduce|broadcast)"]
    * 2,
    "dtypes_differ_in_strict_mode": [DIFFER + r".*float(32|64) \(3,\), rank \d calls .*float(32|64) \(3,\)"] * 2,
    "a_rank_dies_between_compiled_graphs": [
        r"DistBackendError: collective 2 of .*, a compiled inference graph \(\w+\) with 1 all_reduce, .*Rank 1 last",
        None,
    ],
    "a_rank_does_not_compile_what_the_others_do": [
        None,
        r"rank 0 .*did not come to the compiling of a graph with collectives \(inference\) within 5 s",
    ],
    "ranks_call_different_compiled_graphs": [DIFFER + r"rank \d calls a compiled inference graph \(\w+\) with"] * 2,
    "ctrl_c_while_a_compiled_graph_waits_for_another_rank": ["RuntimeError: interrupted after [12] s", None],
    "the_device_is_used_first": ["RuntimeError: init_process_group came after the first use of the device"] * 2,
    "a_second_init": ["ValueError: trying to initialize the default process group twice"] * 2,
    "a_world_size_larger_than_what_comes": [
        "DistStoreError: Timed out .* waiting for clients. 2/3 clients joined",
        None,
    ],
    "a_rank_outside_the_world": [None, "ValueError: rank 2 of a process group of 2: RANK must be 0 to 1"],
    "a_port_in_use": ["DistNetworkError: .*EADDRINUSE", None],
    "a_tensor_is_on_another_device": [r"RuntimeError: rank \d takes part .* with device pjrt:\d, but a tensor is on"]
    * 2,
    "a_tensor_is_on_the_cpu": ["RuntimeError: No backend type associated with device type cpu"] * 2,
    "sizes_do_not_fit": ["ValueError: all_gather: the output, shape .5,., must have 2 times the elements of the input"]
    * 2,
    "an_operation_that_the_dtype_has_not": ["ValueError: ReduceOp.BAND of torch.float32: bitwise"] * 2,
}


# What each takes is two processes and the time that something has to take; all of them: `make distributed`.
OFTEN = (
    "a_rank_dies_between_collectives",
    "a_rank_hangs",
    "dtypes_differ_in_strict_mode",
    "the_device_is_used_first",
    "rank_0_is_killed_during_a_collective",
)


@pytest.mark.parametrize("fault", OFTEN)
def test_a_fault_is_an_error_that_says_who_and_what(fault: str) -> None:
    check(fault)


def check(fault: str, environment: dict[str, str] | None = None) -> None:
    """The fault's ranks print what is said above."""
    ended = run_ranks("faults", fault, size=len(FAULTS[fault]), timeout=100, environment=environment)
    for rank, wanted in enumerate(FAULTS[fault]):
        if wanted is not None:
            assert re.search(wanted, ended[rank].out), said(ended)
