"""How long kernels run, from the schedule of their machine code."""

from __future__ import annotations

import pytest

from torch_pjrt.plan.hlo import parse
from torch_pjrt.plan.kernels import Kernel, Sort, cycles_of, of_device, read, schedules_of
from torch_pjrt.plan.schedule import Speeds, estimate

# A loop of 0x60 bundles. All but 8 are skipped while the pipeline fills; in them 3 bundles are of a row's first block,
# 0x40 are the work on a block, 4 of a row's last.
SCHEDULE = """
LB: loop body
   0x5   :  { %1 = vsyncpa [#allocation6], 0 } /* Start region 1 */
  0x10 LB: > { %s1 = smov 0 }
  0x14   : > { %9 = sbr.rel (%p1_p2) target = $region9 }
  0x15   : > { %2 = sbr.rel (%p3_p0) target = $region5 }
  0x18   : > { } /* End region 4 */
  0x19 PF: > { %s2 = sld [smem:[#a]] } /* Start/End empty region 5 :: Start region 6 */
  0x20   : > { %3 = sbr.rel (%p4_p0) target = $region7 }
  0x60   : > { %v2 = vld [vmem:[%s1]] } /* Start region 7 */
  0x61   : > { %3 = sbr.rel (%p5_p0) target = $region8 }
  0x65   : > { %v2 = vld [vmem:[%s1]] } /* End region 7 :: Start region 8 */
  0x6c   : > { %v3 = vld [vmem:[%s1]] } /* Start region 9 */
  0x70   :  { %38 = sbr.rel (!%p17_p3) target = $region11 }
"""
OF_ONE = Sort("causal", 1024, 1024, 128)
PLACE = "jit(flat)/|a|train.py:7 in f aten::sdpa/shard_map/splash-forward-causal-2x4x4096x4096x128/vmap(static)/"
FORWARD = f"{PLACE}splash_mha_fwd_residuals/pallas_call"


def test_a_schedule_says_what_a_turn_takes() -> None:
    assert read(SCHEDULE) == Kernel(always=0x60 - 0x40 - 4 - 4, body=0x40, edges=4 + 4)


def test_a_loop_within_the_loop_leaves_the_time_open() -> None:
    assert read(SCHEDULE.replace("0x20   :", "0x20 LB:")) is None
    assert read("") is None


@pytest.mark.parametrize(
    ("mask", "phase", "worked"), [("causal", "fwd", 10), ("full", "fwd", 16), ("causal", "dkv", 10)]
)
def test_blocks_above_the_diagonal_are_turned_over_but_not_worked_on(mask: str, phase: str, worked: int) -> None:
    place = FORWARD.replace("causal", mask).replace("fwd", phase)
    known = {(Sort(mask, 1024, 1024, 128), phase): Kernel(100, 1000, 50)}
    assert cycles_of(place, known) == 2 * 4 * (16 * 100 + worked * 1000 + 4 * 50)


def test_other_kernels_have_no_estimate() -> None:
    assert cycles_of("jit(f)/my_kernel/pallas_call", {}) is None
    assert cycles_of(FORWARD, {}) is None
    assert schedules_of("no kernel in it", "v6e") == {}


def test_a_kernel_says_of_itself_on_lines_of_its_own() -> None:
    """The text around a kernel as libtpu writes it, and a computation after it."""
    text = f"""%body (p: bf16[2,4,4096,128]) -> bf16[2,4,4096,128] {{
  %p = bf16[2,4,4096,128]{{3,2,1,0}} parameter(0)
  ROOT %splash_mha_fwd_residuals.1 = bf16[2,4,4096,128]{{3,2,1,0}} custom-call(%p), custom_call_target="tpu_custom_call", frontend_attributes={{kernel_metadata={{
"xprof_metadata":"{{\\"block_q\\": 512}}"
}}}}, metadata={{op_name="{FORWARD}"}}
}}

ENTRY %main (p: bf16[2,4,4096,128]) -> bf16[2,4,4096,128] {{
  %p = bf16[2,4,4096,128]{{3,2,1,0}} parameter(0)
  ROOT %c = bf16[2,4,4096,128]{{3,2,1,0}} call(%p), to_apply=%body
}}
"""  # noqa: E501
    kernel = Kernel(100, 1000, 50)
    speeds = Speeds(1.0, 1e12, 1e9, ((0,),), {(OF_ONE, "fwd"): kernel})
    found = estimate(parse(text), [], speeds)
    assert found.compute == 8 * (1600 + 10 * 1000 + 200)
    assert not found.unknown
    assert estimate(parse(text), [], Speeds(1.0, 1e12, 1e9, ((0,),))).unknown == {"custom-call": 1}


def test_no_kernel_is_faster_than_the_chips_peak() -> None:
    fast = Kernel(100, 1000, 50)
    # v5e: 197 TFLOP/s at 1.5 GHz; two products of 1024 x 1024 x 128 take 2.73 us of it.
    assert of_device(fast, OF_ONE, "fwd", "v5e").body == pytest.approx(4 * 1024 * 1024 * 128 / 197e12 * 1.5e9, rel=1e-3)
    assert of_device(fast, OF_ONE, "dkv", "tpu7x").body == pytest.approx(
        8 * 1024 * 1024 * 128 / (2307e12 / 2) * 2.2e9, rel=1e-3
    )
    slow = Kernel(100, 10**6, 50)
    assert of_device(slow, OF_ONE, "dq", "v6e") == slow
    assert of_device(slow, OF_ONE, "dq", "v5p") == Kernel(50, 500_000, 25)  # two cores, each with half of the grid
