"""PyTorch's test machinery makes tests for the device out of generic ones, and they pass (docs/pytorch-tests.md)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ..conftest import DEVICE
from ..process import output

HERE = Path(__file__).parent
# Skips that are right on one device of this kind, and PyTorch's reason for each.
SKIPPED = {
    "test_on_cpu": "Only runs on cpu",
    "test_on_cuda": "Only runs on cuda",
    "test_two_devices": "fewer than 2 devices detected",
}


def run_cases(*options: str, **environment: str) -> dict[str, str]:
    """Run `generic_cases.py` as PyTorch's test files are run; what became of each test, by its name."""
    # Where CI is set, PyTorch's runner wants the packages of PyTorch's own CI.
    own = ("TORCH_PJRT_", "PYTORCH_TEST")
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(own) and k not in ("CI", "GITHUB_ACTIONS")}
    done = subprocess.run(
        [sys.executable, HERE / "generic_cases.py", "-v", *options],
        env=inherited | {"JAX_PLATFORMS": "cpu"} | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return dict(re.findall(r"^(test_[\w-]+) \(.*?\) \.\.\. (.*)$", done.stderr, re.MULTILINE))


@pytest.mark.slow
def test_generic_tests_are_made_for_the_device_and_pass() -> None:
    became = run_cases(PYTORCH_TESTING_DEVICE_ONLY_FOR="privateuse1")
    skipped = {name: how for name, how in became.items() if how != "ok"}
    assert {name.removesuffix(f"_{DEVICE}"): how for name, how in skipped.items()} == {
        name: f"skipped '{why}'" for name, why in SKIPPED.items()
    }
    for made in (
        f"test_device_{DEVICE}",
        f"test_sort_{DEVICE}_bfloat16",
        f"test_product_{DEVICE}_complex128",
        f"test_flip_dim_0_{DEVICE}",
        f"test_on_native_devices_{DEVICE}",
        f"test_on_privateuse1_{DEVICE}",
        f"test_error_{DEVICE}",
        f"test_op_nn_functional_gelu_{DEVICE}_float32",
        f"test_op_cumsum_{DEVICE}_int64",
        f"test_gradient_addmm_{DEVICE}_float64",
        f"test_module_nn_Linear_{DEVICE}_float32",
        f"test_optimizer_AdamW_{DEVICE}_float32",
    ):
        assert became.get(made) == "ok", f"{made}: {became.get(made)}"
    assert all(DEVICE in name for name in became)


@pytest.mark.slow
def test_a_base_class_of_ones_own_leaves_tests_out_and_two_devices_are_found() -> None:
    became = run_cases(
        "-k=test_flip",
        "-k=test_device",
        "-k=test_two_devices",
        PYTORCH_TESTING_DEVICE_ONLY_FOR="privateuse1",
        TORCH_TEST_DEVICES=str(HERE / "generic_base.py"),
        JAX_NUM_CPU_DEVICES="2",
    )
    assert became == {f"test_device_{DEVICE}": "ok", f"test_two_devices_{DEVICE}": "ok"}


def test_environment_variables_choose_the_device_alone_or_leave_it_out() -> None:
    said = output(
        f"""
        import os
        from torch.testing._internal.common_device_type import get_desired_device_type_test_bases

        def bases(**environment):
            os.environ.update(environment)
            print(*sorted({{base.__name__ for base in get_desired_device_type_test_bases()}} - {{"CUDATestBase"}}))
            for name in environment:
                del os.environ[name]

        bases()
        bases(PYTORCH_TESTING_DEVICE_ONLY_FOR="privateuse1")
        bases(PYTORCH_TESTING_DEVICE_ONLY_FOR="{DEVICE}")
        bases(PYTORCH_TESTING_DEVICE_EXCEPT_FOR="privateuse1")
        """
    )
    both = "CPUTestBase PrivateUse1TestBase"
    assert said.splitlines() == [both, "PrivateUse1TestBase", "PrivateUse1TestBase", "CPUTestBase"]
