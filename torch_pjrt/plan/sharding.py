"""How a step is spread over a mesh: which dimension of each array lies along which axes.

Data parallel, and fully sharded by an axis named `fsdp`: what the optimizer owns is split, the batch is split, and
XLA's partitioner puts the collectives in between. Other axes (`tp`) split what DTensor placements say.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from .tape import Operation, Storage, Tape

# Axes along which the batch lies, and of those the ones that also split what the optimizer owns.
_DATA = ("dp", "data", "replica", "fsdp")
_SPLITTING = ("fsdp",)

# For each dimension, the mesh axes that it lies along.
Split = tuple[tuple[str, ...], ...]


class MeshError(ValueError):
    """A mesh that does not fit the topology or the arrays; the message has the numbers."""


@dataclass(frozen=True, slots=True)
class Mesh:
    """Named axes of devices.

    Attributes:
        axes: (name, size) of each, the slowest first.
    """

    axes: tuple[tuple[str, int], ...]

    @property
    def devices(self) -> int:
        return prod(n for _, n in self.axes)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.axes)

    @property
    def data_axes(self) -> tuple[str, ...]:
        """The axes that the batch lies along."""
        return tuple(name for name, n in self.axes if name in _DATA and n > 1)

    @property
    def replicas(self) -> int:
        """How many parts the batch is split into."""
        return self.size(self.data_axes)

    def size(self, names: Sequence[str]) -> int:
        sizes = dict(self.axes)
        return prod(sizes[name] for name in names)

    def __str__(self) -> str:
        return ",".join(f"{name}={n}" for name, n in self.axes)


def parse_mesh(text: str | None, devices: int) -> Mesh:
    """A mesh of all the devices.

    Args:
        text: "fsdp=128,tp=4"; one size may be left out ("fsdp,tp=4") or -1: what is left over. None is "fsdp".
        devices: how many there are.

    Raises:
        MeshError: no mesh, or not one of so many devices.

    Example:
        >>> parse_mesh("fsdp,tp=4", 64).axes
        (('fsdp', 16), ('tp', 4))
    """
    axes: list[tuple[str, int]] = []
    for part in (text or "fsdp").split(","):
        found = re.fullmatch(r"\s*([A-Za-z_]\w*)\s*(?:=\s*(-1|[1-9]\d*))?\s*", part)
        if found is None:
            raise MeshError(f"mesh {text!r}: {part!r} is no axis; write name=size, as in fsdp=128,tp=4")
        axes.append((found[1], int(found[2] or -1)))
    names = [name for name, _ in axes]
    if len(set(names)) != len(names):
        raise MeshError(f"mesh {text!r}: an axis is named twice")
    open_axes = [name for name, n in axes if n == -1]
    fixed = prod(n for _, n in axes if n != -1)
    if len(open_axes) > 1:
        raise MeshError(f"mesh {text!r}: the sizes of {' and '.join(open_axes)} are both open; give one of them")
    if open_axes:
        if devices % fixed:
            raise MeshError(
                f"mesh {text!r}: the other axes make {fixed}, which does not divide {devices} devices "
                f"({devices} = {fixed} × {devices // fixed} + {devices % fixed})"
            )
        axes = [(name, devices // fixed if n == -1 else n) for name, n in axes]
    elif fixed != devices:
        sizes = " × ".join(str(n) for _, n in axes)
        raise MeshError(f"mesh {text!r}: {sizes} = {fixed} devices, the topology has {devices}")
    return Mesh(tuple(axes))


@dataclass(frozen=True, slots=True)
class Layouts:
    """How the arrays of a tape are split.

    Attributes:
        inputs: storage -> split, for those that exist before the step.
        batch: (operation, result) -> the dimension that is the batch, or the batch times something.
        whole: (name, bytes) of parameters that no dimension of can be split along `fsdp`.
        summed: operations that each device does on its own examples and whose results are then summed.
    """

    inputs: dict[int, Split]
    batch: dict[tuple[int, int], int]
    whole: tuple[tuple[str, int], ...]
    summed: frozenset[int] = frozenset()


def layouts(tape: Tape, doubled: Tape | None, mesh: Mesh) -> Layouts:
    """How a tape's arrays are split over a mesh.

    Args:
        doubled: the tape of the same step with a batch twice as large, from which is seen which dimensions are the
            batch; None if there is none.

    Raises:
        MeshError: the batch cannot be split along the mesh's data axes.
    """
    splits: dict[int, Split] = {}
    whole: list[tuple[str, int]] = []
    batches = _batch_dimensions(tape, doubled)
    for number in tape.inputs:
        storage = tape.storages[number]
        dimension = batches.get(number)
        if dimension is not None:
            splits[number] = _along(storage, {dimension: _checked(storage, dimension, mesh)})
        elif storage.role in ("parameter", "optimizer", "gradient", "buffer"):
            splits[number] = owned(storage, mesh)
            if storage.role == "parameter" and _wants(mesh) and not _is_split(splits[number], mesh):
                whole.append((storage.name, storage.nbytes))
        else:
            splits[number] = ((),) * len(storage.base.sizes)
    return Layouts(splits, _batch_results(tape, doubled, mesh), tuple(whole), _summed(tape, doubled, mesh))


def own_layouts(tape: Tape) -> Layouts:
    """Of what one rank does: all that it has is its own, and whole."""
    return Layouts({number: ((),) * len(tape.storages[number].base.sizes) for number in tape.inputs}, {}, ())


def owned(storage: Storage, mesh: Mesh) -> Split:
    """The split of a parameter and what the optimizer keeps of it.

    As FSDP2, dimension 0 along `fsdp`; where that does not divide, the largest dimension that does; else none.
    """
    sizes = list(storage.base.sizes)
    axes: dict[int, tuple[str, ...]] = {}
    for axis, dimension in storage.placements:
        if axis in mesh.names:
            axes[dimension] = (*axes.get(dimension, ()), axis)
    for axis in _wants(mesh):
        n = mesh.size([axis])
        fitting = [d for d in range(len(sizes)) if sizes[d] % (n * mesh.size(axes.get(d, ()))) == 0 and sizes[d] > 0]
        if not fitting:
            continue
        chosen = 0 if 0 in fitting else max(fitting, key=lambda d: sizes[d])
        axes[chosen] = (*axes.get(chosen, ()), axis)
    return _along(storage, axes)


def _wants(mesh: Mesh) -> list[str]:
    return [name for name, n in mesh.axes if name in _SPLITTING and n > 1]


def _is_split(split: Split, mesh: Mesh) -> bool:
    return any(axis in _SPLITTING for axes in split for axis in axes)


def _along(storage: Storage, axes: dict[int, tuple[str, ...]]) -> Split:
    return tuple(axes.get(d, ()) for d in range(len(storage.base.sizes)))


def _checked(storage: Storage, dimension: int, mesh: Mesh) -> tuple[str, ...]:
    size, parts = storage.base.sizes[dimension], mesh.replicas
    if size % parts:
        what = " × ".join(f"{name}={mesh.size([name])}" for name in mesh.data_axes)
        raise MeshError(
            f"the batch of {storage.name or 'an argument'} is {size}, which the mesh's data axes ({what} = {parts}) do "
            f"not divide; take a multiple of {parts}, or fewer devices along {' and '.join(mesh.data_axes)}"
        )
    return mesh.data_axes


def _batch_dimensions(tape: Tape, doubled: Tape | None) -> dict[int, int]:
    """Input -> the dimension that the batch lies along."""
    if doubled is None or len(doubled.storages) != len(tape.storages):
        return {i: 0 for i in tape.inputs if tape.storages[i].role == "argument" and tape.storages[i].base.sizes}
    found = {}
    for i in tape.inputs:
        grown = _grown(tape.storages[i].base.sizes, doubled.storages[i].base.sizes)
        if grown is not None:
            found[i] = grown
    return found


def _side_by_side(tape: Tape, doubled: Tape | None) -> list[tuple[Operation, Operation]]:
    """Each operation with the one of the larger batch; none if that makes other ones."""
    if doubled is None or [o.name for o in doubled.operations] != [o.name for o in tape.operations]:
        return []
    return list(zip(tape.operations, doubled.operations, strict=True))


def _batch_results(tape: Tape, doubled: Tape | None, mesh: Mesh) -> dict[tuple[int, int], int]:
    found: dict[tuple[int, int], int] = {}
    for i, (one, two) in enumerate(_side_by_side(tape, doubled)):
        for j, (a, b) in enumerate(zip(one.specs, two.specs, strict=True)):
            if a is not None and b is not None:
                grown = _grown(a.shape, b.shape)
                if grown is not None and a.shape[grown] % mesh.replicas == 0:
                    found[i, j] = grown
    return found


def _summed(tape: Tape, doubled: Tape | None, mesh: Mesh) -> frozenset[int]:
    """The gradients of embedding tables whose arguments have the batch as their first dimension."""

    def by_example(one: Operation, two: Operation) -> bool:
        pairs = zip(one.reads(), two.reads(), strict=True)
        sizes = [(a.view.sizes, b.view.sizes) for a, b in pairs]
        return all(_grown(a, b) == 0 and a[0] % mesh.replicas == 0 for a, b in sizes)

    pairs = enumerate(_side_by_side(tape, doubled))
    return frozenset(
        i for i, (one, two) in pairs if one.name == "aten::embedding_dense_backward" and by_example(one, two)
    )


def _grown(one: Sequence[int], two: Sequence[int]) -> int | None:
    """The only dimension that is twice as large."""
    if len(one) != len(two):
        return None
    differing = [d for d, (a, b) in enumerate(zip(one, two, strict=True)) if a != b]
    return differing[0] if len(differing) == 1 and two[differing[0]] == 2 * one[differing[0]] else None
