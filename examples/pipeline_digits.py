"""Train a classifier of handwritten digits as a pipeline: each process has some of the layers.

torchrun --nproc-per-node 2 examples/pipeline_digits.py
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from fsdp_digits import batches, digits
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

BATCH, MICROBATCHES = 128, 4


def layers(stage: int, stages: int) -> nn.Module:
    """One stage of the model: the first takes 64 numbers, the last gives 10, and 64 go between them."""
    torch.manual_seed(stage)
    last = nn.Linear(64, 10) if stage == stages - 1 else nn.Identity()
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), last)


def train(epochs: int) -> float | None:
    """The accuracy on what was kept back, in the process that has the last stage."""
    rank, size = dist.get_rank(), dist.get_world_size()
    device = torch.accelerator.current_accelerator()
    assert device is not None
    net = layers(rank, size).to(device)
    stage = PipelineStage(net, rank, size, torch.device(device.type, torch.accelerator.current_device_index()))
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=nn.functional.cross_entropy)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3)
    images, classes = (t.to(device) for t in digits())
    known = len(images) * 4 // 5 // BATCH * BATCH

    def step(here: Tensor) -> Tensor | None:
        """What the last stage makes of these images; its loss is what the schedule goes back from."""
        given = (images[here],) if rank == 0 else ()
        made: Tensor | None = schedule.step(*given, target=classes[here] if rank == size - 1 else None)
        return made

    for epoch in range(epochs):
        for batch in batches(known, BATCH, epoch):
            optimizer.zero_grad()
            step(batch.to(device))
            optimizer.step()
    kept_back = torch.arange(known, known + BATCH, device=device)
    made = step(kept_back)
    optimizer.zero_grad()
    return None if made is None or rank < size - 1 else (made.argmax(1) == classes[kept_back]).float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=15)
    options = parser.parse_args()
    torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group()
    accuracy = train(options.epochs)
    if accuracy is not None:
        print(f"{dist.get_world_size()} processes, pipeline: accuracy {accuracy:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
