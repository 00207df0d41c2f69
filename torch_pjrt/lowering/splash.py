"""Attention as the TPU kernels that JAX ships ("splash attention", Pallas): no score ever lies in HBM.

They are taken on a TPU for bfloat16 operands, without bias and dropout, whose lengths are multiples of a block. XLA's
partitioner cannot split a kernel, so in a program that is partitioned the kernel is called for a device's part of the
batch and of the heads (`jax.shard_map`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec

from .target import target

# The largest that divides a length is its block: 2,048 is refused by v5e's compiler for want of memory on the chip.
_BLOCKS = (1024, 512, 256, 128)
# Under it the scores are small, and a block of fewer than 512 leaves matrix units idle.
_SHORTEST = 512
# Of a kernel's inner loop: bounds what is live of the scores.
_COMPUTED = 512


def fits(query: Array, key: Array, value: Array, bias: Array | None, dropout_p: float) -> bool:
    """Whether the kernels take these operands where the program will run."""
    on = target()
    if on is None or on.platform != "tpu" or on.copies is not None or bias is not None or dropout_p > 0:
        return False
    operands = (query, key, value)
    if any(x.dtype != jnp.bfloat16 or x.ndim != 4 or x.size == 0 for x in operands):
        return False
    if len({x.shape[0] for x in operands}) > 1 or query.shape[1] % key.shape[1] or key.shape[:3] != value.shape[:3]:
        return False
    if any(n < _SHORTEST or n % _BLOCKS[-1] for n in (query.shape[2], key.shape[2])):
        return False
    return on.mesh is None or (on.batch is not None and query.shape[0] % on.size(on.batch) == 0)


def forward(query: Array, key: Array, value: Array, is_causal: bool, factor: float) -> tuple[Array, Array]:
    """query (B, H, L, E), key (B, Hkv, S, E), value (B, Hkv, S, Ev) to output (B, H, L, Ev) and logsumexp (B, H, L).

    `factor` multiplies the scores: here the query, in float32, rounded to bfloat16 again.
    """

    def part(query: Array, key: Array, value: Array) -> tuple[Array, Array]:
        kernel = _kernel(query.shape, key.shape, is_causal)
        with jax.named_scope(_scope("forward", query.shape, key.shape, is_causal)):
            out, (logsumexp,) = jax.vmap(kernel)(_scaled(query, factor), key, value)
        return out, logsumexp

    out, logsumexp = _spread(part, key.shape[1])(query, key, value)
    return out, logsumexp


def backward(
    grad_out: Array,
    query: Array,
    key: Array,
    value: Array,
    out: Array,
    logsumexp: Array,
    is_causal: bool,
    factor: float,
) -> list[Array]:
    """Gradients of query, key and value."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel

    def part(grad_out: Array, query: Array, key: Array, value: Array, out: Array, logsumexp: Array) -> list[Array]:
        kernel = _kernel(query.shape, key.shape, is_causal)

        def one(grad_out: Array, query: Array, key: Array, value: Array, out: Array, logsumexp: Array) -> list[Array]:
            residuals = query, key, value, None, None, out, logsumexp, kernel.dq_mask_info, kernel.dkv_mask_info
            # JAX has it as the second half of a function's derivative only; here the two halves are two ops.
            made = splash_attention_kernel._splash_attention_bwd(res=residuals, do=grad_out, **kernel.kwargs)
            return list(made[3:6])

        with jax.named_scope(_scope("backward", query.shape, key.shape, is_causal)):
            grads = jax.vmap(one)(grad_out, _scaled(query, factor), key, value, out, logsumexp)
        return [_scaled(grads[0], factor), *grads[1:]]

    grads: list[Array] = _spread(part, key.shape[1])(
        grad_out.astype(query.dtype), query, key, value, out.astype(query.dtype), logsumexp.astype(jnp.float32)
    )
    return grads


def block_of(length: int) -> int:
    """How many queries, or keys, a kernel takes at once."""
    return next(b for b in _BLOCKS if length % b == 0)


def _scaled(x: Array, factor: float) -> Array:
    return (x.astype(jnp.float32) * jnp.float32(factor)).astype(x.dtype)


def _scope(phase: str, query: Sequence[int], key: Sequence[int], is_causal: bool) -> str:
    """A name in the program from which an estimate can tell what the kernels do (`plan/schedule.py`)."""
    sizes = (*query[:3], *key[2:])
    return f"splash-{phase}-{'causal' if is_causal else 'full'}-{'x'.join(map(str, sizes))}"


def _kernel(query: Sequence[int], key: Sequence[int], is_causal: bool) -> Any:
    """The kernels for one example of these sizes."""
    from jax.experimental.pallas.ops.tpu import splash_attention as splash

    on = target()
    size = query[2], key[2]
    block_q, block_kv = map(block_of, size)
    computed = min(block_kv, _COMPUTED)
    blocks = splash.BlockSizes(
        block_q=block_q, block_kv=block_kv, block_kv_compute=computed,
        block_q_dkv=block_q, block_kv_dkv=block_kv, block_kv_dkv_compute=computed,
        block_q_dq=block_q, block_kv_dq=block_kv,
    )  # fmt: skip
    one = splash.CausalMask(size) if is_causal else splash.FullMask(size)
    return splash.make_splash_mha_single_device(
        splash.MultiHeadMask([one] * query[1]),
        block_sizes=blocks,
        save_residuals=True,
        interpret=on is not None and on.interpret,
    )


def _spread(part: Callable[..., Any], heads: int) -> Callable[..., Any]:
    """`part` of whole arrays: for each device of the mesh on what it has of them, if the program is partitioned.

    Args:
        heads: how many key heads there are.
    """

    @functools.wraps(part)
    def narrow(*arrays: Array) -> Any:
        # The kernels count in 32 bits.
        with jax.enable_x64(False):
            return part(*arrays)

    on = target()
    if on is None or on.mesh is None:
        return narrow
    assert on.batch is not None
    along = on.heads if heads % on.size(on.heads) == 0 else ()
    spec = PartitionSpec(on.batch or None, along or None)
    spread: Callable[..., Any] = jax.shard_map(narrow, mesh=on.mesh, in_specs=spec, out_specs=spec, check_vma=False)
    return spread
