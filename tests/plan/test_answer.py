"""Rows, tables and the page, from what a compiler says."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from torch_pjrt.plan.answer import Cost, Plan
from torch_pjrt.plan.compiled import Outcome
from torch_pjrt.plan.plots import _squarified, treemap
from torch_pjrt.plan.rows import row_of
from torch_pjrt.plan.sharding import layouts, parse_mesh
from torch_pjrt.plan.tape import Finding
from torch_pjrt.plan.topology import parse_topology

from .check import Layers, tape_of, training

SAID: dict[str, Any] = {
    "argument_bytes": 1 << 30, "output_bytes": 1 << 29, "alias_bytes": 1 << 29, "temp_bytes": 3 << 30,
    "generated_code_bytes": 0, "planned_peak_bytes": 0, "accessed_bytes": 81.9e9, "seconds": 1.0,
    "compute_seconds": 0.75, "exposed_seconds": 0.25, "unknown": {}, "loops": [[40, 5]], "lower_seconds": 1.0,
    "collectives": [["all-gather", "fsdp", 4.0, 2e9, 0.01]], "peak_bytes": 1 << 30, "compile_seconds": 2.0,
    "largest": [
        {"what": "/a/train.py:7 in f: aten::mm (backward)", "shape": "f32[8,4]", "nbytes": 1 << 28, "count": 2},
    ],
}  # fmt: skip
REFUSED = """RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 20.50G of 15.75G hbm. Exceeded by 4.75G.

Total hbm usage >= 20.75G:
    reserved        256.00M

  Largest program allocations in hbm:

  1. Size: 2.00G
     Operator: op_name="jit(flat)/|a|train.py:9 in f aten::bmm/dot_general"
     Shape: f32[32,4096,4096]{2,1,0:T(8,128)}
     Unpadded size: 2.00G
     XLA label: fusion.1
     Allocation type: HLO temp
     ==========================

  2. Size: 1.00G
     Shape: bf16[8]{0}
     Allocation type: parameter
"""


def row(answer: dict[str, Any] | None, failure: str = "", topology: str = "v5e:2x2") -> Any:
    tape = tape_of(*training(Layers(layers=1))[:2])
    tape.model_flops, tape.flops = int(197e12), int(4 * 98.5e12)
    target = parse_topology(topology)
    mesh = parse_mesh(None, target.devices)
    return row_of(target, mesh, tape, layouts(tape, None, mesh), None, Outcome(answer, failure, False, 2.0))


def test_memory_is_arguments_temporaries_and_results_of_their_own() -> None:
    memory = row(SAID).memory
    assert (memory.total, memory.donated, memory.outputs, memory.capacity) == (4 << 30, 1 << 29, 0, 16 << 30)
    assert row(SAID).fits is True
    assert row(SAID | {"temp_bytes": 16 << 30}).fits is False


def test_mfu_is_needed_operations_over_time_and_peak() -> None:
    # 197 TFLOP in 1 s on 4 chips of 197 TFLOP/s.
    assert row(SAID).mfu == pytest.approx(0.25)


def test_the_roofline_is_the_longest_of_three() -> None:
    time = row(SAID).time
    assert (time.roofline, time.bound) == (pytest.approx(0.5), "compute")
    time = row(SAID | {"accessed_bytes": 819e9}).time
    assert (time.roofline, time.bound) == (pytest.approx(1.0), "memory")
    assert row(SAID | {"compute_seconds": 0.0}).time.best == pytest.approx(0.5)


def test_a_refusal_says_how_much_is_missing_and_of_what() -> None:
    found = row({"refusal": REFUSED, "peak_bytes": 1})
    assert found.fits is False
    assert (found.memory.total, found.memory.capacity) == (int(20.5 * 2**30), int(15.75 * 2**30))
    big = found.tensors[-1]
    assert (big.nbytes, big.shape, big.what, big.line) == (
        2 << 30, "f32[32,4096,4096]", "aten::bmm", "/a/train.py:9 in f",
    )  # fmt: skip


def test_a_refusal_may_name_the_temporaries_alone() -> None:
    said = "the total memory required for HLO temporaries (22.25G) exceeds available HBM (15.75G)."
    found = row({"refusal": f"RESOURCE_EXHAUSTED: Ran out of memory on HBM, {said}", "peak_bytes": 1})
    assert found.fits is False
    assert (found.memory.temporaries, found.memory.capacity) == (int(22.25 * 2**30), int(15.75 * 2**30))
    assert found.memory.total == found.memory.temporaries + found.memory.arguments


def test_another_refusal_and_a_crash_are_failures() -> None:
    assert "UNIMPLEMENTED: no" in row({"refusal": "UNIMPLEMENTED: no\nmore", "peak_bytes": 1}).failure
    assert row(None, "the compiler crashed (SIGSEGV)").failure == "the compiler crashed (SIGSEGV)"


def plan() -> Plan:
    rows = (
        row(SAID),
        row(SAID, topology="v5e:1"),
        row({"refusal": REFUSED, "peak_bytes": 1}, topology="v6e:2x2"),
        row(None, "the compiler took longer than 1 s"),
    )
    costs = (Cost("v5e:2x2", 4, 1.0, 4.0, False, 100), Cost("<b>", 1, 1.0, 5.0, True, 100))
    return Plan("<script>", rows, (Finding("host sync", "x.item()", "a.py:3 in f"),), 10, 40, costs, "USD", 1.0, 50)


def test_the_table_has_every_row_and_why_it_failed() -> None:
    text = str(plan())
    for words in (
        "v5e:2x2",
        "v5e:1x1",
        "NO",
        "20.50 GiB of 15.75 GiB",
        "longer than 1 s",
        "host sync",
        "a.py:3 in f",
        "USD",
    ):
        assert words in text


def test_json_has_everything() -> None:
    said = json.loads(json.dumps(plan().to_json()))
    assert [r["topology"] for r in said["rows"]] == ["v5e:2x2", "v5e:1x1", "v6e:2x2", "v5e:2x2"]
    assert said["rows"][0]["memory"]["total"] == 4 << 30
    assert said["rows"][0]["tokens_per_second"] == pytest.approx(24)
    assert said["findings"][0]["line"] == "a.py:3 in f"


class _Balanced(HTMLParser):
    """Fails where a tag is not closed by its own."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.seen.append(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_escaped_and_loads_nothing() -> None:
    page = plan().to_html()
    parser = _Balanced()
    parser.feed(page)
    assert parser.open == []
    assert parser.seen.count("svg") == 3  # memory, efficiency, and the treemap of the first row, which fits
    other = replace(plan(), rows=plan().rows[::-1]).to_html()  # the first with an answer does not fit
    assert other.count("<svg") == 4
    assert "<script" not in page and "<b>" not in re.sub(r"<p[^>]*><b>", "", page)
    links = re.findall(r"(?:https?:)?//[\w.]+", page)
    assert set(links) <= {"http://www.w3.org"}  # the name of SVG, which nothing fetches
    assert "src=" not in page and "@import" not in page and "url(" not in page


def test_a_page_without_answers_is_whole_too() -> None:
    failed = replace(plan(), rows=(row(None, "crashed"),), costs=(), findings=())
    assert "crashed" in failed.to_html()
    _Balanced().feed(failed.to_html())


def test_a_treemap_has_the_areas_of_its_sizes() -> None:
    sizes = [50, 25, 12, 8, 3, 1, 1]
    found = _squarified(sizes, 360.0)
    for size, (x, y, w, h) in zip(sizes, found, strict=True):
        assert w * h == pytest.approx(1000 * 360 * size / 100)
        assert x >= -1e-6 and x + w <= 1000 + 1e-6 and y >= -1e-6 and y + h <= 360 + 1e-6
    assert "free: 12.00 GiB" in treemap(row(SAID))
