"""Ops on sparse tensors: the database's own sparse samples, and its dense ones made sparse where it has none."""

from __future__ import annotations

import unittest
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from .case import Case, Skip
from .place import map_tensors
from .units import Unit
from .variants import Make, arguments, samples, spread

_SUPPORTED_BY = {
    torch.sparse_coo: "supports_sparse",
    torch.sparse_csr: "supports_sparse_csr",
    torch.sparse_csc: "supports_sparse_csc",
    torch.sparse_bsr: "supports_sparse_bsr",
    torch.sparse_bsc: "supports_sparse_bsc",
}


def sparse(unit: Unit, limit: int | None) -> Iterator[Case]:
    """The op's result for sparse arguments in each layout that the database says it takes."""
    layouts = [layout for layout, flag in _SUPPORTED_BY.items() if getattr(unit.info, flag, False)]
    if not layouts:
        raise Skip("PyTorch has no sparse form of it")
    for layout in layouts:
        for i, sample in _sparse_samples(unit, layout, limit):
            yield Case(f"{i} {layout}", arguments(unit, sample), _as_dense(unit))


def _sparse_samples(unit: Unit, layout: torch.layout, limit: int | None) -> list[tuple[int, Any]]:
    torch.manual_seed(0)
    try:
        made = list(enumerate(unit.info.sample_inputs_sparse(layout, "cpu", unit.torch_dtype)))
        return spread(made, limit)
    except (NotImplementedError, unittest.SkipTest):
        matrices = [(i, s) for i, s in samples(unit, None) if isinstance(s.input, Tensor) and s.input.dim() == 2]
    return [(i, sample.transform(lambda t: _made_sparse(t, layout))) for i, sample in spread(matrices, limit)]


def _made_sparse(t: Any, layout: torch.layout) -> Any:
    if not isinstance(t, Tensor) or t.dim() != 2 or t.layout != torch.strided:
        return t
    blocksize = (1, 1) if layout in (torch.sparse_bsr, torch.sparse_bsc) else None
    return t.detach().to_sparse(layout=layout, blocksize=blocksize)


def _as_dense(unit: Unit) -> Callable[[Any, list[Tensor]], Any]:
    def program(inputs: Any, _: list[Tensor]) -> Any:
        result = unit.info(inputs[0], *inputs[1], **inputs[2])
        layouts = [str(t.layout) for t in (result if isinstance(result, (list, tuple)) else [result])]
        return layouts, map_tensors(lambda t: t if t.layout == torch.strided else t.to_dense(), result)

    return program


SPARSE_VARIANTS: dict[str, Make] = {"sparse": sparse}
