"""One rank of a model trained in parallel in pure JAX: `parallel_jax.py jax --way ddp|fsdp2`, one jitted step.

`ddp`: parameters on all devices, the batch spread over them. `fsdp2`: parameters and AdamW's state are spread as well,
by their first dimension where it divides. What has to be sent for that, XLA works out.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from ..models import Batch
from ..models_jax import build
from .collectives_jax import join
from .train_jax import Training, adamw
from .training import Program, Weights, argument_parser, serve

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def main() -> None:
    parser = argument_parser()
    parser.add_argument("--way", choices=("ddp", "fsdp2"), required=True)
    options = parser.parse_args()
    serve(start, lambda name, weights: program(name, weights, options.way), options)


def start() -> None:
    join()
    jax.block_until_ready(jnp.ones(1))


def program(name: str, weights: Weights, way: str) -> Program:
    model = build(name)
    mesh = jax.make_mesh((SIZE,), ("rank",), axis_types=(AxisType.Auto,))
    whole, spread = NamedSharding(mesh, P()), NamedSharding(mesh, P("rank"))

    def placed(value: Any) -> Array:
        host = np.asarray(value)
        divides = host.ndim > 0 and host.shape[0] % SIZE == 0
        where = spread if way == "fsdp2" and divides else whole
        return jax.make_array_from_callback(host.shape, where, lambda index: host[index])

    params, state = model.init(weights)
    zeros = {key: np.zeros_like(value) for key, value in params.items()}
    training = jax.tree.map(placed, Training(params, state, zeros, dict(zeros), jnp.zeros((), jnp.int32)))
    layouts = jax.tree.map(lambda a: a.sharding, training)

    @partial(jax.jit, donate_argnums=0, out_shardings=(whole, layouts))
    def train(training: Training, x: Array, y: Array) -> tuple[Array, Training]:
        def loss_of(params: dict[str, Array]) -> Array:
            logits, _ = model.train(params, training.state, x)
            return -jnp.take_along_axis(jax.nn.log_softmax(logits), y[..., None], -1).mean()

        loss, gradients = jax.value_and_grad(loss_of)(training.params)
        return loss, adamw(training, gradients, training.state)

    def step(batch: Batch) -> Array:
        nonlocal training
        mine = [jax.make_array_from_process_local_data(spread, np.ascontiguousarray(a[RANK::SIZE])) for a in batch]
        loss, training = train(training, *mine)
        return loss

    def wait() -> None:
        jax.block_until_ready(training)

    return Program(step, float, wait)


if __name__ == "__main__":
    main()
