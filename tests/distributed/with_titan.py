"""TorchTitan's own trainer trains its debug models on the device as on the CPU with gloo: `make titan`, minutes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from . import titan
from .ranks import ROOT, free_port

STEPS = 10
SETTINGS = (
    "--training.disable_cuda_graphs", "--training.seq_len", "64", "--training.local_batch_size", "2",
    "--parallelism.spmd_backend", "partial_dtensor", "--validator.no-enable", "--checkpoint.enable",
)  # fmt: skip
RUNS = {
    "llama3, FSDP2": ("llama3", ()),
    "llama3, tensor parallel": ("llama3", ("--parallelism.tensor_parallel_degree", "2")),
    # In bfloat16, its default, a tenth step is 6e-4 away: rounding, of gates and norms that Llama does not have.
    "qwen3, FSDP2": ("qwen3", ("--training.mixed_precision_param", "float32")),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("titan")
    titan.write_assets(made)
    return made


def train(folder: Path, where: str, model: str, *more: str, ranks: int = 2) -> list[float]:
    """The losses of rank 0, one a step."""
    launch = ["torch.distributed.run", "--nproc-per-node", str(ranks), "--master-port", str(free_port())]
    config = ["--module", model, "--config", f"{model}_debugmodel", *SETTINGS, *more]
    command = [sys.executable, "-m", *launch, str(Path(titan.__file__)), str(folder), where, *config]
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "WANDB_MODE": "disabled",
        "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
        "TORCH_DEVICE_BACKEND_AUTOLOAD": str(int(where != "cpu")),
    }  # fmt: skip
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1200)
    said = ended.stdout + ended.stderr
    assert ended.returncode == 0, said
    by_step = {int(n): float(loss) for n, loss in re.findall(r"step: *(\d+).*?loss: *([0-9.]+)", said)}
    return [by_step[n] for n in sorted(by_step)]


@pytest.mark.parametrize("run", RUNS)
def test_a_debug_model_has_the_losses_that_it_has_on_the_cpu(run: str, folder: Path) -> None:
    model, settings = RUNS[run]
    seed = folder / model / "seed"
    if not seed.exists():
        train(folder, "cpu", model, "--checkpoint.create_seed_checkpoint", "--dump_folder", str(seed), ranks=1)
    common = (
        "--training.steps", str(STEPS), "--checkpoint.load_only",
        "--checkpoint.initial_load_path", str(seed / "checkpoint" / "step-0"), *settings,
    )  # fmt: skip
    name = run.replace(", ", "-").replace(" ", "-")
    wanted, got = (
        train(folder, where, model, *common, "--dump_folder", str(folder / name / where)) for where in ("cpu", "device")
    )
    assert len(wanted) == STEPS
    assert got == pytest.approx(wanted, rel=5e-4)
