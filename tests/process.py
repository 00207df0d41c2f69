"""A program in a Python process of its own, for what can be set only before the device starts."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

# What the surrounding test run, or the machine, may have set.
_OURS = ("TORCH_PJRT_", "JAX_", "XLA_")


def python(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program on XLA:CPU with these environment variables on top."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(_OURS)}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=inherited | {"JAX_PLATFORMS": "cpu"} | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


def output(program: str, **environment: str) -> str:
    """What such a program prints; it must succeed."""
    done = python(program, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout
