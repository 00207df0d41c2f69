"""Train a transformer on handwritten digits, row by row, context parallel: each process has a part of the sequence.

torchrun --nproc-per-node 2 examples/context_digits.py
"""

from __future__ import annotations

import argparse
import os
from contextlib import AbstractContextManager

import torch
import torch.distributed as dist
from fsdp_digits import batches, digits
from torch import Tensor, nn
from torch.distributed.tensor.experimental import context_parallel

BATCH, WIDTH, HEADS = 128, 32, 4


class Classifier(nn.Module):
    """Each row of an image looks at those before it; the mean over all of them decides."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.row, self.place = nn.Linear(8, WIDTH), nn.Parameter(torch.randn(1, 8, WIDTH))
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, rows: Tensor, places: Tensor) -> Tensor:
        """A part of the mean over the rows, as [images, classes]: from those that this process has."""
        x = self.row(rows) + self.place[:, places[0]]
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(-2))
        x = x + self.down(nn.functional.gelu(self.up(x)))
        return self.head(x).sum(1) / 8


def logits(net: Classifier, rows: Tensor, places: Tensor) -> Tensor:
    """All processes' parts together. Its gradient is that of each process's own part."""
    own = net(rows, places)
    total = own.detach().clone()
    dist.all_reduce(total)
    return own + (total - own.detach())


def train(mesh: dist.DeviceMesh, epochs: int) -> float:
    """The accuracy on the last fifth after training on the rest."""
    device = torch.accelerator.current_accelerator()
    assert device is not None
    net = Classifier().to(device)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3)
    images, classes = (t.to(device) for t in digits())
    images = images.view(-1, 8, 8)

    def split(rows: Tensor, places: Tensor) -> AbstractContextManager[None]:
        """Inside, forward and backward, each process has its part of the rows."""
        return context_parallel(mesh, buffers=[rows, places], buffer_seq_dims=[1, 1])

    known = len(images) * 4 // 5
    for epoch in range(epochs):
        for batch in batches(known, BATCH, epoch):
            here = batch.to(device)
            rows, places = images[here], torch.arange(8, device=device)[None]
            with split(rows, places):
                loss = nn.functional.cross_entropy(logits(net, rows, places), classes[here])
                optimizer.zero_grad()
                loss.backward()
            for p in net.parameters():
                dist.all_reduce(p.grad)
            optimizer.step()
    rows, places = images[known:].clone(), torch.arange(8, device=device)[None]
    with torch.no_grad(), split(rows, places):
        right = (logits(net, rows, places).argmax(1) == classes[known:]).float().mean()
    return right.item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=15)
    options = parser.parse_args()
    torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group()
    kind = torch.accelerator.current_accelerator()
    assert kind is not None
    mesh = dist.init_device_mesh(kind.type, (dist.get_world_size(),), mesh_dim_names=("cp",))
    accuracy = train(mesh, options.epochs)
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} processes, context parallel: accuracy {accuracy:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
