"""Refusals of reductions, sorts, products and arithmetic."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch._prims_common import canonicalize_dim

from .table import refuse_for


@refuse_for("cat")
def _check_cat(given: Mapping[str, Any]) -> None:
    for i, t in enumerate(given["tensors"]):
        if t.dim() == 0:
            raise RuntimeError(f"zero-dimensional tensor (at position {i}) cannot be concatenated")


@refuse_for("_foreach_sub")
def _check_subtracted(given: Mapping[str, Any]) -> None:
    if any(isinstance(number, bool) for number in given.get("scalars") or ()):
        raise RuntimeError(
            "Subtraction, the `-` operator, with a bool tensor is not supported. "
            "If you are trying to invert a mask, use the `~` or `logical_not()` operator instead."
        )


@refuse_for("hash_tensor")
def _check_mode(given: Mapping[str, Any]) -> None:
    if given["mode"] != 0:
        raise RuntimeError(f"Unknown hash_tensor mode: {given['mode']}")


@refuse_for("mv")
def _check_vector(given: Mapping[str, Any]) -> None:
    if given["self"].dim() == 0:
        raise IndexError("Dimension specified as 0 but tensor has no dimensions")


@refuse_for("addmv")
def _check_added_vector(given: Mapping[str, Any]) -> None:
    mat, vec = given["mat"], given["vec"]
    if given["self"].dim() == 0 and (mat.dim(), vec.dim()) == (2, 1) and mat.size(1) != vec.size(0):
        raise IndexError(
            f"size mismatch, got input ({mat.size(0)}), mat ({mat.size(0)}x{mat.size(1)}), vec ({vec.size(0)})"
        )


@refuse_for("geqrf")
def _check_matrix(given: Mapping[str, Any]) -> None:
    if given["self"].dim() < 2:
        raise RuntimeError("torch.geqrf: input must have at least 2 dimensions.")


@refuse_for("_softmax", "_log_softmax", "sort", "argsort", "topk", "cummax", "cummin")
def _check_dim(given: Mapping[str, Any]) -> None:
    canonicalize_dim(given["self"].dim(), given["dim"])


@refuse_for("median", "mode", "nanmedian", "amax", "amin", "aminmax", "kthvalue")
def _check_not_empty(given: Mapping[str, Any]) -> None:
    self, dims = given["self"], given.get("dim")
    if self.numel():
        return
    for d in dims if isinstance(dims, list) else [] if dims is None else [dims]:
        if -self.dim() <= d < self.dim() and self.size(d) == 0:
            raise IndexError(f"Expected reduction dim {d} to have non-zero size.")


@refuse_for("max", "min", "argmax", "argmin")
def _check_extremum(given: Mapping[str, Any]) -> None:
    if given.get("dim") is None and given["self"].numel() == 0:
        wrong: type[Exception] = IndexError if "keepdim" in given else RuntimeError  # of argmax, and of max
        raise wrong("Expected reduction dim to be specified for input.numel() == 0.")
    _check_not_empty(given)


@refuse_for("clamp")
def _check_clamp(given: Mapping[str, Any]) -> None:
    if given["min"] is None and given["max"] is None:
        raise RuntimeError("torch.clamp: At least one of 'min' or 'max' must not be None")


@refuse_for("_foreach_norm")
def _check_norms(given: Mapping[str, Any]) -> None:
    ord = given.get("ord", 2)
    if (ord < 0 or ord == math.inf) and any(t.numel() == 0 for t in given["self"]):
        raise RuntimeError(
            f"_foreach_norm: cannot compute the {ord} norm on an empty tensor because the operation does not have an "
            "identity"
        )


@refuse_for("_scaled_mm", "_scaled_mm_v2")
def _check_scaled_product(given: Mapping[str, Any]) -> None:
    a, b = given["self"], given["mat2"]
    for name, t in (("mat1", a), ("mat2", b)):
        if t.dim() != 2:
            raise RuntimeError(f"{name} must be a matrix, got {t.dim()} dimensions")
        if not (t.is_floating_point() and t.element_size() == 1):
            raise RuntimeError(f"Expected {name} to be Float8 matrix got {t.dtype}")
    (m, inner), (rows, n) = a.shape, b.shape
    if inner != rows:
        raise RuntimeError(f"mat1 and mat2 shapes cannot be multiplied ({m}x{inner} and {rows}x{n})")
    scales = [s[0] if isinstance(s, list) and s else s for s in (given["scale_a"], given["scale_b"])]
    sizes = [s.numel() for s in scales if isinstance(s, torch.Tensor)]
    if sizes not in ([1, 1], [m, n]):
        raise ValueError(
            f"Invalid scaling configuration: one scale for each matrix, or ({m}, 1) and (1, {n}) of them, got scale_a "
            f"of {sizes[:1]} and scale_b of {sizes[1:]} elements"
        )
    if given["bias"] is not None and given["bias"].numel() != n:
        raise RuntimeError(f"Bias must be size {n} but got {given['bias'].numel()}")
