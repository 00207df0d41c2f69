"""Train a classifier of handwritten digits tensor parallel: each device has a part of every layer.

torchrun --nproc-per-node 2 examples/tensor_digits.py     one process for each device
python examples/tensor_digits.py                          one process for all of them, the same program
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from fsdp_digits import batches, digits, model
from torch import nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

BATCH = 128


def train(mesh: dist.DeviceMesh, epochs: int) -> float:
    """The accuracy on the last fifth after training on the rest."""
    device = torch.accelerator.current_accelerator()
    assert device is not None
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel(), "4": ColwiseParallel(output_layouts=Replicate())}
    net = parallelize_module(model().to(device), mesh, plan)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3)
    images, classes = (t.to(device) for t in digits())
    known = len(images) * 4 // 5
    for epoch in range(epochs):
        for batch in batches(known, BATCH, epoch):
            here = batch.to(device)
            loss = nn.functional.cross_entropy(net(images[here]), classes[here])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        right = (net(images[known:]).argmax(1) == classes[known:]).float().mean()
    return right.item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    kind = torch.accelerator.current_accelerator()
    assert kind is not None
    devices = torch.accelerator.device_count()
    if "RANK" in os.environ:
        torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group()
        devices = dist.get_world_size()
    mesh = dist.init_device_mesh(kind.type, (devices,), mesh_dim_names=("tp",))
    accuracy = train(mesh, options.epochs)
    if dist.get_rank() == 0:
        print(f"{devices} devices, {dist.get_world_size()} processes, tensor parallel: accuracy {accuracy:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
