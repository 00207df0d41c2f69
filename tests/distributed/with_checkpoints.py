"""Checkpoints between different numbers of processes, from the CPU, and after a save that was killed."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import torch

from .checkpoint_model import model
from .ranks import ended, started, succeed


def test_a_checkpoint_of_2_processes_is_loaded_and_saved_by_4_and_loaded_by_1(tmp_path: Path) -> None:
    of_two, of_four = str(tmp_path / "2"), str(tmp_path / "4")
    succeed("checkpoints", "save", of_two, "5")
    succeed("checkpoints", "load", of_two, "5", size=4)
    succeed("checkpoints", "save", of_four, "6", size=4)
    succeed("checkpoints", "load", of_four, "6", size=1)


def test_an_ordinary_checkpoint_of_the_cpu_is_loaded(tmp_path: Path) -> None:
    plain = tmp_path / "model.pt"
    torch.save(model(7).state_dict(), plain)
    succeed("checkpoints", "load_file", str(plain), "7")


def test_kill_9_while_a_checkpoint_is_saved_leaves_the_last_good_one(tmp_path: Path) -> None:
    ranks = started("checkpoints", "save_on", str(tmp_path))
    try:
        begun = wait_for_a_save(tmp_path, after=1)
        for process in ranks.processes:
            os.kill(process.pid, signal.SIGKILL)
    finally:
        codes = [e.code for e in ended(ranks, timeout=0)]
    assert codes == [-signal.SIGKILL] * 2
    assert not (tmp_path / f"step-{begun}" / ".metadata").exists(), "the save had ended"
    last = begun - 1
    succeed("checkpoints", "load", str(tmp_path / f"step-{last}"), str(last))


def wait_for_a_save(folder: Path, after: int) -> int:
    """The number, larger than `after`, of a checkpoint that is being written."""
    until = time.monotonic() + 200
    while time.monotonic() < until:
        for step in folder.glob("step-*"):
            number = int(step.name.removeprefix("step-"))
            if number > after and any(step.iterdir()) and not (step / ".metadata").exists():
                return number
        time.sleep(0.001)
    raise AssertionError(f"no checkpoint was begun: {sorted(p.name for p in folder.iterdir())}")
