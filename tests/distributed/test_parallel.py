"""Models train in parallel as one process on the CPU trains them: DDP, FSDP2, tensor, pipeline and expert parallel."""

from __future__ import annotations

from .ranks import succeed

# The other ways: `make distributed`.
OFTEN = (
    "ddp", "ddp_accumulates_without_sync", "fsdp2", "fsdp2_with_mixed_precision_and_without_resharding",
    "tensor_and_sequence_parallel", "dtensor_moves_between_placements", "experts_exchange_tokens",
)  # fmt: skip


def test_models_train_in_parallel_as_alone() -> None:
    succeed("parallel", *OFTEN)
