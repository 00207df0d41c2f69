"""A compiled training step of a model of so many equal blocks: `python -m benchmarks.workers.depth gpt 48 --scan yes`.

Prints a line of JSON once the first step is done: its CPU seconds, those of them that reading the graphs took, and that
JAX and XLA took; how many programs there are. For each `steps N` received, a line with the milliseconds and the CPU
milliseconds of a step; for `memory`, one with the highest resident set, in MB, of the steps after the first.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from torch_pjrt.compile import backend, program

from ..models.gpt import GPT
from .channel import Channel, Memory

ROWS, TOKENS = 4, 64


def build(model: str, layers: int, regions: bool) -> tuple[nn.Module, int]:
    """The model, and how many tokens it knows. `regions`: its blocks are marked with `nested_compile_region`."""
    torch.manual_seed(0)
    if model == "gpt":
        net: nn.Module = GPT(layers)
        blocks, vocabulary = net.layers, 65
    elif model == "bert":
        from transformers import BertConfig, BertForMaskedLM

        shape = BertConfig(
            hidden_size=256, num_hidden_layers=layers, num_attention_heads=4, intermediate_size=1024, vocab_size=1000
        )
        net, vocabulary = BertForMaskedLM(shape), shape.vocab_size
        blocks = net.bert.encoder.layer
    else:
        from transformers import LlamaConfig, LlamaForCausalLM

        wide = LlamaConfig(
            hidden_size=256, num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=2,
            intermediate_size=704, vocab_size=1000,
        )  # fmt: skip
        net, vocabulary = LlamaForCausalLM(wide), wide.vocab_size
        blocks = net.model.layers
    if regions:
        kind = type(blocks[0])
        kind.forward = torch.compiler.nested_compile_region(kind.forward)
    return net.train(), vocabulary


def timed(where: Any, name: str, seconds: Counter[str]) -> None:
    """Let a function count its CPU seconds, those of all threads, under its name."""
    function: Callable[..., Any] = getattr(where, name)

    @functools.wraps(function)
    def counting(*args: Any, **kwargs: Any) -> Any:
        begin = time.process_time()
        try:
            return function(*args, **kwargs)
        finally:
            seconds[name] += time.process_time() - begin  # type: ignore[assignment]

    setattr(where, name, counting)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("backend")
    parser.add_argument("model", choices=("gpt", "bert", "llama"))
    parser.add_argument("layers", type=int)
    parser.add_argument("--scan", choices=("yes", "no", "default"), default="default")
    parser.add_argument("--regions", action="store_true")
    parser.add_argument("--infer", action="store_true", help="no backward pass")
    options = parser.parse_args()
    channel = Channel()
    seconds: Counter[str] = Counter()
    timed(backend, "compile_graph", seconds)
    timed(program.Program, "_compile", seconds)
    timed(program, "compile_function", seconds)
    device = options.backend
    module = getattr(torch, device)
    module.synchronize()
    net, vocabulary = build(options.model, options.layers, options.regions)
    net = net.to(device)
    ids = torch.randint(vocabulary, (ROWS, TOKENS)).to(device)
    module.synchronize()
    torch._dynamo.reset()  # which imports Dynamo: not the model's doing
    chosen = {} if options.scan == "default" else {"options": {"scan_blocks": options.scan == "yes"}}

    def loss_of(ids: torch.Tensor) -> torch.Tensor:
        out = net(ids)
        return F.cross_entropy(getattr(out, "logits", out).flatten(0, 1), ids.flatten())

    compiled = torch.compile(loss_of, backend="pjrt", fullgraph=True, **chosen)
    torch.compile(lambda t: t + 1, backend="pjrt")(ids)
    module.synchronize()
    module.compiler.reset()
    seconds.clear()
    memory = Memory()

    def step() -> float:
        net.zero_grad()
        with torch.set_grad_enabled(not options.infer):
            loss = compiled(ids)
        if not options.infer:
            loss.backward()
        module.synchronize()
        return loss.item()

    begin, began = time.perf_counter(), time.process_time()
    loss = step()
    first, wall = time.process_time() - began, time.perf_counter() - begin
    programs = [p for g in module.compiler.report().graphs for p in g.programs]
    step()
    memory.reset()
    channel.send(
        first=first,
        wall=wall,
        programs=len(programs),
        reading=seconds["compile_graph"] + seconds["_compile"] - seconds["compile_function"],
        compiling=seconds["compile_function"],
        blocks=[g.blocks for g in module.compiler.report().graphs],
        loss=loss,
    )
    for command, *rest in channel.commands():
        if command == "steps":
            count = int(rest[0])
            begin, began = time.perf_counter(), time.process_time()
            for _ in range(count):
                step()
            wall, cpu = time.perf_counter() - begin, time.process_time() - began
            channel.send(ms=wall / count * 1e3, cpu_ms=cpu / count * 1e3)
        elif command == "memory":
            channel.send(peak_mb=memory.peak(), allocated_mb=module.memory_allocated() / 2**20)
        else:
            raise ValueError(f"a worker knows 'steps N' and 'memory', not {command!r}")


if __name__ == "__main__":
    main()
