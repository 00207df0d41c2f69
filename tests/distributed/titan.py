"""A rank of TorchTitan's own trainer: `titan.py FOLDER cpu|device ARGUMENTS...`; `write_assets` has filled the FOLDER.

TorchTitan 0.3 was written beside a newer PyTorch: where that has a function that this one lacks, it is added here. It
takes the accelerator there is; on the CPU it is told that the CPU is one.
"""

from __future__ import annotations

import inspect
import json
import os
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).parents[2]


def write_assets(folder: Path) -> None:
    """What TorchTitan expects beside it: a small data set and a tokenizer. This repository's docs are the text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    parts = [p for f in sorted((ROOT / "docs").glob("*.md")) for p in f.read_text().split("\n\n") if len(p) > 80]
    assets = folder / "tests" / "assets"
    for part in ("c4_test", "tokenizer"):
        (assets / part).mkdir(parents=True, exist_ok=True)
    (assets / "c4_test" / "data.json").write_text("".join(json.dumps({"text": p}) + "\n" for p in parts))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    ends = {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}
    trainer = trainers.BpeTrainer(
        vocab_size=2000, special_tokens=list(ends.values()), initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator(parts, trainer)
    tokenizer.save(str(assets / "tokenizer" / "tokenizer.json"))
    (assets / "tokenizer" / "tokenizer_config.json").write_text(json.dumps(ends))


def be_an_accelerator() -> None:
    """Let the CPU do what a trainer asks of an accelerator: answers, flex attention's gradient, sums that gloo has."""
    import torch
    from torch.distributed.fsdp._fully_shard import _fsdp_collectives
    from torch.nn.attention import flex_attention

    factors = _fsdp_collectives._get_gradient_divide_factors
    signature = inspect.signature(factors)

    def by_sums(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        given.arguments["force_sum_reduction_for_comms"] = True
        return factors(*given.args, **given.kwargs)

    _fsdp_collectives._get_gradient_divide_factors = by_sums
    flex_attention._validate_device = lambda *tensors: None
    torch.compiler.set_stance("force_eager")
    torch._utils._get_available_device_type = lambda: "cpu"
    answers: dict[str, Any] = {
        "current_device": lambda: 0,
        "get_device_name": lambda device=None: "cpu",
        "get_device_properties": lambda device=None: SimpleNamespace(total_memory=1, name="cpu"),
        "reset_peak_memory_stats": lambda device=None: None,
        "empty_cache": lambda: None,
        "memory_stats": lambda device=None: {},
    }
    for name, answer in answers.items():
        setattr(torch.cpu, name, answer)


def main() -> None:
    import torch.distributed as dist

    folder, where, *arguments = sys.argv[1:]
    os.chdir(folder)
    if where == "cpu":
        be_an_accelerator()
    if not hasattr(dist, "set_timeout"):
        dist.set_timeout = dist.distributed_c10d._set_pg_timeout
    sys.argv = ["train.py", *arguments]
    runpy.run_module("torchtitan.train", run_name="__main__")


if __name__ == "__main__":
    main()
