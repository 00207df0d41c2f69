"""Reading HLO, and what a schedule takes."""

from __future__ import annotations

import pytest

from torch_pjrt.plan.hlo import arrays, groups, parse
from torch_pjrt.plan.schedule import Speeds, estimate, largest, place_in_words

# A product that a gather overlaps with, a loop of three turns with a reduce-scatter in it, and what comes of them.
PROGRAM = """HloModule m, is_scheduled=true

%scatter (p: f32[8,4]) -> f32[2,4] {
  %p = f32[8,4]{1,0} parameter(0)
  %r = f32[8,4]{1,0} all-reduce(%p), replica_groups={{0,1,2,3}}, to_apply=%sum
  ROOT %d = f32[2,4]{1,0} dynamic-slice(%r, %r), dynamic_slice_sizes={2,4}
}

%body (s: (f32[8,4])) -> (f32[8,4]) {
  %s = (f32[8,4]{1,0}) parameter(0)
  %x = f32[8,4]{1,0} get-tuple-element(%s), index=0
  %big = f32[100,4]{1,0:T(8,128)} fusion(%x), kind=kLoop, MADE_AT, backend_config={"estimated_cycles":"50"}
  %f = f32[2,4]{1,0} fusion(%x), kind=kCustom, calls=%scatter
  ROOT %t = (f32[8,4]{1,0}) tuple(%x)
}

ENTRY %main (a: bf16[16,4], b: f32[8,4]) -> (f32[8,4]) {
  %a = bf16[16,4]{1,0:T(8,128)(2,1)} parameter(0)
  %b = f32[8,4]{1,0} parameter(1)
  %g = (bf16[16,4]{1,0}, bf16[64,4]{1,0}) all-gather-start(%a), replica_groups=[1,4]<=[4], dimensions={0}
  %m = f32[8,4]{1,0:T(8,128)S(1)} fusion(%b), kind=kOutput, calls=%d, backend_config={"estimated_cycles":"100"}
  %h = bf16[64,4]{1,0} all-gather-done(%g)
  %i = (f32[8,4]{1,0}) tuple(%m)
  %w = (f32[8,4]{1,0}) while(%i), condition=%cond, body=%body, backend_config={"known_trip_count":{"n":"3"}}
  %o = f32[8,4]{1,0} get-tuple-element(%w), index=0
  ROOT %out = (f32[8,4]{1,0}) tuple(%o)
}
""".replace("MADE_AT", 'metadata={op_name="jit(f)/|a|train.py:7 in f aten::mm|backward/dot"}')


def speeds(interconnect: float) -> Speeds:
    return Speeds(1.0, 1e12, interconnect, ((0, 0), (1, 0), (0, 1), (1, 1)))


def test_a_transfer_that_a_product_hides_takes_no_time() -> None:
    # 64 x 4 bf16 = 512 bytes gathered, 384 of them sent; 128 bytes reduced and scattered, 96 sent, three times.
    found = estimate(parse(PROGRAM), [("fsdp", 4)], speeds(1e9))
    assert found.compute == 100 + 3 * 50
    assert found.seconds == pytest.approx(250 + 3 * 96e-9)
    assert found.collectives == {
        ("all-gather", "fsdp"): [1, 384, pytest.approx(384e-9)],
        ("reduce-scatter", "fsdp"): [3, 288, pytest.approx(288e-9)],
    }


def test_what_is_read_from_a_stack_is_the_slice() -> None:
    found = estimate(
        parse("""%f (p: f32[9,8], k: s32[]) -> f32[1,8] {
  %p = f32[9,8]{1,0} parameter(0)
  %k = s32[] parameter(1)
  ROOT %s = f32[1,8]{1,0} dynamic-slice(%p, %k, %k), dynamic_slice_sizes={1,8}
}

ENTRY %main (a: f32[9,8], k: s32[]) -> f32[1,8] {
  %a = f32[9,8]{1,0} parameter(0)
  %k = s32[] parameter(1)
  ROOT %r = f32[1,8]{1,0} fusion(%a, %k), kind=kLoop, calls=%f
}
"""),
        [("fsdp", 1)],
        speeds(1.0),
    )
    assert found.nbytes == 32 + 4 + 32


@pytest.mark.parametrize(("start", "bound", "step", "turns"), [(0, 7, 1, 7), (2, 8, 2, 3), (0, 7, 2, 4)])
def test_a_loop_turns_as_often_as_it_counts(start: int, bound: int, step: int, turns: int) -> None:
    module = parse(f"""%cond (s: (s32[], f32[4])) -> pred[] {{
  %s = (s32[], f32[4]) parameter(0)
  %n = s32[] get-tuple-element(%s), index=0
  %c = s32[] constant({bound})
  ROOT %less = pred[] compare(%n, %c), direction=LT
}}

%body (s: (s32[], f32[4])) -> (s32[], f32[4]) {{
  %s = (s32[], f32[4]) parameter(0)
  %n = s32[] get-tuple-element(%s), index=0
  %x = f32[4] get-tuple-element(%s), index=1
  %one = s32[] constant({step})
  %next = s32[] add(%n, %one)
  %f = f32[4]{{0}} fusion(%x), kind=kLoop, calls=%none, backend_config={{"estimated_cycles":"10"}}
  ROOT %t = (s32[], f32[4]) tuple(%next, %f)
}}

ENTRY %main (a: f32[4]) -> (s32[], f32[4]) {{
  %a = f32[4]{{0}} parameter(0)
  %z = s32[] constant({start})
  %zero = s32[] copy(%z)
  %i = (s32[], f32[4]) tuple(%zero, %a)
  ROOT %w = (s32[], f32[4]) while(%i), condition=%cond, body=%body
}}
""")
    assert estimate(module, [("fsdp", 1)], speeds(1.0)).seconds == 10 * turns


def test_what_is_not_hidden_is_waited_for() -> None:
    found = estimate(parse(PROGRAM), [("fsdp", 4)], speeds(1.0))
    assert found.seconds == pytest.approx(384 + 3 * (50 + 96))
    assert found.exposed == pytest.approx(284 + 3 * 96)


def test_the_largest_tensors_are_those_alive_at_the_peak() -> None:
    found = largest(parse(PROGRAM))
    assert found[0] == {
        "what": "/a/train.py:7 in f: aten::mm (backward)",
        "shape": "f32[100,4]",
        "nbytes": 1600,
        "count": 1,
    }
    assert "bf16[64,4]" not in [f["shape"] for f in found]  # nothing reads it any more


def test_types_have_sizes_and_memory_spaces() -> None:
    found = list(arrays("(bf16[2,3]{1,0:T(8,128)(2,1)S(1)}, s4[8]{0}, f32[]{:T(128)})"))
    assert [(a.dtype, a.sizes, a.space, a.nbytes) for a in found] == [
        ("bf16", (2, 3), 1, 12), ("s4", (8,), 0, 4), ("f32", (), 0, 4),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("replica_groups={{0,1},{2,3}}", [[0, 1], [2, 3]]),
        ("replica_groups=[2,2]<=[4]", [[0, 1], [2, 3]]),
        ("replica_groups=[2,2]<=[2,2]T(1,0)", [[0, 2], [1, 3]]),
        ("replica_groups=mesh['a'=2,'b'=2] {'b'}", [[0, 1], [2, 3]]),
        ("replica_groups=mesh['a'=2,'b'=2] {'a'}", [[0, 2], [1, 3]]),
        ("replica_groups=mesh['a'=4] {'a':(1)2}", [[0, 2], [1, 3]]),
        ("replica_groups=mesh['a'=4] {'a':(2)2}", [[0, 1], [2, 3]]),
        ("source_target_pairs={{0,1},{1,0}}", [[0, 1], [1, 0]]),
        ("", [[0, 1, 2, 3]]),
    ],
)
def test_groups_are_read_however_they_are_written(text: str, expected: list[list[int]]) -> None:
    assert groups(f", channel_id=1, {text}, x=1", 4) == expected


def test_a_place_is_the_users_line_and_operation() -> None:
    assert place_in_words("jit(f)/|x|t.py:3 in g aten::add.Tensor|recompute/add") == (
        "/x/t.py:3 in g: aten::add.Tensor (recomputed)"
    )
    assert place_in_words("arrays[3]") == "arrays[3]"


def test_a_collective_that_other_cores_do_is_counted_and_hidden_like_any() -> None:
    # As tpu7x's SparseCores do them: 64 x 4 bf16 = 512 bytes reduced by 4, so 2 x 512 x 3 / 4 sent.
    found = estimate(
        parse("""%called (p: bf16[64,4], t: token[]) -> bf16[64,4] {
  %t = token[] parameter(1)
  %p = bf16[64,4]{1,0} parameter(0)
  ROOT %r = bf16[64,4]{1,0} all-reduce(%p), replica_groups=mesh['axis_0'=4] {'axis_0'}, to_apply=%sum
}, execution_thread="sparsecore"

ENTRY %main (a: bf16[64,4], b: f32[8,4]) -> bf16[64,4] {
  %a = bf16[64,4]{1,0} parameter(0)
  %b = f32[8,4]{1,0} parameter(1)
  %k = token[] custom-call(), custom_call_target="PrepareAsyncCallDone"
  %s = ((bf16[64,4]{1,0}, token[]), bf16[64,4]{1,0}) call-start(%a, %k), async_execution_thread="sparsecore", \
to_apply=%called
  %m = f32[8,4]{1,0} fusion(%b), kind=kOutput, calls=%f, backend_config={"estimated_cycles":"100"}
  ROOT %d = bf16[64,4]{1,0} call-done(%s)
}
"""),
        [("fsdp", 4)],
        speeds(1.0),
    )
    assert found.collectives == {("all-reduce", "fsdp"): [1, 768, pytest.approx(768)]}
    assert (found.compute, found.exposed) == (100, pytest.approx(668))
