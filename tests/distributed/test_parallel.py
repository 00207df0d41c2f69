"""Models train in parallel as one process on the CPU trains them: DDP, FSDP2, tensor, pipeline and expert parallel."""

from __future__ import annotations

import torch

from .ranks import succeed

NAME = torch._C._get_privateuse1_backend_name()


def test_models_train_in_parallel_as_alone() -> None:
    succeed("parallel", size=2)


def test_checkpoints_are_saved_resharded_and_saved_in_the_background() -> None:
    succeed("parallel", "checkpoints_are_resharded", environment={"BACKEND": f"cpu:gloo,{NAME}:{NAME}"})


def test_a_mesh_of_two_dimensions() -> None:
    succeed("parallel", "fsdp2_hybrid_over_two_dimensions", "ddp", "pipelines", size=4)
