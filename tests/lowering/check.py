"""Hold one lowering against CPU PyTorch, without a device."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_flatten, tree_map

from torch_pjrt.lowering import Spec, apply
from torch_pjrt.lowering.apply import written
from torch_pjrt.lowering.dtypes import in_array, to_numpy


def to_jax(t: torch.Tensor) -> jax.Array:
    """A CPU tensor's values as a JAX array of the same dtype."""
    t = t.detach().resolve_conj().resolve_neg().contiguous()
    want = to_numpy(t.dtype)
    if t.dtype in (torch.bfloat16, torch.float16):
        array = t.view(torch.int16).numpy().view(want)
    elif t.dtype.itemsize == 1 and t.dtype.is_floating_point:
        array = t.view(torch.uint8).numpy().view(want)
    else:
        array = t.numpy()
    return jax.numpy.asarray(array.copy())


def to_cpu(x: jax.Array) -> torch.Tensor:
    """A JAX array's values as a CPU tensor of the same dtype."""
    array = np.array(x)
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    if array.dtype.name.startswith("float8"):
        return torch.from_numpy(array.view(np.uint8)).view(getattr(torch, array.dtype.name))
    return torch.from_numpy(array)


def lowered(op: OpOverload, *args: Any, **kwargs: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """(the lowering's normalized outputs, CPU PyTorch's) for CPU tensor arguments."""
    call_args, call_kwargs = tree_map(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, (args, kwargs))
    fresh = op(*call_args, **call_kwargs)
    names = [a.name for a in op._schema.arguments]
    bound = dict(zip(names, call_args, strict=False)) | call_kwargs
    expected = [t for n in written(op) for t in tree_flatten(bound[n])[0]]
    if not expected:
        expected = [t for t in tree_flatten(fresh)[0] if isinstance(t, torch.Tensor)]
    else:
        kept = [r for r, s in zip(_as_list(fresh), op._schema.returns, strict=False) if s.alias_info is None]
        expected += [t for t in tree_flatten(kept)[0] if isinstance(t, torch.Tensor)]
    specs = [Spec(tuple(t.shape), t.dtype) for t in expected]
    with jax.enable_x64(True):
        leaves, tree = tree_flatten((args, kwargs))
        slots = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]

        def run(arrays: list[jax.Array]) -> list[jax.Array]:
            filled = list(leaves)
            for i, a in zip(slots, arrays, strict=True):
                filled[i] = a
            a, k = torch.utils._pytree.tree_unflatten(filled, tree)
            return apply(op, list(a), k, specs)

        outputs = jax.jit(run)([to_jax(leaves[i]) for i in slots])
        return [to_cpu(o) for o in outputs], expected


def check(op: OpOverload, *args: Any, rtol: float | None = None, atol: float | None = None, **kwargs: Any) -> None:
    """Assert that the lowering of `op` gives what CPU PyTorch gives, dtype and shape included.

    Example:
        >>> check(torch.ops.aten.add.Tensor, torch.ones(3), torch.ones(2, 3), alpha=2)
    """
    got, want = lowered(op, *args, **kwargs)
    for g, w in zip(got, want, strict=True):
        w = w.resolve_conj().resolve_neg()
        near = (rtol, atol)
        if w.dtype == torch.complex32 and rtol is None:  # its array is complex64
            near = (torch.finfo(torch.float16).eps, 1e-5)
        torch.testing.assert_close(g, in_array(w), rtol=near[0], atol=near[1], equal_nan=True, check_stride=False)


def _as_list(x: Any) -> list[Any]:
    return list(x) if isinstance(x, (list, tuple)) else [x]
