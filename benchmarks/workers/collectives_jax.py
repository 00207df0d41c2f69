"""One rank's collectives in pure JAX, as `collectives_torch.py` has them: a jitted shard_map, one device each."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import cache

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from .channel import Channel

SIZE = int(os.environ["WORLD_SIZE"])
OPS: dict[str, Callable[[Array], Array]] = {
    "all_reduce": lambda x: lax.psum(x, "rank"),
    "all_gather": lambda x: lax.all_gather(x, "rank", tiled=True),
    "reduce_scatter": lambda x: lax.psum_scatter(x, "rank", tiled=True),
    "all_to_all": lambda x: lax.all_to_all(x, "rank", 0, 0, tiled=True),
}


def main() -> None:
    channel = Channel()
    join()
    channel.send(ready=True)
    for op, nbytes, count, when in channel.commands():
        call = collective(op, int(nbytes) // 4)
        for _ in range(2):
            jax.block_until_ready(call())
        begin = time.perf_counter()
        for _ in range(int(count)):
            result = call()
            if when == "each":
                jax.block_until_ready(result)
        jax.block_until_ready(result)
        channel.send(us=(time.perf_counter() - begin) / int(count) * 1e6)


def join() -> None:
    """Make this process one of the ranks that the environment tells of."""
    address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    jax.distributed.initialize(address, SIZE, int(os.environ["RANK"]), cluster_detection_method="deactivate")


@cache
def collective(op: str, n: int) -> Callable[[], Array]:
    """A call of it on float32 zeros, the whole having n elements on each device."""
    mesh = jax.make_mesh((SIZE,), ("rank",))
    spread = NamedSharding(mesh, P("rank"))
    mine = jnp.zeros(n // SIZE if op == "all_gather" else n)
    given = jax.make_array_from_process_local_data(spread, mine)
    program = jax.jit(jax.shard_map(OPS[op], mesh=mesh, in_specs=P("rank"), out_specs=P("rank"), check_vma=False))
    return lambda: program(given)


if __name__ == "__main__":
    main()
