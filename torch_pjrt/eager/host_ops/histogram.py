"""Counting: bincount, histc, histogram and histogramdd. Where the bins follow from the data, its bounds are read."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .table import host_op


@host_op("aten::bincount")
def bincount(self: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """How often (with `weights`: with what total weight) each whole number from 0 occurs."""
    if minlength < 0:
        raise RuntimeError("minlength should be >= 0")
    if self.dim() == 1 and self.numel() == 0:
        return torch.zeros(minlength, dtype=torch.int64, device=self.device)
    low, high = torch.stack(torch.aminmax(self)).tolist() if self.dim() == 1 else (-1, -1)
    if low < 0:
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    if weights is not None and (weights.dim() != 1 or weights.numel() != self.numel()):
        raise RuntimeError("weights should be 1-d and have the same length as input")
    if weights is None:
        each = torch.ones(self.numel(), dtype=torch.int64, device=self.device)
    else:
        each = weights if weights.dtype == torch.float32 else weights.double()
    return each.new_zeros(max(high + 1, minlength)).index_add_(0, self.long(), each)


@host_op("aten::histc")
def histc(self: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """Counts in `bins` equal bins over [min, max]; if both are equal, over the data's own range.

    Whole numbers are counted too, as on every accelerator: transformers' mixtures of experts count tokens so.
    """
    if not self.is_floating_point():
        return histc(self.to(torch.float32), bins, min, max).to(self.dtype)
    if bins <= 0:
        raise RuntimeError("bins must be > 0")
    low, high = float(min), float(max)
    if low == high and self.numel():
        low, high = _bounds(self)
    if low == high:
        low, high = low - 1, high + 1
    if not (math.isfinite(low) and math.isfinite(high)):
        raise RuntimeError(f"range of [{low:g}, {high:g}] is not finite")
    if low > high:
        raise RuntimeError("max must be larger than min")
    edges = torch.linspace(low, high, bins + 1, dtype=self.dtype, device=self.device)
    return _histogram(self.reshape(-1, 1), [edges], None, equal=False)


@host_op("aten::histogram.bins_tensor")
def histogram(self: Tensor, bins: Tensor, weight: Tensor | None = None, density: bool = False) -> tuple[Tensor, Tensor]:
    edges = bins.contiguous()
    return histogramdd_from_bins(self.reshape(-1, 1), [edges], _flat(weight), density), edges


@host_op("aten::histogram.bin_ct")
def histogram_of_count(
    self: Tensor,
    bins: int = 100,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> tuple[Tensor, Tensor]:
    column = self.reshape(-1, 1)
    edges = histogramdd_bin_edges(column, [bins], range)
    return _checked(column, edges, _flat(weight), density, equal=True), edges[0]


@host_op("aten::_histogramdd_bin_edges")
def histogramdd_bin_edges(
    self: Tensor,
    bins: Sequence[int],
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> list[Tensor]:
    """`bins[d]` equal bins for each of the coordinates in the last dimension, over `range` or the data's own."""
    rows = _rows(self)
    if len(bins) != rows.size(1):
        raise RuntimeError(
            f"torch.histogramdd: expected {rows.size(1)} sequences of bin edges for a {rows.size(1)}-dimensional "
            f"histogram but got {len(bins)}"
        )
    if any(n <= 0 for n in bins):
        raise RuntimeError(f"torch.histogramdd: bins {list(bins)} must be > 0")
    edges = []
    for d, count in enumerate(bins):
        low, high = range[2 * d : 2 * d + 2] if range is not None else _bounds(rows[:, d]) if len(rows) else (0.0, 1.0)
        if not (math.isfinite(low) and math.isfinite(high)):
            raise RuntimeError(f"torch.histogramdd: dimension {d}'s range [{low:g}, {high:g}] is not finite")
        if low > high:
            raise RuntimeError(f"torch.histogramdd: min should not exceed max, but got min {low:g} max {high:g}")
        if low == high:
            low, high = low - 0.5, high + 0.5
        edges.append(torch.linspace(low, high, count + 1, dtype=self.dtype, device=self.device))
    return edges


@host_op("aten::_histogramdd_from_bin_cts")
def histogramdd_from_counts(
    self: Tensor,
    bins: Sequence[int],
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> Tensor:
    edges = histogramdd_bin_edges(self, bins, range)
    return _checked(_rows(self), edges, _flat(weight), density, equal=True)


@host_op("aten::_histogramdd_from_bin_tensors")
def histogramdd_from_bins(
    self: Tensor, bins: Sequence[Tensor], weight: Tensor | None = None, density: bool = False
) -> Tensor:
    return _checked(_rows(self), bins, _flat(weight), density, equal=False)


def _rows(self: Tensor) -> Tensor:
    """The points, one a row: the coordinates are the last dimension."""
    if self.dim() < 2:
        raise RuntimeError("torch.histogramdd: input tensor should have at least 2 dimensions")
    return self.reshape(-1, self.size(-1))


def _checked(rows: Tensor, edges: Sequence[Tensor], weight: Tensor | None, density: bool, equal: bool) -> Tensor:
    if len(edges) != rows.size(1):
        raise RuntimeError(
            f"torch.histogramdd: expected {rows.size(1)} sequences of bin edges for a {rows.size(1)}-dimensional "
            f"histogram but got {len(edges)}"
        )
    for d, e in enumerate(edges):
        if e.dtype != rows.dtype or e.dim() != 1 or e.numel() == 0:
            raise RuntimeError(
                f"torch.histogram: bins tensor {d} should be 1-d, not empty and of the input's dtype {rows.dtype}, but "
                f"got {e.dtype} of shape {list(e.shape)}"
            )
    if weight is not None and (weight.numel() != len(rows) or weight.dtype != rows.dtype):
        raise RuntimeError(
            f"torch.histogramdd: if weight tensor is provided it should have the input's shape without its innermost "
            f"dimension and its dtype {rows.dtype}, but got {weight.dtype} of {weight.numel()} elements"
        )
    counts = _histogram(rows, edges, weight, equal)
    if density:
        counts = counts / counts.sum()
        for d, e in enumerate(edges):
            shape = [1] * counts.dim()
            shape[d] = -1
            counts = counts / e.diff().reshape(shape)
    return counts


def _histogram(rows: Tensor, edges: Sequence[Tensor], weight: Tensor | None, equal: bool) -> Tensor:
    """The total weight in each cell. Bins are half open but for the last; with `equal` a quotient finds them."""
    shape = [e.numel() - 1 for e in edges]
    place = torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
    inside = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
    for x, e, count in zip(rows.unbind(1), edges, shape, strict=True):
        inside = inside & (x >= e[0]) & (x <= e[-1])
        if equal:
            found = torch.where(inside, (x - e[0]) * count / (e[-1] - e[0]), 0).long()
        else:
            found = torch.searchsorted(e, x.contiguous(), right=True) - 1
        place = place * count + found.clamp(0, max(count - 1, 0))
    total = math.prod(shape)
    each = torch.ones_like(rows[:, 0]) if weight is None else weight
    counts = each.new_zeros(total + 1).index_add_(0, torch.where(inside, place, total), each)
    return counts[:total].reshape(shape)


def _bounds(x: Tensor) -> tuple[float, float]:
    low, high = torch.stack(torch.aminmax(x)).tolist()
    return low, high


def _flat(weight: Tensor | None) -> Tensor | None:
    return None if weight is None else weight.reshape(-1)
