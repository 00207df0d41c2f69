"""The examples run under torchrun, unmodified."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from .ranks import ROOT, free_port


def test_the_example_trains_under_torchrun() -> None:
    check("fsdp_digits.py", "--parallel", "fsdp", "--epochs", "6")


def check(script: str, *arguments: str, launched: bool = True) -> None:
    """The example, launched as two processes or started as one with two devices, prints an accuracy that will do."""
    command = [sys.executable]
    if launched:
        command += ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port())]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"} | ({} if launched else {"JAX_NUM_CPU_DEVICES": "2"})
    command += [f"examples/{script}", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    accuracy = re.search(r": accuracy (\S+)", done.stdout)
    assert accuracy is not None, done.stdout
    assert float(accuracy[1]) > 0.8
