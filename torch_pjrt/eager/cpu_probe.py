"""Which dtypes an op refuses: asked of PyTorch's CPU kernel itself, on a small stand-in of the call.

Many of PyTorch's meta kernels are Python references that accept dtypes which the kernels they stand for refuse. A
table of what CPU kernels refuse would have hundreds of rows and be right for one release of PyTorch; the kernel is at
hand, so it is run on zeros of the same dtypes, once per op and combination of dtypes. Only what it says of dtypes
counts: a stand-in may have shapes or values that the kernel does not like.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

from .. import _C

# What runs on the CPU in place of an op that only an accelerator has.
_ON_CPU = {"aten::convolution_overrideable": torch.ops.aten.convolution.default}
# Private ops that a program reaches through a public one of the same meaning. The others, and the gradients, take what
# their forward returned: an internal kernel trusts its caller too much to be run on zeros.
_ASKED = (
    "_softmax", "_log_softmax", "_linalg_", "_index_put_impl", "_cdist_forward", "_prelu_kernel", "_embedding_bag",
    "_addmm_activation", "_foreach_", "_unsafe_", "_upsample_", "_adaptive_avg_pool", "_native_batch_norm",
    "_batch_norm", "_safe_softmax", "_masked_softmax", "__",
)  # fmt: skip
_NOT_ASKED = frozenset({"aten::empty_like", "aten::_linalg_check_errors", "aten::histc"})
_ABOUT_DTYPES = re.compile(
    r"\b[Dd]?types?\b|[Cc]omplex|[Bb]ool|\b[Ff]loating|\b[Ii]nteg(er|ral)|tensor for index|used as indices|"
    r"tensors but got"
)
# "value cannot be converted to type uint8_t without overflow" is about a number that travels at run time.
_ABOUT_VALUES = re.compile("overflow|out of bounds")
_HALF = (torch.float16, torch.bfloat16)
# LAPACK, on every platform, knows single and double precision only.
_NEVER_HALF = ("_linalg_", "linalg_", "cholesky", "lu_", "geqrf", "ormqr", "orgqr", "triangular_solve")
_LARGEST = 4096  # elements of all stand-ins together
Dtypes = tuple[torch.dtype | None, ...]
_PASSED: dict[tuple[Any, ...], Dtypes | None] = {}


class _Inconclusive(Exception):
    """The stand-in has shapes or values that the kernel refuses before it looks at dtypes."""


def result_dtypes(op: OpOverload, given: Mapping[str, Any]) -> Dtypes | None:
    """What CPU PyTorch returns for these dtypes: one dtype for each tensor, None for what is no tensor.

    Reduced precision is more freely taken than on the CPU: where its kernel has float32 but not float16 or bfloat16,
    an accelerator has all three.

    Args:
        op: the overload that is recorded.
        given: its arguments by name; of the tensors, only dtype and shape count.

    Returns:
        the dtypes, or None if the CPU was not asked or gave no answer about dtypes.

    Raises:
        what CPU PyTorch raises for these dtypes.
    """
    if not _may_ask(op):
        return None
    signature = (op, torch.get_default_dtype(), *(_signature(x) for x in given.values()))
    if signature in _PASSED:
        return _PASSED[signature]
    twin = _ON_CPU.get(op.name(), op)
    try:
        _PASSED[signature] = _ask(twin, given, {})
        return _PASSED[signature]
    except _Inconclusive:
        _PASSED[signature] = None
        return None
    except NotImplementedError as refusal:
        if not _holds(given, _HALF) or op._schema.name.removeprefix("aten::").startswith(_NEVER_HALF):
            raise
        try:
            _ask(twin, given, dict.fromkeys(_HALF, torch.float32))
        except Exception:
            raise refusal from None
        return None  # refused for being half precision, not for being what it is


def _may_ask(op: OpOverload) -> bool:
    name = op._schema.name
    base = name.partition("::")[2]
    if name in _NOT_ASKED or op.namespace != "aten" or "backward" in base or "fused_adam" in base:
        return False
    if base.startswith("_") and not base.startswith(_ASKED) and op.name() not in _ON_CPU:
        return False
    arguments = op._schema.arguments
    if torch.Tag.nondeterministic_seeded in op.tags and not any(a.name == "generator" for a in arguments):
        return False  # it would draw from the CPU's generator
    return any("Tensor" in str(a.type) for a in arguments)


def _signature(x: Any) -> Any:
    if isinstance(x, Tensor):
        return x.dtype, min(x.dim(), 1), x.numel() == 0
    if isinstance(x, (list, tuple)):
        return tuple(map(_signature, x)) if x and isinstance(x[0], Tensor) else len(x)
    return x if isinstance(x, (str, bool, torch.dtype)) else type(x)


def _holds(given: Mapping[str, Any], dtypes: tuple[torch.dtype, ...]) -> bool:
    def any_in(x: Any) -> bool:
        if isinstance(x, (list, tuple)):
            return any(any_in(i) for i in x)
        return (isinstance(x, Tensor) and x.dtype in dtypes) or (isinstance(x, torch.dtype) and x in dtypes)

    return any(any_in(x) for x in given.values())


def _ask(op: OpOverload, given: Mapping[str, Any], replaced: Mapping[torch.dtype, torch.dtype]) -> Dtypes:
    """Run the CPU kernel on stand-ins; raises what it says of dtypes, _Inconclusive for anything else."""
    stand_in = _small(given, replaced)
    args = [stand_in[a.name] for a in op._schema.arguments if not a.kwarg_only and a.name in stand_in]
    kwargs = {a.name: stand_in[a.name] for a in op._schema.arguments if a.kwarg_only and a.name in stand_in}
    try:
        with torch._C._DisableAutocast(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results = _C.without_warnings(lambda: op(*args, **kwargs))
    except NotImplementedError as error:
        if "Could not run" in str(error):  # there is no CPU kernel to ask
            raise _Inconclusive from error
        raise
    except Exception as error:
        if _ABOUT_DTYPES.search(str(error)) and not _ABOUT_VALUES.search(str(error)):
            raise
        raise _Inconclusive from error
    return tuple(t.dtype if isinstance(t, Tensor) else None for t in tree_leaves(results))


def _small(given: Mapping[str, Any], replaced: Mapping[torch.dtype, torch.dtype]) -> dict[str, Any]:
    """The arguments with zeros for tensors, and every size and number above a bound replaced by the bound.

    Equal sizes stay equal and a bound holds for sizes and numbers alike, so that most calls keep making sense.
    """
    shapes = [x.shape for x in tree_leaves(list(given.values())) if isinstance(x, Tensor)]
    bound = next(b for b in (16, 8, 4, 2, 1) if b == 1 or _elements(shapes, b) <= _LARGEST)

    def small(x: Any) -> Any:
        if isinstance(x, Tensor):
            shape = [min(n, bound) for n in x.shape]
            return torch.zeros(shape, dtype=replaced.get(x.dtype, x.dtype), device="cpu")
        if isinstance(x, (list, tuple)):
            return [small(i) for i in x]
        if isinstance(x, torch.dtype):
            return replaced.get(x, x)
        if isinstance(x, torch.device):
            return torch.device("cpu")
        return max(-bound, min(x, bound)) if type(x) in (int, float) else x

    # A generator of its own, so that nothing is drawn from the user's or the CPU's.
    return {n: torch.Generator() if n == "generator" else small(x) for n, x in given.items()}


def _elements(shapes: Sequence[Sequence[int]], bound: int) -> int:
    return sum(math.prod(min(n, bound) for n in shape) for shape in shapes)
