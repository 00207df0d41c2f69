"""Run a model forward in pure JAX, one jitted function: `infer_jax.py jax --model bert`."""

from __future__ import annotations

import jax
from jax import Array

from ..models import Batch
from ..models_jax import build
from .train_jax import start
from .training import Program, Weights, arguments, serve


def program(name: str, weights: Weights) -> Program:
    model = build(name)
    params, state = model.init(weights)
    infer = jax.jit(model.infer)

    def step(batch: Batch) -> Array:
        return infer(params, state, batch[0]).block_until_ready()

    def read(logits: object) -> float:
        assert isinstance(logits, Array)
        return float((logits**2).mean())

    return Program(step, read, lambda: None)


if __name__ == "__main__":
    serve(start, program, arguments())
