"""Train a model with torchax as its documentation shows: `make_train_step`, optax's AdamW, `jax_jit` around both.

torchax's train step returns no buffers, so BatchNorm's running statistics are not kept: a little less work than the
others do, the same losses.
"""

from __future__ import annotations

from typing import Any

import jax
import optax  # type: ignore[import-not-found]
import torch
import torch.nn.functional as F
import torchax  # type: ignore[import-not-found]
import torchax.train  # type: ignore[import-not-found]
from torchax import interop

from ..models import LEARNING_RATE, WEIGHT_DECAY, Batch, build
from .training import Program, Weights, arguments, serve


def main() -> None:
    serve(start, program, arguments())


def start() -> None:
    jax.block_until_ready(jax.numpy.ones(1))


def program(name: str, weights: Weights) -> Program:
    env = torchax.default_env()
    model = build(name)
    model.load_state_dict({key: torch.from_numpy(value) for key, value in weights.items()})
    with env:
        model.to("jax")
        jittable = interop.JittableModule(model)
    optimizer = optax.adamw(LEARNING_RATE, weight_decay=WEIGHT_DECAY)

    def forward(params: Any, buffers: Any, args: Any) -> torch.Tensor:
        return jittable.functional_call("forward", params, buffers, args)

    def loss_of(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits.flatten(0, -2), y.flatten())

    step_of = torchax.train.make_train_step(forward, loss_of, optimizer)
    train = interop.jax_jit(step_of, kwargs_for_jax_jit={"donate_argnums": (0, 2)})
    params, buffers = jittable.params, jittable.buffers
    state = interop.call_jax(optimizer.init, params)

    def step(batch: Batch) -> torch.Tensor:
        nonlocal params, state
        with env:
            x, y = (torch.from_numpy(array).to("jax") for array in batch)
            loss, params, state = train(params, buffers, state, x, y)
        return loss

    def wait() -> None:
        jax.block_until_ready(interop.jax_view((params, state)))

    def read(loss: object) -> float:
        return float(interop.jax_view(loss))

    return Program(step, read, wait)


if __name__ == "__main__":
    main()
