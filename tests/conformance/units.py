"""What there is to test: one unit per op (module, optimizer) and dtype, from the databases inside the torch package."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

DATABASES = ("op_db", "foreach_db", "module_db", "optim_db")


@dataclass(frozen=True, slots=True, order=True)
class Unit:
    """One entry of a database with one dtype, e.g. Unit("op_db", "std.unbiased", "float32")."""

    database: str
    op: str
    dtype: str

    @property
    def info(self) -> Any:
        """PyTorch's description: an OpInfo, ModuleInfo or OptimizerInfo."""
        return entries(self.database)[self.op]

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype itself."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype

    def __str__(self) -> str:
        return f"{self.op}[{self.dtype}]"


@functools.cache
def entries(database: str) -> dict[str, Any]:
    """The entries of a database by name; an op's variant is behind a dot."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if database == "op_db":
            from torch.testing._internal import common_methods_invocations as databases

            # The database seeds its random ops before each call, which would make all draws one.
            databases.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)
            return {
                op.name + (f".{op.variant_test_name}" if op.variant_test_name else ""): op for op in databases.op_db
            }
        if database == "foreach_db":
            from torch.testing._internal import common_methods_invocations as databases

            kinds = ("unary", "binary", "pointwise", "reduce", "other")
            return {op.name: op for kind in kinds for op in getattr(databases, f"foreach_{kind}_op_db")}
        if database == "module_db":
            from torch.testing._internal.common_modules import module_db

            return {module.name: module for module in module_db}
        from torch.testing._internal.common_optimizers import optim_db

        return {optimizer.optim_cls.__name__: optimizer for optimizer in optim_db}


def units(databases: tuple[str, ...] = DATABASES) -> Iterator[Unit]:
    """Every unit, each op with the dtypes that its CPU kernels support."""
    for database in databases:
        for name, info in entries(database).items():
            for dtype in dtypes(database, info):
                yield Unit(database, name, str(dtype).removeprefix("torch."))


def dtypes(database: str, info: Any) -> list[torch.dtype]:
    """The dtypes that CPU PyTorch supports for this entry."""
    if database == "optim_db":
        return [torch.float32, torch.float64]
    supported = set(info.supported_dtypes("cpu"))
    if database == "module_db":
        supported |= {torch.bfloat16}
    return sorted(supported, key=str)


def category(unit: Unit) -> str:
    """The part of PyTorch an op belongs to, for the report's totals."""
    if unit.database != "op_db":
        return unit.database
    for prefix, name in _PREFIXES.items():
        if unit.op.startswith(prefix):
            return name
    kind = type(unit.info).__name__
    return _KINDS.get(kind, "other")


_PREFIXES = {
    "linalg.": "linalg",
    "fft.": "fft",
    "special.": "special",
    "masked.": "masked",
    "signal.": "signal",
    "sparse.": "sparse",
    "nn.functional.": "nn.functional",
}
_KINDS = {
    "UnaryUfuncInfo": "unary",
    "BinaryUfuncInfo": "binary",
    "ReductionOpInfo": "reduction",
    "ShapeFuncInfo": "shape",
    "SpectralFuncInfo": "fft",
}
