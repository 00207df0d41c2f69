"""torch.<name>.metrics() counts what the device did."""

from __future__ import annotations

from pathlib import Path

import torch

from ..conftest import DEVICE
from ..process import output

module = getattr(torch, DEVICE)


def test_the_counts_are_a_plain_dict_of_all_that_is_promised() -> None:
    figures = module.metrics()
    assert type(figures) is dict
    assert set(figures) == {
        "ops_recorded", "traces_run", "executables_compiled", "cache_hits", "compile_seconds",
        "executables_loaded", "load_seconds", "fallbacks", "host_syncs", "bytes_to_device", "bytes_to_host",
    }  # fmt: skip
    assert type(figures["fallbacks"]) is type(figures["host_syncs"]) is dict
    assert all(not v for v in figures.values()), figures


def test_ops_traces_executables_and_cache_hits_are_counted() -> None:
    for hits in (0, 1, 2):
        y = torch.full((7, 3), 2.0, device=DEVICE).atan().sum()
        module.synchronize()
        figures = module.metrics()
        assert figures["ops_recorded"] == 3 * (hits + 1)
        assert figures["traces_run"] == hits + 1
        assert (figures["executables_compiled"], figures["cache_hits"]) == (1, hits)
        assert figures["compile_seconds"] > 0
        del y


def test_bytes_and_syncs_are_counted_by_cause() -> None:
    x = torch.ones(256).to(DEVICE)
    assert module.metrics()["bytes_to_device"] == 1024
    x.sum().item()
    x.cpu()
    figures = module.metrics()
    assert figures["bytes_to_host"] == 4 + 1024
    assert figures["host_syncs"] == {"item": 1, "copy to the host": 1}


def test_reset_sets_everything_to_zero_and_a_snapshot_stays_as_it_was() -> None:
    (torch.ones(2, device=DEVICE) + 1).tolist()
    before = module.metrics()
    module.reset_metrics()
    assert before["ops_recorded"] > 0
    assert all(not v for v in module.metrics().values())


def test_dump_writes_each_trace_with_the_users_lines_and_its_stablehlo(tmp_path: Path) -> None:
    output(
        """
        import torch
        (torch.ones(3, device="pjrt") + 1).exp().tolist()
        """,
        TORCH_PJRT_DUMP=str(tmp_path / "new"),
    )
    texts = sorted((tmp_path / "new").glob("trace_*.txt"))
    programs = sorted((tmp_path / "new").glob("trace_*.mlir"))
    assert len(texts) == len(programs) == 1
    assert "aten::exp" in texts[0].read_text()
    assert "stablehlo.exponential" in programs[0].read_text()
