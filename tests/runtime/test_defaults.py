"""The XLA options that every program is compiled with."""

from __future__ import annotations

import subprocess
import sys

import pytest

FUSION = "xla_cpu_experimental_ynn_fusion_type"
TOLD = """
import torch, torch_pjrt
from torch_pjrt.runtime import defaults
torch.ones(2, device="pjrt").sum().item()
defaults._ON_CPU["xla_there_is_no_such_option"] = True
defaults.default_options.cache_clear()
print(sorted(defaults.default_options()))
"""


@pytest.mark.parametrize(("flags", "ours"), [("", True), (f"--{FUSION}=LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT", False)])
def test_options_that_xla_does_not_know_or_that_the_user_sets_are_left_out(
    flags: str, ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XLA_FLAGS", flags)
    done = subprocess.run([sys.executable, "-c", TOLD], capture_output=True, text=True, check=True)
    assert ("xla_allow_excess_precision" in done.stdout) and (FUSION in done.stdout) == ours
    assert "no_such_option" not in done.stdout
