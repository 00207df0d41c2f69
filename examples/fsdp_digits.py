"""Train a classifier of handwritten digits in parallel, with DDP or FSDP2, on any device.

torchrun --nproc-per-node 2 examples/fsdp_digits.py --parallel fsdp
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

BATCH = 64


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))


def digits() -> tuple[Tensor, Tensor]:
    """Images of 64 numbers in 0..1 and their classes."""
    images, classes = load_digits(return_X_y=True)
    return torch.tensor(images / 16, dtype=torch.float32), torch.tensor(classes)


def batches(known: int, size: int, epoch: int) -> Iterator[Tensor]:
    """Numbers of images below `known`, `size` at a time, in an order of the epoch's own; what is left over is not."""
    order = torch.randperm(known, generator=torch.Generator().manual_seed(epoch))
    return iter(order[: known // size * size].split(size))


def train(parallel: str, epochs: int) -> float:
    """The accuracy on the last fifth after training on the rest."""
    rank, size = dist.get_rank(), dist.get_world_size()
    device = torch.accelerator.current_accelerator()
    assert device is not None
    net: nn.Module = model().to(device)
    net = DistributedDataParallel(net) if parallel == "ddp" else fully_shard(net)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3)
    images, classes = digits()
    known = len(images) * 4 // 5
    for epoch in range(epochs):
        for batch in batches(known, BATCH * size, epoch):
            mine = batch[rank::size]
            loss = nn.functional.cross_entropy(net(images[mine].to(device)), classes[mine].to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        right = (net(images[known:].to(device)).argmax(1) == classes[known:].to(device)).float().mean()
    return right.item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parallel", choices=["ddp", "fsdp"], default="fsdp")
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group()
    accuracy = train(options.parallel, options.epochs)
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} processes, {options.parallel}: accuracy {accuracy:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
