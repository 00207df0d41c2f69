"""Run a model forward with torchax, its functional call under `jax_jit`: `infer_torchax.py torchax --model bert`."""

from __future__ import annotations

import jax
import torch
import torchax  # type: ignore[import-not-found]
from torchax import interop

from ..models import Batch, build
from .train_torchax import start
from .training import Program, Weights, arguments, serve


def program(name: str, weights: Weights) -> Program:
    env = torchax.default_env()
    model = build(name).eval()
    model.load_state_dict({key: torch.from_numpy(value) for key, value in weights.items()})
    with env:
        model.to("jax")
        jittable = interop.JittableModule(model)

    def forward(params: object, buffers: object, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return jittable.functional_call("forward", params, buffers, x)

    infer = interop.jax_jit(forward)

    def step(batch: Batch) -> torch.Tensor:
        with env:
            logits: torch.Tensor = infer(jittable.params, jittable.buffers, torch.from_numpy(batch[0]).to("jax"))
        jax.block_until_ready(interop.jax_view(logits))
        return logits

    def read(logits: object) -> float:
        return float((interop.jax_view(logits) ** 2).mean())

    return Program(step, read, lambda: None)


if __name__ == "__main__":
    serve(start, program, arguments())
