"""Reductions, cumulative ones and sorts: padding becomes the element that changes nothing."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .aligned import NotPaddable
from .arrays import Padded, meet, met_along
from .rules import Call, plain, rule, unpadded


def lowest(dtype: Any) -> Array:
    """What no element is less than."""
    return _bound(dtype, -1)


def highest(dtype: Any) -> Array:
    """What no element but NaN is greater than."""
    return _bound(dtype, 1)


def _bound(dtype: Any, sign: int) -> Array:
    if dtype == np.bool_:
        return jnp.asarray(sign > 0)
    if jnp.issubdtype(dtype, jnp.integer):
        return jnp.asarray(jnp.iinfo(dtype).max if sign > 0 else jnp.iinfo(dtype).min, dtype)
    if not jnp.issubdtype(dtype, jnp.floating):
        raise NotPaddable(f"{dtype} has no order")
    infinite = np.asarray(sign * np.inf).astype(dtype)  # not every float8 has one
    limits = jnp.finfo(dtype)
    return jnp.asarray(infinite if np.isinf(infinite) else (limits.max if sign > 0 else limits.min), dtype)


def _neutral(name: str, dtype: Any) -> Any:
    if name.endswith(("sum", "or", "xor")):
        return 0
    if name.endswith(("prod", "mul")):
        return 1
    if name.endswith("and"):
        return True if dtype == np.bool_ else jnp.asarray(-1).astype(dtype)
    if name.endswith("logsumexp"):
        return lowest(dtype)
    return lowest(dtype) if "max" in name else highest(dtype)


@rule("reduce_sum", "reduce_prod", "reduce_max", "reduce_min", "reduce_and", "reduce_or", "reduce_xor",
      may_differ=["out_sharding"])  # fmt: skip
def reduce(call: Call) -> list[Padded]:
    (x,) = call.operands
    axes = call.params["axes"]
    array = call.numbers.fill(x, _neutral(call.step.primitive.name, x.array.dtype), axes)
    return [Padded(call.bind(array), tuple(e for a, e in enumerate(x.extents) if a not in axes))]


@rule("argmax", "argmin")
def argument_of(call: Call) -> list[Padded]:
    """Padding loses against all but its equal, and there the first index wins."""
    (x,) = call.operands
    axes = call.params["axes"]
    for a in axes:
        plain(x.extents[a])
    bound = lowest if call.step.primitive.name == "argmax" else highest
    array = call.numbers.fill(x, bound(x.array.dtype), axes)
    return [Padded(call.bind(array), tuple(e for a, e in enumerate(x.extents) if a not in axes))]


@rule("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")
def cumulative(call: Call) -> list[Padded]:
    (x,) = call.operands
    axis = call.params["axis"]
    array = call.numbers.fill(x, _neutral(call.step.primitive.name, x.array.dtype), [axis])
    e = x.extents[axis]
    if e is not None and e.atoms is None:  # running sums of what was all the same are not
        e = call.fresh()[axis]
    return [Padded(call.bind(array), (*x.extents[:axis], e, *x.extents[axis + 1 :]))]


@rule("sort")
def sort(call: Call) -> list[Padded]:
    """Whether an element is padding becomes the first key, so that padding comes last."""
    axis = call.params["dimension"]
    arrays = [x.array for x in call.operands]
    extents = list(meet(call.step.shapes[0], call.operands))
    e = extents[axis]
    if e is None:
        made = call.bind(*arrays)
    else:
        shape = [1] * len(extents)
        shape[axis] = e.padded
        away = jnp.broadcast_to(~call.numbers.real_along(e).reshape(shape), arrays[0].shape)
        keys = call.params["num_keys"] + 1
        made = call.step.primitive.bind(away, *arrays, **{**call.params, "num_keys": keys})[1:]
        extents[axis] = call.fresh()[axis]
    return [Padded(a, tuple(extents)) for a in made]


@rule("top_k", may_differ=["k"])
def top_k(call: Call) -> list[Padded]:
    (x,) = call.operands
    axis = call.params.get("axis", x.array.ndim - 1) % x.array.ndim
    plain(x.extents[axis])
    if "k" in call.step.differs and x.extents[axis] is None:
        raise NotPaddable("its k depends on sizes")
    array = call.numbers.fill(x, lowest(x.array.dtype), [axis])
    extents = (*x.extents[:axis], call.fresh()[axis], *x.extents[axis + 1 :])
    return [Padded(a, extents) for a in call.bind(array)]


@rule("reduce_window", "reduce_window_max", "reduce_window_min", "reduce_window_sum", "select_and_gather_add",
      "select_and_scatter_add", may_differ=[])  # fmt: skip
def windows(call: Call) -> list[Padded]:
    """Along axes that the window does not touch."""
    touched = [
        a
        for a, n in enumerate(call.params["window_dimensions"])
        if n != 1 or call.params["window_strides"][a] != 1 or tuple(call.params["padding"][a]) != (0, 0)
    ]
    whole = [x for x in call.operands if x.array.ndim == len(call.params["window_dimensions"])]
    for x in whole:
        unpadded(x.extents, touched, "an image or window")
    extents = tuple(met_along(along) for along in zip(*(x.extents for x in whole), strict=True))
    made: Any = call.bind(*(x.array for x in call.operands))
    arrays: list[Array] = list(made) if call.step.primitive.multiple_results else [made]
    return [Padded(a, extents) for a in arrays]


@rule("iota", may_differ=["shape", "sharding"])
def iota(call: Call) -> list[Padded]:
    """The same numbers along every other dimension than its own."""
    dimension = call.params["dimension"]
    fresh = call.fresh()
    extents = tuple(e if e is None or a == dimension else type(e)(e.real, e.padded, None) for a, e in enumerate(fresh))
    made = lax.broadcasted_iota(call.params["dtype"], call.step.shapes[0], dimension)
    return [Padded(made, extents)]
