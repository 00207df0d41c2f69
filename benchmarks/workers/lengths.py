"""One model fed sequences of random lengths: `python -m benchmarks.workers.lengths gpt --lengths 300 --static 16`.

Prints a line of JSON: how many programs were compiled for all lengths, the largest difference from CPU PyTorch, and for
some of the lengths the seconds of a call by the program of its bucket and by one compiled for that length alone.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable

import torch
from torch import nn

from ..models import gpt, gpt_shape

LONGEST, BATCH = 512, 2


def build(model: str) -> tuple[nn.Module, int]:
    """The model, and how many tokens it knows."""
    torch.manual_seed(0)
    if model == "gpt":
        gpt.CONTEXT = LONGEST
        return gpt.GPT().eval(), gpt_shape.VOCABULARY
    from transformers import BertConfig, BertForMaskedLM

    # Google's "BERT mini": 4 layers, 4 heads, 256 wide.
    shape = BertConfig(hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024)
    return BertForMaskedLM(shape).eval(), shape.vocab_size


def logits(net: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    """The last position's, so that a vocabulary of 30,000 does not hide the rest."""

    def fn(ids: torch.Tensor) -> torch.Tensor:
        out = net(ids)
        scores: torch.Tensor = getattr(out, "logits", out)
        return scores[:, -1].clone()  # a view would keep all of them

    return fn


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=("gpt", "bert"))
    parser.add_argument("--lengths", type=int, default=300)
    parser.add_argument("--static", type=int, default=16, help="how many of them are also compiled for themselves")
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    device = torch._C._get_privateuse1_backend_name()
    torch._dynamo.config.recompile_limit = 2 * options.static  # type: ignore[attr-defined]
    net, vocabulary = build(options.model)
    expected = logits(net)
    with torch.no_grad():
        rng = random.Random(0)
        lengths = [rng.randint(1, LONGEST) for _ in range(options.lengths)]
        batches = {n: torch.randint(vocabulary, (BATCH, n)) for n in sorted(set(lengths))}
        right = {n: expected(ids) for n, ids in batches.items()}
        there = net.to(device)
        bucketed = torch.compile(logits(there), backend=device, fullgraph=True)
        module = getattr(torch, device)

        def padded(n: int) -> torch.Tensor:
            ids = batches[n].to(device)
            if n > 1:  # Dynamo makes a graph of its own for a size of 1
                torch._dynamo.mark_dynamic(ids, 1, min=2, max=LONGEST)
            return bucketed(ids)

        worst = max(float((padded(n).cpu() - right[n]).abs().max() / right[n].abs().max()) for n in lengths)
        programs = sum(len(graph.programs) for graph in module.compiler.report().graphs)
        seconds: dict[int, tuple[list[float], list[float]]] = {}
        spread = sorted(lengths)[options.lengths // options.static // 2 :: options.lengths // options.static]
        for n in spread:  # evenly over what was drawn, so that their mean is that of all
            alone = torch.compile(logits(there), backend=device, fullgraph=True, dynamic=False)

            def static(n: int, fn: Callable[[torch.Tensor], torch.Tensor] = alone) -> torch.Tensor:
                return fn(batches[n].to(device))

            timed: tuple[list[float], list[float]] = ([], [])
            static(n).cpu()
            for _ in range(options.repeat):
                for fn, into in zip((padded, static), timed, strict=True):
                    begin = time.perf_counter()
                    fn(n).cpu()
                    into.append(time.perf_counter() - begin)
            seconds[n] = timed
    print(json.dumps({"programs": programs, "worst": worst, "seconds": seconds}))


if __name__ == "__main__":
    main()
