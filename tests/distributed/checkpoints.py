"""A rank that saves or loads a sharded model whose weights a number decides, so that another run knows them too."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from .checkpoint_model import model
from .rank import DEVICE, RANK, SIZE


def sharded(number: int) -> nn.Module:
    net = model(number).to(DEVICE)
    if SIZE > 1:
        fully_shard(net)
    return net


def whole(value: Tensor) -> Tensor:
    return (value.full_tensor() if isinstance(value, DTensor) else value).cpu()


def check(net: nn.Module, number: int) -> None:
    wanted = model(number).state_dict()
    got = net.state_dict()
    assert got.keys() == wanted.keys()
    for name, value in wanted.items():
        assert torch.equal(whole(got[name]), value), name


def save(folder: str, number: str) -> None:
    dcp.save({"model": get_model_state_dict(sharded(int(number))), "number": int(number)}, checkpoint_id=folder)


def load(folder: str, number: str) -> None:
    net = sharded(int(number) + 1)
    content = {"model": get_model_state_dict(net), "number": -1}
    dcp.load(content, checkpoint_id=folder)
    set_model_state_dict(net, content["model"])
    assert content["number"] == int(number)
    check(net, int(number))


def load_file(path: str, number: str) -> None:
    """What `torch.save` wrote of a model on the CPU, rank 0 reading it for all."""
    net = sharded(int(number) + 1)
    given = torch.load(path) if RANK == 0 else {}
    set_model_state_dict(net, given, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=SIZE > 1))
    check(net, int(number))


def save_on(folder: str) -> None:
    """Save one checkpoint after the other, until somebody ends it."""
    for number in itertools.count():
        save(str(Path(folder) / f"step-{number}"), str(number))


def main() -> None:
    torch.accelerator.set_device_index(RANK)
    dist.init_process_group()
    {"save": save, "load": load, "load_file": load_file, "save_on": save_on}[sys.argv[1]](*sys.argv[2:])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
