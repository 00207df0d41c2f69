"""How a strided tensor is read from, and written to, the dense array under its storage: working out the plan.

A storage holds one immutable dense array, the *base*; a tensor is sizes, strides and an offset over it, as everywhere
in PyTorch. `plan` turns the pair into a `ViewPlan`: a hashable structure (what the program does) and the starts
(where it does it). Shifted windows, `x[3:5]` and `x[7:9]`, share a structure, so one compiled program serves both.

The way there: the base in memory order is a mixed-radix grid, [4, 5, 6] say. A view dimension whose stride is a
multiple of a grid dimension's unit, and which stays inside it, is a (strided) slice of that dimension. One that runs
on into the next row makes the two grid dimensions one. Several view dimensions inside one grid dimension cut a window
out of it that is a grid of its own. What is none of that (overlapping windows, steps that don't nest) is gathered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd, prod

import torch

from .view_apply import Cut, Empty, Gather, Grid, Reinterpreted, Stage, Structure, Whole, read, write
from .view_dtype import Reinterpret, reinterpret

__all__ = ["Layout", "ViewPlan", "gathered", "is_dense", "plan", "read", "write"]


@dataclass(frozen=True, slots=True)
class Layout:
    """A tensor's place in its storage; strides and offset count elements of `dtype`."""

    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0


@dataclass(frozen=True, slots=True)
class ViewPlan:
    """What to do (`structure`: hashable, the same for shifted views) and where (`starts`: may be run-time values)."""

    structure: Structure
    starts: tuple[int, ...]


def plan(base: Layout, view: Layout) -> ViewPlan:
    """How `view` is read from and written to an array of the logical shape `base.sizes`.

    Args:
        base: dense and non-overlapping in some order of dimensions, from the start of the storage.
        view: any tensor over the same storage, of any dtype.

    Raises:
        ValueError: `base` is not dense, or `view` reaches outside of it.

    Example:
        >>> plan(Layout(torch.float32, (4, 5), (5, 1)), Layout(torch.float32, (2, 5), (5, 1), 10)).starts
        (2,)
    """
    order = memory_order(base)
    if 0 in view.sizes:
        return ViewPlan(Empty(view.dtype, view.sizes), ())
    if view.dtype != base.dtype:
        return _plan_reinterpreted(base, order, view)
    _check_inside(base, view)
    if base.sizes == view.sizes and all(
        s == t or n == 1 for n, s, t in zip(view.sizes, base.strides, view.strides, strict=True)
    ):
        return ViewPlan(Whole(), ())
    dims = sorted(
        ((s, n, d) for d, (n, s) in enumerate(zip(view.sizes, view.strides, strict=True)) if n > 1 and s > 0),
        reverse=True,
    )
    row_sizes = [base.sizes[d] for d in order if base.sizes[d] > 1]
    grid = _plan_grid(row_sizes, order, dims, view)
    return grid or ViewPlan(gathered(base, view.sizes, view.strides), (view.offset,))


def is_dense(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether each element of the memory that the tensor spans belongs to it, once."""
    expected = 1
    for n, s in sorted(zip(sizes, strides, strict=True), key=lambda d: (d[1], d[0])):
        if n == 0:
            return True
        if n != 1 and s != expected:
            return False
        expected *= n
    return True


def memory_order(base: Layout) -> tuple[int, ...]:
    """The dimensions of a dense layout, outermost in memory first; dimensions of size 1 stay where they are.

    Raises ValueError if the layout has gaps or overlaps.
    """
    if 0 in base.sizes:
        return tuple(range(len(base.sizes)))
    if not is_dense(base.sizes, base.strides):
        raise ValueError(f"a base must be dense: sizes {base.sizes} with strides {base.strides} are not")
    slots = [d for d, n in enumerate(base.sizes) if n > 1]
    order = list(range(len(base.sizes)))
    for slot, d in zip(slots, sorted(slots, key=lambda d: -base.strides[d]), strict=True):
        order[slot] = d
    if base.offset != 0:
        raise ValueError(f"a base starts where its storage starts, not at offset {base.offset}")
    return tuple(order)


def _check_inside(base: Layout, view: Layout) -> None:
    numel = prod(base.sizes)
    last = view.offset + sum((n - 1) * s for n, s in zip(view.sizes, view.strides, strict=True))
    if view.offset < 0 or min(view.strides, default=0) < 0 or last >= numel:
        raise ValueError(
            f"a view with sizes {view.sizes}, strides {view.strides} and offset {view.offset} needs elements up to "
            f"{last} of a base that has {numel} (sizes {base.sizes}, {base.dtype})"
        )


def _plan_reinterpreted(base: Layout, order: tuple[int, ...], view: Layout) -> ViewPlan:
    """A view of another dtype: the base in memory order as that dtype, then a view of it like any other."""
    how: Reinterpret = reinterpret(base.dtype, view.dtype, [base.sizes[d] for d in order])
    strides = _contiguous(how.shape)
    inner = plan(Layout(how.domain, how.shape, strides), replace(view, dtype=how.domain))
    return ViewPlan(Reinterpreted(order, how, inner.structure), inner.starts)


def _contiguous(sizes: Sequence[int]) -> tuple[int, ...]:
    strides = [1] * len(sizes)
    for d in range(len(sizes) - 1, 0, -1):
        strides[d - 1] = strides[d] * sizes[d]
    return tuple(strides)


def gathered(base: Layout, sizes: tuple[int, ...], strides: tuple[int, ...]) -> Gather:
    """A view's elements by index, for one whose offset no plan can know: it is the structure's only start."""
    kept = tuple(d for d, (n, s) in enumerate(zip(sizes, strides, strict=True)) if n > 1 and s > 0)
    cores, steps = tuple(sizes[d] for d in kept), tuple(strides[d] for d in kept)
    return Gather(memory_order(base), cores, steps, kept, sizes)


def _plan_grid(
    row_sizes: list[int], order: tuple[int, ...], dims: list[tuple[int, int, int]], view: Layout
) -> ViewPlan | None:
    """Slices of a grid, or None if the view isn't expressible that way.

    `dims`: (stride, size, dimension) of the view's dimensions that move, widest stride first.
    """
    units = [1]
    for n in reversed(row_sizes):
        units.append(units[-1] * n)
    while True:
        fits: list[_Fit] = []
        for k in range(len(units) - 2, -1, -1):
            unit, above = units[k], units[k + 1]
            inside = [(s // unit, n) for s, n, _ in dims if s % unit == 0 and (s % above or k == len(units) - 2)]
            fit = _fit(above // unit, view.offset % above // unit, inside)
            if fit is None:
                if k == len(units) - 2:
                    return None
                # The view runs across rows of this length: one longer row instead.
                del units[k + 1]
                break
            fits.append(fit)
        else:
            break
    first = Stage(tuple(c for fit in fits for c in fit.outer))
    second = Stage(tuple(c for fit in fits for c in fit.inner))
    stages = (first, second) if any(fit.windowed for fit in fits) else (first,)
    starts = [a for fit in fits for a in fit.outer_starts] + [a for fit in fits for a in fit.inner_starts]
    kept = sorted(d for _, _, d in dims)
    rank = {d: i for i, (_, _, d) in enumerate(dims)}
    structure = Grid(
        order=order,
        stages=stages,
        core=tuple(n for _, n, _ in dims),
        permutation=tuple(rank[d] for d in kept),
        kept=tuple(kept),
        sizes=view.sizes,
    )
    return ViewPlan(structure, tuple(starts))


@dataclass(slots=True)
class _Fit:
    """How the view uses one grid dimension: cuts of it, and (if `windowed`) cuts of the grid inside the window."""

    outer: list[Cut]
    outer_starts: list[int]
    inner: list[Cut]
    inner_starts: list[int]
    windowed: bool = False


def _fit(size: int, offset: int, dims: list[tuple[int, int]]) -> _Fit | None:
    """Cut `dims`, (stride, size) with the widest stride first, out of a row of `size` elements from `offset` on."""
    if offset + sum((n - 1) * t for t, n in dims) >= size:
        return None
    if len(dims) <= 1:
        step, n = dims[0] if dims else (1, 1)
        cut = Cut(size, step * (n - 1) + 1, step)
        return _Fit([cut], [offset] if cut.moves else [], [Cut(n, n)], [])
    stride, count = dims[0]
    window = stride * count
    # The window may not reach past the row's end: near it, begin earlier and skip more inside.
    skipped = max(0, min(offset, offset + window - size))
    levels, starts = _levels(stride, skipped, dims[1:])
    if levels is None:
        return None
    levels = [Cut(count, count), *levels]
    if window == size:
        return _Fit(levels, starts, [Cut(c.count, c.count) for c in levels], [])
    outer = Cut(size, window, 1, max(0, window - size))
    return _Fit([outer], [offset - skipped] if outer.moves else [], levels, starts, windowed=True)


def _levels(unit: int, offset: int, dims: list[tuple[int, int]]) -> tuple[list[Cut] | None, list[int]]:
    """Cuts of a row of `unit` elements, one for each of `dims` and one for what is left; None if they don't nest."""
    cuts: list[Cut] = []
    starts: list[int] = []
    for stride, n in dims:
        smaller = gcd(stride, unit)
        step = stride // smaller
        start, offset = divmod(offset, smaller)
        cut = Cut(unit // smaller, step * (n - 1) + 1, step)
        if start + cut.window > cut.size:
            return None, []
        cuts.append(cut)
        starts += [start] if cut.moves else []
        unit = smaller
    if unit > 1:
        cuts.append(Cut(unit, 1))
        starts.append(offset)
    return cuts, starts
