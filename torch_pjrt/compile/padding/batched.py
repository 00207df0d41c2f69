"""Transforms and factorizations of the last dimensions: those of padding are computed too, and not looked at."""

from __future__ import annotations

from typing import Any

from .arrays import Padded, meet
from .rules import Call, rule, unpadded


@rule("cholesky", "eig", "eigh", "geqrf", "householder_product", "lu", "lu_pivots_to_permutation", "qr", "schur", "svd",
      "triangular_solve", "tridiagonal_solve")  # fmt: skip
def factorization(call: Call) -> list[Padded]:
    last = 1 if call.step.primitive.name == "lu_pivots_to_permutation" else 2
    return _batched(call, [min(last, x.array.ndim) for x in call.operands])


@rule("fft")
def fft(call: Call) -> list[Padded]:
    return _batched(call, [len(call.params["fft_lengths"])])


def _batched(call: Call, kept: list[int]) -> list[Padded]:
    """`kept`: how many dimensions at the end of each operand are one matrix."""
    batches = []
    for x, count in zip(call.operands, kept, strict=True):
        rank = x.array.ndim - count
        unpadded(x.extents, range(rank, x.array.ndim), "a matrix or a transform")
        batches.append(x.extents[:rank])
    batch = meet(call.operands[0].array.shape[: len(batches[0])], [
        Padded(x.array[(..., *[0] * count)], e) for x, count, e in zip(call.operands, kept, batches, strict=True)
    ])  # fmt: skip
    made: Any = call.bind(*(x.array for x in call.operands))
    arrays = list(made) if call.step.primitive.multiple_results else [made]
    return [Padded(a, (*batch, *[None] * (a.ndim - len(batch)))) for a in arrays]
