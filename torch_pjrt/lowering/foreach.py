"""`_foreach_` ops: the single-tensor op's lowering mapped over the lists, as one node of the trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import torch
from jax import Array
from torch._C import Argument
from torch._ops import OpOverload

from .dtypes import opmath, to_numpy, to_torch
from .registry import Lowering, lower

# Where the single-tensor op goes by another name. `maximum` takes a number only in its list form: it is a clamp.
_BASE = {
    "norm": "linalg_vector_norm",
    "maximum": "clamp_min",
    "minimum": "clamp_max",
}


def derived(op: OpOverload) -> Lowering | None:
    """The lowering of a `_foreach_` overload, made from the single-tensor op's; None for every other op.

    Lists of tensors and of numbers are dealt out, a 1-d tensor of numbers (`scalars`) is split, everything else goes
    to each call as it is.

    Example:
        `_foreach_addcdiv.ScalarList(self, t1, t2, [v0, v1])` is `addcdiv(self[i], t1[i], t2[i], value=v[i])`.
    """
    from .apply import find

    base = op._schema.name.removeprefix("aten::")
    if not base.startswith("_foreach_"):
        return None
    base = base.removeprefix("_foreach_").rstrip("_")
    arguments = op._schema.arguments
    pairs = _paired(_BASE.get(base, base), arguments)
    inner = None if pairs is None else find(pairs[0])
    if pairs is None or inner is None:
        return None
    targets = pairs[1]
    dealt = frozenset(a.name for a in arguments if _is_dealt(a))
    static = frozenset(a.name for a, t in zip(arguments, targets, strict=True) if t.name in inner.static)
    keywords = [t.name if t.kwarg_only else None for t in targets]
    return Lowering(_mapped(inner.fn, [a.name for a in arguments], dealt, keywords), static, inner.dynamic)


@lower("_foreach_copy")
def foreach_copy(self: list[Array], src: list[Array], non_blocking: bool = False) -> list[Array]:
    return list(src)


@lower("_foreach_clone")
def foreach_clone(self: list[Array], *, memory_format: torch.memory_format | None = None) -> list[Array]:
    return list(self)


@lower("_foreach_zero")
def foreach_zero(self: list[Array]) -> list[None]:
    return [None] * len(self)


@lower("_foreach_powsum.Scalar", static=("ord",))
def foreach_powsum(self: list[Array], ord: float = 2, dtype: torch.dtype | None = None) -> list[Array]:
    """sum(|x|^ord) of each tensor: the norm before its root, for norms that go on across devices."""
    wide = [t.astype(to_numpy(opmath(dtype or to_torch(t.dtype)))) for t in self]
    return [jnp.sum(t * t if ord == 2 and not jnp.iscomplexobj(t) else jnp.abs(t) ** ord) for t in wide]


def _mapped(
    fn: Callable[..., Any], names: list[str], dealt: frozenset[str], keywords: list[str | None]
) -> Callable[..., list[Any]]:
    """`fn` over lists. The i-th argument goes to it by position, or as `keywords[i]` where that has a name."""
    slot = {name: i for i, name in enumerate(names)}

    def run(*args: Any, **kwargs: Any) -> list[Any]:
        given = list(enumerate(args)) + [(slot[k], v) for k, v in kwargs.items()]
        length = next(len(v) for i, v in given if names[i] in dealt)
        columns = [(keywords[i], list(v) if names[i] in dealt else [v] * length) for i, v in sorted(given)]
        positional = [c for k, c in columns if k is None]
        named = [(k, c) for k, c in columns if k is not None]
        return [fn(*(c[i] for c in positional), **{k: c[i] for k, c in named}) for i in range(length)]

    return run


def _paired(base: str, arguments: list[Argument]) -> tuple[OpOverload, list[Argument]] | None:
    """The overload of `base` that takes one element of each foreach argument, and which argument takes it.

    An argument pairs with the keyword of its own name, else with the argument at its own place.
    """
    packet = getattr(torch.ops.aten, base, None)
    for overload in packet.overloads() if packet is not None else []:
        candidate = getattr(packet, overload)
        have = candidate._schema.arguments
        keywords = {h.name: h for h in have if h.kwarg_only}
        targets = [keywords.get(a.name, h) for a, h in zip(arguments, have, strict=False)]
        fits = len(targets) == len(arguments) and all(
            not t.is_out and _element(t) == _element(a) for a, t in zip(arguments, targets, strict=True)
        )
        if fits and all(h.has_default_value() for h in have if h not in targets):
            return candidate, targets
    return None


def _is_dealt(argument: Argument) -> bool:
    return str(argument.type) in ("List[Tensor]", "List[number]") or argument.name == "scalars"


def _element(argument: Argument) -> str:
    if argument.name == "scalars":
        return "number"
    kind = str(argument.type)
    return kind[5:-1] if kind in ("List[Tensor]", "List[number]") else kind
