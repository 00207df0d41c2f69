"""A random program while it is written: its lines so far, and its tensors on the CPU after them."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

T = TypeVar("T")
LONGEST_TENSOR = 200


def values(shape, dtype, seed):
    """Small values of any dtype: quarters from -2 to 2 (times 1 + i/2), integers from 0 to 7."""
    drawn = torch.randint(0, 17, shape, generator=torch.Generator().manual_seed(seed))
    if dtype.is_complex:
        return (drawn / 4 - 2).to(dtype) * (1 + 0.5j)
    return (drawn / 4 - 2).to(dtype) if dtype.is_floating_point else (drawn % 8 * (drawn > 4)).to(dtype)


def reloaded(saved):
    """What was saved to a file, loaded from it, in memory of its own: on the CPU the file's is not to be resized.

    A `resize_` that fails there leaves a tensor larger than its memory, and reading that ends the process.
    """
    file = io.BytesIO()
    torch.save(saved, file)
    file.seek(0)
    return copy.deepcopy(torch.load(file))


def names(device: str) -> dict[str, Any]:
    """What the lines of a program may name besides its tensors."""
    return {"torch": torch, "copy": copy, "values": values, "reloaded": reloaded, "device": device}


@dataclass(frozen=True)
class Kind:
    """How one kind of line is written, how often, and whether a line that raises is kept."""

    write: Callable[[Writer], str | None]
    weight: int
    may_raise: bool


class Writer:
    """A program being written: its lines, and its tensors on the CPU after them."""

    def __init__(self, below: Callable[[int], int]) -> None:
        self.below = below
        self.lines: list[str] = []
        self.dtypes: set[torch.dtype] = set()
        self.space = names("cpu")
        self.count = 0

    def add(self, of: Kind) -> None:
        """Write a line of this kind and run it; leave it out if it doesn't work and shouldn't stand as an error."""
        line = of.write(self)
        if line is None:
            return
        try:
            exec(line, self.space)
        except (RuntimeError, IndexError) as error:
            # A kernel that the CPU happens to lack is no promise of PyTorch's.
            if not of.may_raise or isinstance(error, NotImplementedError) or "not implemented" in str(error):
                return
        self.lines.append(line)
        for name, t in self.tensors().items():
            self.dtypes.add(t.dtype)
            if t.numel() > LONGEST_TENSOR or is_leaf(t) is None:
                self.lines.append(f"del {name}")
                del self.space[name]

    def tensors(self) -> dict[str, torch.Tensor]:
        return {name: t for name, t in self.space.items() if isinstance(t, torch.Tensor)}

    def pick(self, items: Sequence[T]) -> T:
        return items[self.below(len(items))]

    def chance(self, one_in: int) -> bool:
        return self.below(one_in) == one_in - 1

    def new(self, *, reuse: bool = True) -> str:
        """A name to assign to: mostly fresh, sometimes (with `reuse`) one whose tensor is dropped by it."""
        if reuse and self.chance(6) and self.tensors():
            return self.pick(list(self.tensors()))
        self.count += 1
        return f"t{self.count}"

    def name(self, wanted: Callable[[torch.Tensor], bool] = lambda t: True) -> str | None:
        names = [n for n, t in self.tensors().items() if wanted(t)]
        return self.pick(names) if names else None

    def at(self, expression: str) -> torch.Tensor:
        """The tensor that an expression has on the CPU."""
        return eval(expression, self.space)

    def fresh(self, shape: Sequence[int], dtype: torch.dtype) -> str:
        return f"values({tuple(shape)}, {dtype}, {self.below(50)}).to(device)"

    def operand(self, shape: Sequence[int], dtype: torch.dtype, apart_from: torch.Tensor | None = None) -> str:
        """A tensor that broadcasts to `shape` and casts to `dtype`; a copy if it overlaps `apart_from`."""
        name = self.name(lambda t: _broadcasts(t.shape, shape) and torch.can_cast(t.dtype, dtype))
        if name is None or self.chance(5):
            return self.fresh(shape, dtype)
        t = self.at(name)
        if apart_from is not None and share(t, apart_from) and name != self._named(apart_from):
            return f"{name}.clone()"
        return name

    def _named(self, tensor: torch.Tensor) -> str | None:
        return next((n for n, t in self.tensors().items() if t is tensor), None)

    def target(self, wanted: Callable[[torch.Tensor], bool] = lambda t: True) -> tuple[str, torch.Tensor] | None:
        """(expression, tensor) to write to in place: a tensor or a view of one, each element there once."""
        name = self.name(lambda t: wanted(t) and not overlaps(t))
        if name is None:
            return None
        expression = name if self.chance(2) else self.view_of(name)
        t = self.at(expression)
        return (expression, t) if wanted(t) and not overlaps(t) else (name, self.at(name))

    def guarded(self, expression: str, line: str) -> str:
        """In-place updates of what needs a gradient mostly happen under no_grad, as optimizers do them."""
        if self.at(expression).requires_grad and not self.chance(4):
            return f"with torch.no_grad(): {line}"
        return line

    def view_of(self, name: str) -> str:
        expression = name + _view(self, self.at(name))
        return expression + _view(self, self.at(expression)) if self.chance(3) else expression


def is_leaf(t: torch.Tensor) -> bool | None:
    """None if autograd refuses to look at the tensor: a view that `split` made, its base overwritten."""
    try:
        return t.is_leaf
    except RuntimeError:
        return None


def _broadcasts(shape: Sequence[int], to: Sequence[int]) -> bool:
    return len(shape) <= len(to) and all(a in (1, b) for a, b in zip(shape[::-1], to[::-1], strict=False))


def share(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.untyped_storage()._cdata == b.untyped_storage()._cdata


def overlaps(t: torch.Tensor) -> bool:
    """Whether two elements of the tensor are one in memory."""
    if t.numel() == 0:
        return False
    span = sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True)) + 1
    return torch.arange(span).as_strided(t.shape, t.stride(), 0).unique().numel() < t.numel()


def _view(w: Writer, t: torch.Tensor) -> str:
    """A random view of `t`, as what comes after its name."""
    if t.ndim == 0:
        return w.pick(["[None]", ".view(1, 1)", ".expand(3)", ".unsqueeze(0)", "[...]"])
    d, n = w.below(t.ndim), 0
    n = t.shape[d]
    index = "[" + ":, " * d
    last = t.ndim - 1
    ways = [
        f"{index}{w.below(n + 1)}:]",
        f"{index}:{w.below(n + 1)}]",
        f"{index}{w.below(2)}::2]",
        f".transpose({d}, {last - d})",
        f".permute({', '.join(str((i + d) % t.ndim) for i in range(t.ndim))})",
        f".unsqueeze({d})",
        ".squeeze()",
        "[None, ..., None]",
        f".expand(2, {', '.join(['-1'] * t.ndim)})",
    ]
    if n > 0:
        ways += [
            f"{index}{w.below(n)}]",
            f".select({d}, -1)",
            f".narrow({d}, {w.below(n)}, 1)",
            f".chunk(2, {d})[0]",
            f".unfold({d}, {1 + w.below(n)}, {1 + w.below(2)})",
        ]
    if t.ndim >= 2:
        ways += [f".diagonal({w.below(3) - 1})", ".mT", ".movedim(0, -1)"]
    if t.is_contiguous():
        ways += [".view(-1)", ".flatten()", f".view({t.numel()}, 1)"]
        if t.numel() % 2 == 0 and t.numel():
            ways.append(f".view(2, {t.numel() // 2})")
        if 0 < t.numel() <= 24:
            ways.append(f".as_strided((2, {t.numel() // 2}), ({t.numel() // 2}, 1), {t.storage_offset()})")
    return w.pick(ways)
