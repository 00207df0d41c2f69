"""What CPU PyTorch's kernels refuse and its meta kernels don't: dtypes, dimensions and overlapping memory.

A shape is inferred on meta tensors, and many of PyTorch's meta kernels are Python references that check less than the
kernels they stand for. A program that is wrong must say so on every device, so the missing checks are here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from ..lowering.apply import functional_twin

Check = Callable[[Mapping[str, Any]], None]
_CHECKS: dict[str, Check] = {}
# Refusal in aliasing.h.
_REPEATS, _PARTIAL_OVERLAP, _OVERLAP = 1, 2, 4


def check(op: OpOverload, given: Mapping[str, Any]) -> None:
    """Raise what the op's CPU kernel raises for these arguments (meta tensors, by name) and its meta kernel may not."""
    name = base_name(op)
    if name in _CHECKS:
        _CHECKS[name](given)
    if torch.Tag.pointwise in op.tags and torch.Tag.inplace in op.tags:
        _check_result_fits(op, given)


def refusals(op: OpOverload) -> int:
    """The bits of the memory overlaps that the op's CPU kernel refuses: what TensorIterator does unless told not to."""
    name = base_name(op)
    if name in ("index_add", "index_copy", "cat", "gather") or name.startswith("scatter"):
        return _REPEATS | _OVERLAP
    if name in ("index_put", "_index_put_impl"):
        return _OVERLAP
    if name in ("masked_fill", "index_fill"):
        return _PARTIAL_OVERLAP
    if name in ("cumsum", "cumprod") or torch.Tag.nondeterministic_seeded in op.tags or name.startswith("_foreach_"):
        return _REPEATS
    if name == "copy" or torch.Tag.pointwise in op.tags:
        return _REPEATS | _PARTIAL_OVERLAP
    return 0


def base_name(op: OpOverload) -> str:
    """`aten::add_.Tensor` and `aten::add.out` -> "add"."""
    name: str = op._schema.name.partition("::")[2]
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


def named(dtype: torch.dtype) -> str:
    """A dtype as ATen's messages call it: "Float"."""
    name: str = torch.empty(0, dtype=dtype).type().rpartition(".")[2].removesuffix("Tensor")
    return name


def _refuse_for(*names: str) -> Callable[[Check], Check]:
    def register(fn: Check) -> Check:
        _CHECKS.update(dict.fromkeys(names, fn))
        return fn

    return register


def _check_result_fits(op: OpOverload, given: Mapping[str, Any]) -> None:
    """In place, a result that is of a wider kind than the tensor (float into int) has nowhere to go."""
    out = given[op._schema.arguments[0].name]
    others = [x for n, x in given.items() if isinstance(x, (Tensor, float, complex)) and x is not out]
    if out.dtype.is_floating_point and not any(_is_complex(x) for x in others):
        return
    twin = functional_twin(op)
    if twin is None:
        return
    keyword = {a.name for a in op._schema.arguments if a.kwarg_only}
    result = twin(
        *(x for n, x in given.items() if n not in keyword), **{n: x for n, x in given.items() if n in keyword}
    )
    if not torch.can_cast(result.dtype, out.dtype):
        raise RuntimeError(
            f"result type {named(result.dtype)} can't be cast to the desired output type {named(out.dtype)}"
        )


def _is_complex(x: Tensor | float | complex) -> bool:
    return x.is_complex() if isinstance(x, Tensor) else isinstance(x, complex)


def _dtype(x: Any) -> torch.dtype:
    return x.dtype if isinstance(x, Tensor) else torch.bool if isinstance(x, bool) else torch.get_default_dtype()


@_refuse_for("add", "sub", "rsub", "_foreach_sub", "_foreach_add")
def _check_alpha(given: Mapping[str, Any]) -> None:
    self, other, alpha = given["self"], given.get("other"), given.get("alpha", 1)
    if isinstance(self, list) or isinstance(other, list) or other is None:
        return
    result = torch.result_type(self, other)
    if isinstance(alpha, bool) and result != torch.bool:
        raise RuntimeError("Boolean alpha only supported for Boolean results.")
    if isinstance(alpha, float) and not (result.is_floating_point or result.is_complex):
        raise RuntimeError("For integral input tensors, argument alpha must not be a floating point number.")
    if isinstance(alpha, complex) and not result.is_complex:
        raise RuntimeError("For non-complex input tensors, argument alpha must not be a complex number.")


@_refuse_for("sub", "rsub")
def _check_subtraction(given: Mapping[str, Any]) -> None:
    bools = [_dtype(given[n]) == torch.bool for n in ("self", "other")]
    if all(bools):
        raise RuntimeError(
            "Subtraction, the `-` operator, with two bool tensors is not supported. "
            "Use the `^` or `logical_xor()` operator instead."
        )
    if any(bools):
        raise RuntimeError(
            "Subtraction, the `-` operator, with a bool tensor is not supported. If you are trying to invert a mask, "
            "use the `~` or `logical_not()` operator instead."
        )
    _check_alpha(given)


@_refuse_for("cat")
def _check_cat(given: Mapping[str, Any]) -> None:
    for i, t in enumerate(given["tensors"]):
        if t.dim() == 0:
            raise RuntimeError(f"zero-dimensional tensor (at position {i}) cannot be concatenated")


@_refuse_for("mm", "bmm", "addmm", "baddbmm", "addmv", "mv", "dot", "vdot", "addbmm", "linear")
def _check_product(given: Mapping[str, Any]) -> None:
    tensors = [(n, x) for n, x in given.items() if isinstance(x, Tensor) and n not in ("out", "bias")]
    (first, one), *others = tensors
    for other, two in others:
        if one.dtype != two.dtype:
            raise RuntimeError(
                f"{first} and {other} must have the same dtype, but got {named(one.dtype)} and {named(two.dtype)}"
            )


@_refuse_for("index_select")
def _check_index(given: Mapping[str, Any]) -> None:
    if given["index"].dtype not in (torch.int32, torch.int64):
        raise RuntimeError("index_select(): Expected dtype int32 or int64 for index")


@_refuse_for("index_copy", "index_add")
def _check_source(given: Mapping[str, Any]) -> None:
    self, source = given["self"], given["source"]
    if self.dtype != source.dtype:
        raise RuntimeError(
            f"self and source expected to have the same dtype, but got (self) {named(self.dtype)} and (source) "
            f"{named(source.dtype)}"
        )


@_refuse_for("index_put", "_index_put_impl")
def _check_index_put(given: Mapping[str, Any]) -> None:
    self, values = given["self"], given["values"]
    if self.dtype != values.dtype:
        raise RuntimeError(
            f"Index put requires the source and destination dtypes match, got {named(self.dtype)} for the destination "
            f"and {named(values.dtype)} for the source."
        )


@_refuse_for("_softmax", "_log_softmax")
def _check_softmax(given: Mapping[str, Any]) -> None:
    _check_dim(given)
    dtype = given["self"].dtype
    if not dtype.is_floating_point and given["self"].numel():
        raise NotImplementedError(f"softmax is not implemented for '{named(dtype)}'")


@_refuse_for("sort", "argsort", "topk")
def _check_dim(given: Mapping[str, Any]) -> None:
    d, rank = given["dim"], max(given["self"].dim(), 1)
    if not -rank <= d < rank:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-rank}, {rank - 1}], but got {d})")


@_refuse_for("max", "min", "median", "mode", "nanmedian", "amax", "amin")
def _check_not_empty(given: Mapping[str, Any]) -> None:
    self, dims = given["self"], given.get("dim")
    if self.numel() or dims is None:
        return
    for d in dims if isinstance(dims, list) else [dims]:
        if -self.dim() <= d < self.dim() and self.size(d) == 0:
            raise IndexError(f"Expected reduction dim {d} to have non-zero size.")


@_refuse_for("var", "std", "var_mean", "std_mean")
def _check_continuous(given: Mapping[str, Any]) -> None:
    if not (given["self"].is_floating_point() or given["self"].is_complex()):
        raise RuntimeError("std and var only support floating point and complex dtypes")


@_refuse_for("clamp")
def _check_clamp(given: Mapping[str, Any]) -> None:
    if given["min"] is None and given["max"] is None:
        raise RuntimeError("torch.clamp: At least one of 'min' or 'max' must not be None")


@_refuse_for("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not")
def _check_bits(given: Mapping[str, Any]) -> None:
    for x in given.values():
        if isinstance(x, Tensor) and (x.dtype.is_floating_point or x.dtype.is_complex):
            raise NotImplementedError(f"bitwise operations are not implemented for '{named(x.dtype)}'")
