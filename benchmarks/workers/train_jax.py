"""Train a model in pure JAX: one jitted step, parameters and AdamW state donated. `train_jax.py jax --model mlp`."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from ..models import LEARNING_RATE, WEIGHT_DECAY, Batch
from ..models_jax import Params, State, build
from .training import Program, Weights, arguments, serve

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8


class Training(NamedTuple):
    """All that a step carries over to the next."""

    params: Params
    state: State
    first_moment: Params
    second_moment: Params
    steps: Array


def main() -> None:
    serve(start, program, arguments())


def start() -> None:
    jax.block_until_ready(jnp.ones(1))


def program(name: str, weights: Weights) -> Program:
    model = build(name)
    params, state = model.init(weights)
    # Two trees of zeros, not one shared: both are donated.
    zeros = partial(jax.tree.map, jnp.zeros_like, params)
    training = Training(params, state, zeros(), zeros(), jnp.zeros((), jnp.int32))

    def loss_of(params: Params, state: State, x: Array, y: Array) -> tuple[Array, State]:
        logits, state = model.train(params, state, x)
        log_probabilities = jax.nn.log_softmax(logits)
        return -jnp.take_along_axis(log_probabilities, y[..., None], -1).mean(), state

    @partial(jax.jit, donate_argnums=0)
    def train(training: Training, x: Array, y: Array) -> tuple[Array, Training]:
        (loss, state), gradients = jax.value_and_grad(loss_of, has_aux=True)(training.params, training.state, x, y)
        return loss, adamw(training, gradients, state)

    def step(batch: Batch) -> Array:
        nonlocal training
        loss, training = train(training, *batch)
        return loss

    def wait() -> None:
        jax.block_until_ready(training)

    return Program(step, float, wait)


def adamw(training: Training, gradients: Params, state: State) -> Training:
    """Loshchilov & Hutter 2019, in the order of operations of `torch.optim.AdamW`."""
    steps = training.steps + 1
    correction1 = 1 - BETA1**steps
    correction2 = 1 - BETA2**steps

    first = jax.tree.map(lambda m, g: m + (1 - BETA1) * (g - m), training.first_moment, gradients)
    second = jax.tree.map(lambda v, g: BETA2 * v + (1 - BETA2) * g * g, training.second_moment, gradients)

    def update(p: Array, m: Array, v: Array) -> Array:
        denominator = jnp.sqrt(v) / jnp.sqrt(correction2) + EPS
        return p * (1 - LEARNING_RATE * WEIGHT_DECAY) - LEARNING_RATE / correction1 * m / denominator

    return Training(jax.tree.map(update, training.params, first, second), state, first, second, steps)


if __name__ == "__main__":
    main()
