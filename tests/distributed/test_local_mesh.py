"""Several devices of one process as a mesh: `local_mesh*.py`, in a process that has four."""

from __future__ import annotations

import os
import subprocess
import sys

from .ranks import HERE, ROOT

# The others: `make distributed`.
OFTEN = (
    "tensors_lie", "trained_tensor_parallel", "data_parallel and False", "made_there", "share_its_memory", "refused",
    "without_arguments", "out_of_range",
)  # fmt: skip


def test_dtensors_over_four_devices_of_one_process_are_what_they_are_on_the_cpu() -> None:
    check(" or ".join(f"({words})" for words in OFTEN))


def check(which: str = "") -> None:
    """Those tests pass in a process of their own, which has four devices."""
    files = map(str, sorted(HERE.glob("local_mesh*.py")))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", *files, "-k", which]
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "XLA_FLAGS"))}
    environment = kept | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "4"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
