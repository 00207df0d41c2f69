"""TORCH_PJRT_CACHE_DIR keeps compiled programs for the next process."""

from __future__ import annotations

from pathlib import Path

from ..process import output

PROGRAM = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4)).to("pjrt")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for _ in range(2):
    optimizer.zero_grad()
    loss = model(torch.ones(2, 8, device="pjrt")).square().mean()
    loss.backward()
    optimizer.step()
print(loss.item(), torch.pjrt.metrics()["compile_seconds"])
"""
COUNT = """
import jax
hits = []
jax.monitoring.register_event_listener(lambda name, **kw: hits.append(name) if "cache_hits" in name else None)
"""


def run(directory: Path) -> tuple[float, float, int]:
    """(the loss, seconds of compiling, hits in the persistent cache) of one process."""
    text = output(COUNT + PROGRAM + "print(len(hits))", TORCH_PJRT_CACHE_DIR=str(directory))
    loss, seconds, hits = text.split()
    return float(loss), float(seconds), int(hits)


def test_a_second_process_takes_its_programs_from_the_first(tmp_path: Path) -> None:
    directory = tmp_path / "not" / "there" / "yet"
    loss, cold, hits = run(directory)
    assert hits == 0
    files = set(directory.iterdir())
    assert files
    same_loss, warm, hits = run(directory)
    assert same_loss == loss
    assert hits > 0
    assert warm < cold
    assert {f.name for f in directory.iterdir() if f.name.endswith("-cache")} == {
        f.name for f in files if f.name.endswith("-cache")
    }
