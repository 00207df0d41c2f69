"""Ops without a lowering: they run on CPU PyTorch and come back, warned of and counted, never hidden."""

from __future__ import annotations

import os
import warnings
from typing import Any

import torch
from torch._ops import OpOverload

from ..lowering.apply import written
from ..runtime.metrics import METRICS
from .infer import _converted, op_named, tensors_in
from .source import user_line
from .sparse.coo import assign


class FallbackWarning(UserWarning):
    """An op ran on the CPU because the device has no lowering for it."""


_WARNED: set[str] = set()


def policy() -> str:
    """`TORCH_PJRT_FALLBACK`: "warn" (default), "error" or "silent"."""
    value = os.environ.get("TORCH_PJRT_FALLBACK", "warn")
    if value not in ("warn", "error", "silent"):
        raise ValueError(f"TORCH_PJRT_FALLBACK={value!r}: expected warn, error or silent")
    return value


def fallback(name: str, args: list[Any]) -> Any:
    """Run the op on CPU copies of its tensors; what it writes is copied back, what it returns is moved back.

    Raises NotImplementedError if `TORCH_PJRT_FALLBACK=error`, and whatever the CPU op raises.
    """
    op = op_named(name)
    return run_on_cpu(op, _converted(op, args))


def run_on_cpu(op: OpOverload, args: list[Any]) -> Any:
    """The same for an overload and its arguments as Python has them, all of the schema's."""
    METRICS.fallbacks[op.name()] += 1
    _report(op.name())
    device = next((t.device for t in tensors_in(args) if t.device.type != "cpu"), None)
    copies: dict[int, torch.Tensor] = {}

    def to_cpu(x: Any) -> Any:
        if isinstance(x, torch.Tensor) and x.device.type != "cpu":
            if id(x) not in copies:
                copies[id(x)] = x.detach().cpu()
            return copies[id(x)]
        if isinstance(x, torch.Generator):
            return _cpu_generator(x)
        if isinstance(x, (list, tuple)):
            return [to_cpu(i) for i in x]
        return torch.device("cpu") if isinstance(x, torch.device) else x

    on_cpu = [to_cpu(a) for a in args]
    positional, keywords = [], {}
    for a, value in zip(op._schema.arguments, on_cpu, strict=True):
        if a.kwarg_only:
            keywords[a.name] = value
        else:
            positional.append(value)
    results = op(*positional, **keywords)

    names = [a.name for a in op._schema.arguments]
    given = dict(zip(names, args, strict=True))
    computed = dict(zip(names, on_cpu, strict=True))
    for n in written(op):
        for old, new in zip(tensors_in(given[n]), tensors_in(computed[n]), strict=True):
            assign(old, new if old.layout == torch.strided else new.to(old.device))
    if not op._schema.returns:
        return None
    single = len(op._schema.returns) == 1
    returned = [results] if single else list(results)
    back = []
    for value, ret in zip(returned, op._schema.returns, strict=True):
        alias = ret.alias_info
        source = None
        if alias is not None and alias.is_write:
            source = next(
                a.name
                for a in op._schema.arguments
                if a.alias_info is not None and a.alias_info.before_set == alias.before_set
            )
        back.append(given[source] if source is not None else _to_device(value, device))
    return back[0] if single else tuple(back)


def _to_device(x: Any, device: torch.device | None) -> Any:
    if isinstance(x, torch.Tensor):
        return x.to(device)
    return [_to_device(i, device) for i in x] if isinstance(x, (list, tuple)) else x


def _cpu_generator(g: torch.Generator) -> torch.Generator:
    """A CPU generator whose stream follows from the device generator's state, which moves on by one draw."""
    state = g.get_state()
    seed, offset = state.view(torch.int64).tolist()
    g.set_state(torch.tensor([seed, offset + 1]).view(torch.uint8))
    return torch.Generator().manual_seed((seed * 0x9E3779B97F4A7C15 + offset) & (2**63 - 1))


def _report(name: str) -> None:
    how = policy()
    if how == "silent":
        return
    message = (
        f"{name} has no lowering: it runs on the CPU and its tensors are copied there and back "
        f"(first met at {user_line()}). TORCH_PJRT_FALLBACK=error makes this an error, =silent hides it."
    )
    if how == "error":
        raise NotImplementedError(message)
    if name not in _WARNED:
        _WARNED.add(name)
        warnings.warn(message, FallbackWarning, stacklevel=2)
