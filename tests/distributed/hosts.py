"""A rank of a torchrun over several machines: a collective, and a DDP step held to one process on the CPU."""

from __future__ import annotations

import copy
import os

import torch
import torch.distributed as dist
from torch import nn

RANK, SIZE, LOCAL_RANK = (int(os.environ[n]) for n in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))


def main() -> None:
    torch.accelerator.set_device_index(LOCAL_RANK)
    dist.init_process_group()
    device = torch.accelerator.current_accelerator()
    assert device is not None
    here = torch.device(device.type, LOCAL_RANK)
    total = torch.full((70_000,), RANK + 1.0, device=here)
    dist.all_reduce(total)
    assert total.cpu().unique().tolist() == [SIZE * (SIZE + 1) / 2]

    torch.manual_seed(0)
    alone = nn.Sequential(nn.Linear(9, 33), nn.Tanh(), nn.Linear(33, 2))
    spread = nn.parallel.DistributedDataParallel(copy.deepcopy(alone).to(here))
    x, y = torch.randn(4 * SIZE, 9), torch.randn(4 * SIZE, 2)
    for net, rows in ((alone, slice(None)), (spread, slice(RANK, None, SIZE))):
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(2):
            optimizer.zero_grad()
            where = next(net.parameters()).device
            nn.functional.mse_loss(net(x[rows].to(where)), y[rows].to(where)).backward()
            optimizer.step()
    for p, q in zip(spread.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(p.cpu(), q, rtol=1e-4, atol=1e-5)
    print(f"rank {RANK} on {os.uname().nodename}: the same", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
