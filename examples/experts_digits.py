"""Train a mixture of experts on handwritten digits, expert parallel: each process has one of the experts.

torchrun --nproc-per-node 2 examples/experts_digits.py
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from fsdp_digits import batches, digits
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd

BATCH, WIDTH = 64, 64


class Experts(nn.Module):
    """Each image goes to the expert that the router prefers, in whichever process that is, and comes back."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.router = nn.Linear(WIDTH, size)
        torch.manual_seed(1 + rank)
        self.expert = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        weights = self.router(x).softmax(-1)
        weight, to = weights.max(-1)
        order = to.argsort(stable=True)
        sent = torch.bincount(to, minlength=weights.shape[1])
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        arriving, leaving = received.tolist(), sent.tolist()
        there = all_to_all_single_autograd(x[order], arriving, leaving, dist.group.WORLD)
        back = all_to_all_single_autograd(self.expert(there), leaving, arriving, dist.group.WORLD)
        return x + weight[:, None] * back[order.argsort()]


def train(epochs: int) -> float:
    """The accuracy on the last fifth after training on the rest."""
    rank, size = dist.get_rank(), dist.get_world_size()
    device = torch.accelerator.current_accelerator()
    assert device is not None
    experts = Experts(rank, size)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, WIDTH), nn.ReLU(), experts, nn.Linear(WIDTH, 10)).to(device)
    own = set(experts.expert.parameters())
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3)
    images, classes = (t.to(device) for t in digits())
    known = len(images) * 4 // 5
    for epoch in range(epochs):
        for batch in batches(known, BATCH * size, epoch):
            here = batch[rank::size].to(device)
            loss = nn.functional.cross_entropy(net(images[here]), classes[here]) / size
            optimizer.zero_grad()
            loss.backward()
            for p in net.parameters():  # an expert has seen all processes' images already
                if p not in own:
                    dist.all_reduce(p.grad)
            optimizer.step()
    with torch.no_grad():
        right = (net(images[known:]).argmax(1) == classes[known:]).float().mean()
    return right.item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group()
    accuracy = train(options.epochs)
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} processes, experts: accuracy {accuracy:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
