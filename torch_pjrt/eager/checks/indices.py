"""Refusals of what reads or writes at indices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._prims_common import canonicalize_dim

from .table import refuse_for


@refuse_for("masked_fill")
def _check_filled(given: Mapping[str, Any]) -> None:
    value = given["value"]  # a tensor's is looked at by the program
    if isinstance(value, complex) and value.imag and not given["self"].is_complex():
        raise RuntimeError(f"value cannot be converted to type {given['self'].dtype} without overflow")


@refuse_for("masked_scatter_")
def _check_mask_fits(given: Mapping[str, Any]) -> None:
    own, mask = given["self"].dim(), given["mask"].dim()
    if mask > own:
        raise RuntimeError(
            f"expand: the number of sizes provided ({own}) must be greater or equal to the number of dimensions in the "
            f"tensor ({mask})"
        )


@refuse_for("searchsorted")
def _check_sequence(given: Mapping[str, Any]) -> None:
    if given["sorted_sequence"].dim() == 0:
        raise RuntimeError(
            "torch.searchsorted(): input value can be a scalar only when boundaries tensor dimension is 1, but we got "
            "boundaries tensor dim(0)"
        )


def _refuse_places_of_a_number(given: Mapping[str, Any]) -> None:
    """A number as the source has one place; the CPU asks it for the size of a dimension to say that."""
    if given["source"].dim() == 0 and given["index"].numel() != 1:
        raise IndexError(f"the source is a number, so the index should have one element (got {given['index'].numel()})")


@refuse_for("index_add")
def _check_index_add(given: Mapping[str, Any]) -> None:
    _refuse_places_of_a_number(given)
    _check_added(given)


def _check_added(given: Mapping[str, Any]) -> None:
    self, source = given["self"], given["source"]
    shapes = [list(t.shape) for t in (self, source)]
    if len(shapes[0]) == len(shapes[1]) > 0:
        dim = given["dim"] % len(shapes[0])
        shapes = [s[:dim] + s[dim + 1 :] for s in shapes]
    if shapes[0] != shapes[1]:
        raise RuntimeError(
            "source tensor shape must match self tensor shape, excluding the specified dimension. "
            f"Got self.shape = {list(self.shape)} source.shape = {list(source.shape)}"
        )


@refuse_for("index", "_unsafe_index")
def _check_indices(given: Mapping[str, Any]) -> None:
    shapes = [i.shape for i in given["indices"] if i is not None]
    try:
        torch.broadcast_shapes(*shapes)
    except RuntimeError:
        said = ", ".join(str(list(s)) for s in shapes)
        raise IndexError(
            f"shape mismatch: indexing tensors could not be broadcast together with shapes {said}"
        ) from None


@refuse_for("index_put", "_index_put_impl", "_unsafe_index_put")
def _check_assigned(given: Mapping[str, Any]) -> None:
    _check_indices(given)
    shape, place = list(given["values"].shape), given["self"][tuple(_or_all(given["indices"]))].shape
    if len(shape) > len(place) or any(n not in (1, m) for n, m in zip(shape[::-1], place[::-1], strict=False)):
        raise RuntimeError(
            f"shape mismatch: value tensor of shape {shape} cannot be broadcast to indexing result of shape "
            f"{list(place)}"
        )


def _or_all(indices: Sequence[torch.Tensor | None]) -> list[torch.Tensor | slice]:
    return [slice(None) if i is None else i for i in indices]


@refuse_for("index_select")
def _check_index_select(given: Mapping[str, Any]) -> None:
    n = given["index"].numel()
    if given["index"].dim() > 1:
        raise IndexError("index_select(): Index is supposed to be a vector")
    if given["self"].dim() == 0 and n != 1:
        raise RuntimeError(f"index_select(): Index to scalar can have only 1 value, got {n} value(s)")


@refuse_for("select_scatter", "slice_scatter", "diagonal_scatter")
def _check_scattered(given: Mapping[str, Any]) -> None:
    """These write to a view, whose own kernel says what is wrong with it."""
    self = given["self"]
    if "index" in given:
        place = self.select(given["dim"], given["index"])
    elif "offset" in given:
        place = self.diagonal(given["offset"], given["dim1"], given["dim2"])
    else:
        place = torch.ops.aten.slice.Tensor(self, *(given[n] for n in ("dim", "start", "end", "step")))
    if place.shape != given["src"].shape:
        raise RuntimeError(
            f"expected src to have a size equal to the slice of self. src size = {list(given['src'].shape)}, "
            f"slice size = {list(place.shape)}"
        )


@refuse_for("index_copy")
def _check_index_copy(given: Mapping[str, Any]) -> None:
    index, source, d = given["index"], given["source"], given["dim"]
    if index.dim() > 1:
        raise IndexError(f"index_copy_(): Index should have dimension 1 or 0 (got {index.dim()})")
    _refuse_places_of_a_number(given)
    if -source.dim() <= d < source.dim() and index.numel() != source.size(d):
        raise IndexError(
            f"index_copy_(): Number of indices ({index.numel()}) should be equal to source.size(dim) ({source.size(d)})"
        )


@refuse_for("put")
def _check_put(given: Mapping[str, Any]) -> None:
    index, source = given["index"].numel(), given["source"].numel()
    if index != source:
        raise IndexError(
            "put_(): Expected source and index to have the same number of elements, but got "
            f"source.numel() = {source}, index.numel() = {index}"
        )


@refuse_for("index_reduce")
def _check_index_reduce(given: Mapping[str, Any]) -> None:
    self, index, source, dim = given["self"], given["index"], given["source"], given["dim"]
    if given["reduce"] not in ("prod", "mean", "amax", "amin"):
        raise RuntimeError(
            f"index_reduce(): Expected reduce to be one of prod, mean, amax or amin but got {given['reduce']}."
        )
    canonicalize_dim(self.dim(), dim)
    _refuse_places_of_a_number(given)
    if index.dim() > 1:
        raise IndexError(f"index_reduce_(): Index is supposed to be a vector, but got dim: {index.dim()}")
    _check_added(given)
    entries = source.size(dim) if source.dim() else 1
    if index.numel() != entries:
        raise RuntimeError(
            f"index_reduce_(): Number of indices ({index.numel()}) should be equal to source.size(dim): ({entries}), "
            f"for dim: {dim}"
        )


@refuse_for("segment_reduce", "_segment_reduce_backward")
def _check_segments(given: Mapping[str, Any]) -> None:
    data = given["data"]
    axis = canonicalize_dim(data.dim(), given["axis"])
    for name in ("lengths", "offsets"):
        segments = given[name]
        if segments is None:
            continue
        if axis != segments.dim() - 1:
            raise RuntimeError(f"segment_reduce(): Expected axis to be the last dimension of {name} but got {axis}.")
        if segments.dim() > data.dim() or segments.shape[:-1] != data.shape[:axis]:
            raise RuntimeError(
                f"segment_reduce(): {name} of shape {list(segments.shape)} do not fit data of shape {list(data.shape)}"
            )
        if name == "lengths" and segments.numel() == 0 and not given.get("unsafe", True):
            raise RuntimeError("min(): Expected reduction dim to be specified for input.numel() == 0.")


@refuse_for("bucketize")
def _check_bucketize(given: Mapping[str, Any]) -> None:
    if given["boundaries"].dim() != 1:
        raise RuntimeError(f"boundaries tensor must be 1 dimension, but got dim({given['boundaries'].dim()})")
