"""Apply one ATen op to JAX arrays: find its lowering, run it, hold the result to what PyTorch promises.

The outputs of `apply` are *normalized*, the same for every flavour of an op: first the new value of each tensor the
schema writes to (in schema order, tensor lists flattened), then each fresh result (likewise). So `add` gives
[result], `add_` gives [new self], `add.out` gives [new out], `_fused_adam_` gives the new params, grads, ...
"""

from __future__ import annotations

import functools
import importlib
import math
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import torch
from torch._ops import OpOverload

from . import registry
from .dtypes import to_numpy
from .registry import Lowering


@dataclass(frozen=True, slots=True)
class Spec:
    """What PyTorch promises of one output: its logical shape and dtype."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class LoweringError(RuntimeError):
    """A lowering broke its contract (wrong shape or number of outputs): a bug here, never the user's."""


@functools.cache
def load() -> None:
    """Import every op family in this package, once."""
    package = importlib.import_module(__package__ or "torch_pjrt.lowering")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")


def overload_name(op: OpOverload) -> str:
    """`aten::add.Tensor` -> "add.Tensor", `aten::relu` -> "relu"; other namespaces keep theirs ("prims::sum")."""
    name: str = op.name()
    return name.removeprefix("aten::")


def written(op: OpOverload) -> list[str]:
    """The names of the tensor (list) arguments that the schema writes to, in schema order."""
    return [a.name for a in op._schema.arguments if a.alias_info is not None and a.alias_info.is_write]


@functools.cache
def find(op: OpOverload) -> Lowering | None:
    """The lowering of `op`, whose function returns normalized outputs; None if nothing here knows the op.

    Its own entry first, then (for in-place, `out=` and `_foreach_` overloads) the functional twin's entry, then
    PyTorch's decomposition into ops that have lowerings.
    """
    load()
    entry = registry.get(overload_name(op))
    if entry is not None:
        return entry
    twin = functional_twin(op)
    if twin is not None:
        inner = find(twin)
        return None if inner is None else _as_mutation(op, inner)
    from .decompose import decomposed
    from .foreach import derived

    return derived(op) or decomposed(op)


@functools.cache
def functional_twin(op: OpOverload) -> OpOverload | None:
    """The overload that computes what an in-place or `out=` overload writes, or None.

    `add_.Tensor` -> `add.Tensor`; `mm.out` -> `mm`; `_foreach_add_.List` -> `_foreach_add.List`.
    """
    mutated = written(op)
    if not mutated:
        return None
    namespace, _, base = op._schema.name.partition("::")
    ops = getattr(torch.ops, namespace)
    kept = [a for a in op._schema.arguments if a.name not in mutated]
    if all(a.is_out for a in op._schema.arguments if a.name in mutated):
        packet = getattr(ops, base, None)
        wanted = [(a.name, str(a.type)) for a in kept]
    elif base.endswith("_") and len(mutated) == 1:
        packet = getattr(ops, base[:-1], None)
        wanted = [(a.name, str(a.type)) for a in op._schema.arguments]
    else:
        return None
    if packet is None:
        return None
    for overload in packet.overloads():
        candidate = getattr(packet, overload)
        if written(candidate):
            continue
        have = [(a.name, str(a.type)) for a in candidate._schema.arguments if a.name not in _FACTORY]
        if have == [w for w in wanted if w[0] not in _FACTORY]:
            return candidate
    return None


_FACTORY = frozenset({"dtype", "layout", "device", "pin_memory", "memory_format"})


def _as_mutation(op: OpOverload, inner: Lowering) -> Lowering:
    """Run the functional lowering; its results are the new values of what `op` writes."""
    outs = [a.name for a in op._schema.arguments if a.is_out]
    factory = {a.name for a in op._schema.arguments} & _FACTORY

    def fn(*args: Any, **kwargs: Any) -> Any:
        for name in outs:
            kwargs.pop(name, None)
        for name in factory - _accepted(inner.fn):
            kwargs.pop(name, None)
        return inner.fn(*args, **kwargs)

    return Lowering(fn, inner.static, inner.dynamic, inner.random, inner.write_only | frozenset(outs))


@functools.cache
def _accepted(fn: Callable[..., Any]) -> frozenset[str]:
    import inspect

    return frozenset(inspect.signature(fn).parameters)


def apply(
    op: OpOverload,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    outs: Sequence[Spec | None],
    key: jax.Array | None = None,
) -> list[Any]:
    """The normalized outputs of `op` on JAX arrays, each cast to the dtype in `outs`.

    Args:
        op: the ATen overload.
        args, kwargs: its arguments by schema; missing ones take the schema's default.
        outs: what PyTorch promises of each output; None where the op returns no tensor (a masked-out gradient).
        key: uint32[4] random key, for ops that draw random numbers.

    Raises:
        NotImplementedError: no lowering for `op`.
        LoweringError: the lowering returned something other than `outs` promise.

    Example:
        >>> apply(torch.ops.aten.neg.default, [jnp.ones((2, 3))], {}, [Spec((2, 3), torch.float32)])[0].shape
        (2, 3)
    """
    lowering = find(op)
    if lowering is None:
        raise NotImplementedError(f"{op.name()} has no lowering")
    extra = {"key": key} if lowering.random else {}
    try:
        results = flatten(lowering.fn(*args, **kwargs, **extra))
    except (TypeError, ValueError, ZeroDivisionError):
        if any(spec is None or math.prod(spec.shape) for spec in outs):
            raise
        return [jnp.zeros(spec.shape, to_numpy(spec.dtype)) for spec in outs if spec is not None]  # nothing to compute
    if len(results) == sum(spec is not None for spec in outs):  # a lowering need not return what nobody asked for
        wanted = iter(results)
        results = [None if spec is None else next(wanted) for spec in outs]
    if len(results) != len(outs):
        raise LoweringError(f"{op.name()}: the lowering returned {len(results)} outputs, PyTorch promises {len(outs)}")
    return [
        None if spec is None else held_to(op.name(), i, r, spec)
        for i, (r, spec) in enumerate(zip(results, outs, strict=True))
    ]


def flatten(result: Any) -> list[Any]:
    """Arrays of a lowering's result in order, with nested lists and tuples opened and None kept."""
    if isinstance(result, (list, tuple)):
        return [leaf for item in result for leaf in flatten(item)]
    return [result]


def held_to(name: str, index: int, value: Any, spec: Spec) -> jax.Array:
    """Output `index` of the op of that name as PyTorch promises it; zeros for None."""
    dtype = to_numpy(spec.dtype)
    if value is None:
        return jnp.zeros(spec.shape, dtype)
    value = jnp.asarray(value)
    if value.shape != spec.shape:
        if value.size == 1 or (value.ndim <= len(spec.shape) and _broadcasts(value.shape, spec.shape)):
            value = jnp.broadcast_to(value.reshape(()) if value.size == 1 else value, spec.shape)
        else:
            raise LoweringError(
                f"{name}: output {index} of the lowering has shape {value.shape}, PyTorch promises {spec.shape}"
            )
    if value.dtype != dtype or value.weak_type:
        value = cast(value, dtype)
    return rounded_halves(value) if spec.dtype == torch.complex32 else value


def rounded_halves(x: jax.Array) -> jax.Array:
    """What complex32 can hold of complex numbers, in complex64."""
    return jax.lax.complex(*(part.astype(np.float16).astype(np.float32) for part in (x.real, x.imag)))


def _broadcasts(shape: Sequence[int], to: Sequence[int]) -> bool:
    return all(s in (1, t) for s, t in zip(shape[::-1], to[::-1], strict=False))


def cast(x: jax.Array, dtype: np.dtype) -> jax.Array:
    """`x` in `dtype` as CPU PyTorch's `.to` does it.

    Complex to real keeps the real part, non-zero is True, and floats wrap in the short and the unsigned integers (-1.0
    is 255 in uint8), where XLA would saturate. float8_e8m0fnu has no sign, so the number's is dropped;
    float8_e4m3fn has no infinity, so what is too large becomes the largest number, where this PyTorch does so, or NaN.
    """
    if jnp.issubdtype(x.dtype, jnp.complexfloating) and not jnp.issubdtype(dtype, jnp.complexfloating):
        x = (x != 0) if dtype == np.bool_ else x.real
    if jnp.issubdtype(x.dtype, jnp.inexact) and jnp.issubdtype(dtype, jnp.integer):
        if np.dtype(dtype).itemsize < 4:
            x = jax.lax.convert_element_type(x, np.int32)
        elif dtype == np.uint32:
            x = jax.lax.convert_element_type(x, np.int64)
        elif dtype == np.uint64:
            negative = jax.lax.convert_element_type(jnp.minimum(x, 0), np.int64).astype(np.uint64)
            return jnp.where(x < 0, negative, jax.lax.convert_element_type(x, np.uint64))
    if dtype == ml_dtypes.float8_e8m0fnu:
        x = jnp.abs(x)
    elif dtype == ml_dtypes.float8_e4m3fn and x.dtype != dtype and _saturates():
        top = float(ml_dtypes.finfo(dtype).max)
        x = x.astype(np.promote_types(x.dtype, np.float32))
        x = jnp.where(jnp.isnan(x), x, jnp.clip(x, -top, top))
    return jax.lax.convert_element_type(x, dtype)


@functools.cache
def _saturates() -> bool:
    """Whether the installed PyTorch casts what float8_e4m3fn cannot hold to its largest number, as 2.13 does."""
    return bool(torch.tensor(1e5).to(torch.float8_e4m3fn).float().isfinite())
