"""Models train in parallel as one process on the CPU trains them: DDP, FSDP2, tensor, pipeline and expert parallel."""

from __future__ import annotations

from .ranks import succeed


def test_models_train_in_parallel_as_alone() -> None:
    succeed("parallel", size=2)
