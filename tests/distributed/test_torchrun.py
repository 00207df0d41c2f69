"""The example runs under torchrun, unmodified."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from .ranks import ROOT, free_port


def test_the_example_trains_under_torchrun() -> None:
    check("fsdp")


def check(parallel: str) -> None:
    """The example prints the accuracy that it should reach."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port()),
        "examples/fsdp_digits.py", "--parallel", parallel, "--epochs", "6",
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"JAX_PLATFORMS": "cpu"}, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    accuracy = re.search(rf"2 processes, {parallel}: accuracy (\S+)", done.stdout)
    assert accuracy is not None, done.stdout
    assert float(accuracy[1]) > 0.8
