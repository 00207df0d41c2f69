"""What CPU PyTorch refuses of sparse tensors: asked of its kernel, on a stand-in of the call with one entry, or none.

Once per op, layouts, dtypes and shapes. Sizes keep their order and their equality but not their magnitude, so that the
stand-in of a large matrix is small; what the kernel refuses then it is asked again with the real sizes, for its words.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves, tree_map

from ... import _C
from .compressed import BLOCKED, BY_ROW, pointers

_PASSED: set[Any] = set()
_SMALL = 8  # sizes up to this stay what they are
_HALF = (torch.float16, torch.bfloat16)


def refuse_what_cpu_refuses(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise what CPU PyTorch raises for this call but for its numbers; half types are taken where float32 is."""
    tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
    same = len({id(t) for t in tensors})
    numbers = _numbers(op)
    named = {a.name: x for a, x in zip(op._schema.arguments, args, strict=False)} | kwargs
    key = (op, same, *((n, type(x) if n in numbers else _signature(x)) for n, x in named.items()))
    if key in _PASSED:
        return
    # A block's size divides others, and would not divide the smaller ones in their place.
    renamed = {} if any(a.name == "blocksize" for a in op._schema.arguments) else _renamed(tensors)
    try:
        _ask(op, args, kwargs, renamed, {})
    except Exception as refusal:
        _ask_again(op, args, kwargs, tensors, renamed, refusal)
    _PASSED.add(key)


@functools.cache
def _numbers(op: OpOverload) -> frozenset[str]:
    """The arguments whose values don't matter."""
    return frozenset(a.name for a in op._schema.arguments if isinstance(a.type, torch.NumberType))


def _ask_again(
    op: OpOverload, args: Any, kwargs: Any, tensors: list[Tensor], renamed: dict[int, int], refusal: Exception
) -> None:
    if isinstance(refusal, NotImplementedError) and any(t.dtype in _HALF for t in tensors):
        try:
            _ask(op, args, kwargs, renamed, dict.fromkeys(_HALF, torch.float32))
        except Exception:
            raise refusal from None
        return
    _ask(op, args, kwargs, {}, {})


def _ask(
    op: OpOverload, args: Any, kwargs: Any, renamed: dict[int, int], replaced: dict[torch.dtype, torch.dtype]
) -> None:
    made: dict[int, Tensor] = {}  # one tensor given twice stays one: kernels ask

    def stand_in(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        if id(x) not in made:
            made[id(x)] = _stand_in(x, [renamed.get(n, n) for n in x.shape], replaced.get(x.dtype, x.dtype))
        return made[id(x)]

    with torch._C._DisableAutocast(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        on_cpu = tree_map(stand_in, (args, kwargs))
        _C.without_warnings(lambda: op(*on_cpu[0], **on_cpu[1]))


def _signature(x: Any) -> Any:
    if isinstance(x, Tensor):
        return x.layout, x.dtype, x.shape, *_parts(x)
    if isinstance(x, (list, tuple)):
        return tuple(map(_signature, x))
    return type(x) if isinstance(x, (float, complex)) else (type(x), x)  # True is no 1


def _parts(x: Tensor) -> tuple[Any, ...]:
    if x.layout == torch.strided:
        return ()
    if x.layout == torch.sparse_coo:
        return x.sparse_dim(), x.is_coalesced(), x._nnz() == 0
    return x.dense_dim(), x._nnz() == 0, *_blocksize(x), pointers(x)[0].dtype


def _renamed(tensors: Iterable[Tensor]) -> dict[int, int]:
    """Smaller sizes for the large ones; none if a tensor has blocks, of which a size is a multiple."""
    tensors = list(tensors)
    if any(t.layout in BLOCKED for t in tensors):
        return {}
    large = sorted({n for t in tensors for n in t.shape if n > _SMALL})
    return {n: _SMALL + 1 + i for i, n in enumerate(large)}


def _stand_in(x: Tensor, shape: list[int], dtype: torch.dtype) -> Tensor:
    if x.layout == torch.strided:
        return torch.zeros(shape, dtype=dtype, device="cpu")
    if x.layout == torch.sparse_coo:
        sparse, dense = shape[: x.sparse_dim()], shape[x.sparse_dim() :]
        nnz = min(x._nnz(), 1)
        made = torch.sparse_coo_tensor(
            torch.zeros((len(sparse), nnz), dtype=torch.int64), torch.zeros((nnz, *dense), dtype=dtype), shape,
            check_invariants=False,
        )  # fmt: skip
        return made._coalesced_(x.is_coalesced())
    compressed, plain = pointers(x)
    batch, dense = shape[: compressed.dim() - 1], shape[len(shape) - x.dense_dim() :] if x.dense_dim() else []
    blocks = _blocksize(x)
    nnz = min(x._nnz(), 1)
    lines = shape[len(batch) + (x.layout not in BY_ROW)]
    lines //= (blocks[int(x.layout == torch.sparse_bsc)] or 1) if blocks else 1
    begins = torch.full((*batch, lines + 1), nnz, dtype=compressed.dtype)
    begins[..., 0] = 0
    return torch.sparse_compressed_tensor(
        begins, torch.zeros((*batch, nnz), dtype=plain.dtype),
        torch.zeros((*batch, nnz, *blocks, *dense), dtype=dtype), shape, layout=x.layout, check_invariants=False,
    )  # fmt: skip


def _blocksize(x: Tensor) -> list[int]:
    if x.layout not in BLOCKED:
        return []
    batch = pointers(x)[0].dim() - 1
    return list(x.values().shape[batch + 1 : batch + 3])
