"""One rank of a model trained in parallel by PyTorch's own wrappers: `parallel_torch.py pjrt|cpu --way ddp|fsdp2`."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from ..models import LEARNING_RATE, Batch, build
from .training import Program, Weights, argument_parser, serve

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def main() -> None:
    parser = argument_parser()
    parser.add_argument("--way", choices=("ddp", "fsdp2"), required=True)
    options = parser.parse_args()
    importlib.import_module("torch._dynamo")  # 1.5 s, which every optimizer takes: no part of the first step
    serve(
        lambda: start(options.backend),
        lambda name, weights: program(name, weights, options.backend, options.way),
        options,
    )


def start(backend: str) -> None:
    """Join the group, and start the device."""
    if backend == "cpu":
        dist.init_process_group("gloo")
    else:
        torch.accelerator.set_device_index(RANK)
        dist.init_process_group(backend)
        torch.ones(1, device=f"{backend}:{RANK}").cpu()


def program(name: str, weights: Weights, backend: str, way: str) -> Program:
    """The training loop's body; the rank's part of a batch is every SIZE-th row, its loss that of its rows."""
    device = "cpu" if backend == "cpu" else f"{backend}:{RANK}"
    compiles = bool(os.environ.get("BENCH_COMPILE"))
    compiler = "inductor" if backend == "cpu" else backend
    model = build(name)
    model.load_state_dict({key: torch.from_numpy(value) for key, value in weights.items()})
    model.to(device)
    trained = model
    if way == "ddp":
        trained = DistributedDataParallel(model)
        if compiles:
            trained.compile(backend=compiler)
    else:
        layers = model.layers
        assert isinstance(layers, nn.ModuleList)
        for layer in layers:
            if compiles:
                layer.compile(backend=compiler)
            fully_shard(layer)
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)

    def step(batch: Batch) -> torch.Tensor:
        x, y = (torch.from_numpy(array[RANK::SIZE]).to(device) for array in batch)
        optimizer.zero_grad()
        loss = F.cross_entropy(trained(x).flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    if backend == "cpu":
        return Program(step, float, lambda: None)
    module = torch.get_device_module(backend)
    wait: Callable[[], None] = module.synchronize
    return Program(step, float, wait, module.metrics)


if __name__ == "__main__":
    main()
