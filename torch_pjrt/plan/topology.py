"""The chips that can be planned for, and the names of their topologies.

Capacity, peak and bandwidths of TPUs are those of Google Cloud's public documentation, "TPU architecture" and its page
on each version (cloud.google.com/tpu/docs/v5e, v5p, v6e, tpu7x), as of 2026; those of GPUs are in `gpus.py`.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from math import prod

from .gpus import GPUS, GPUS_OF_HOST


class TopologyError(ValueError):
    """A topology that does not exist; the message has those that do."""


@dataclass(frozen=True, slots=True)
class Chip:
    """One kind of chip.

    Attributes:
        name: as it is asked for ("v5e").
        title: its public name.
        memory: bytes of HBM a chip.
        peak: bf16 floating-point operations a second, a chip.
        bandwidth: bytes a second between a chip and its HBM.
        interconnect: bytes a second that a chip sends to its neighbours, over all links.
        devices: how many devices a chip is.
        dimensions: of its network.
        host: chips of one host along each dimension.
        largest: chips of the largest pod.
        clock: cycles a second of its TensorCore: what the compiler's estimates are counted in; 0 if it has none.
        cores: TensorCores of a device, which share what it does.
        between_hosts: bytes a second that a chip sends to another host; None where that is the same network.
    """

    name: str
    title: str
    memory: int
    peak: float
    bandwidth: float
    interconnect: float
    devices: int
    dimensions: int
    host: tuple[int, ...]
    largest: int
    clock: float
    cores: int = 1
    between_hosts: float | None = None

    @property
    def platform(self) -> str:
        """Whose compiler it has: "tpu" or "cuda"."""
        return "cuda" if self.name in GPUS else "tpu"


# clock: documented peak / (matrix units x multiply-adds of each x 2): v5e has 4 units of 128 x 128, v5p 8; v6e
# and a tpu7x device what 4 units of 256 x 256 do. So the compiler's own estimate of a bf16 product of two
# 4096 x 4096 matrices is 83 to 97 % of the peak, of a pointwise pass 72 to 81 % of HBM's bandwidth (libtpu 0.0.42).
_CHIPS = (
    Chip("v5e", "TPU v5e", 16 << 30, 197e12, 819e9, 200e9, 1, 2, (2, 2), 256, 1.5e9),
    Chip("v5p", "TPU v5p", 95 << 30, 459e12, 2765e9, 600e9, 1, 3, (2, 2, 1), 8960, 1.75e9, 2),
    Chip("v6e", "TPU v6e (Trillium)", 32 << 30, 918e12, 1640e9, 448e9, 1, 2, (2, 2), 256, 1.75e9),
    Chip("tpu7x", "TPU7x (Ironwood)", 192 << 30, 2307e12, 7380e9, 600e9, 2, 3, (2, 2, 1), 9216, 2.2e9),
)
_GPUS = (
    Chip(
        gpu.name, gpu.title, gpu.memory, gpu.peak, gpu.bandwidth, gpu.nvlink, 1, 1, (GPUS_OF_HOST,), 1024, 0.0,
        between_hosts=gpu.network,
    )
    for gpu in GPUS.values()
)  # fmt: skip
CHIPS = {chip.name: chip for chip in (*_CHIPS, *_GPUS)}


@dataclass(frozen=True, slots=True)
class Topology:
    """Chips of one kind in a grid.

    Attributes:
        chip: the kind.
        shape: chips along each dimension of the network.
    """

    chip: Chip
    shape: tuple[int, ...]

    @property
    def name(self) -> str:
        """As it is asked for: "tpu7x:4x4x4"."""
        return f"{self.chip.name}:{'x'.join(map(str, self.shape))}"

    @property
    def chips(self) -> int:
        return prod(self.shape)

    @property
    def devices(self) -> int:
        """Devices of the mesh: two a chip on tpu7x."""
        return self.chips * self.chip.devices

    @property
    def host(self) -> tuple[int, ...]:
        """Chips of one host along each dimension: of a host that is not full, those that there are."""
        return tuple(min(a, b) for a, b in zip(self.chip.host, self.shape, strict=True))

    def larger(self) -> list[Topology]:
        """The grids of the same chip with more chips, smallest first, one for each number of chips."""
        sizes: dict[int, tuple[int, ...]] = {}
        for grid in grids(self.chip):
            if prod(grid) > self.chips:
                best = sizes.setdefault(prod(grid), grid)
                if max(grid) - min(grid) < max(best) - min(best):
                    sizes[prod(grid)] = grid
        return [Topology(self.chip, grid) for grid in sizes.values()]

    @property
    def memory_of_device(self) -> int:
        """Bytes of HBM a device."""
        return self.chip.memory // self.chip.devices


def parse_topology(text: str) -> Topology:
    """The topology of a name.

    Args:
        text: a chip and its grid, "v5e:4x4" or "tpu7x:4x4x4"; a chip and a number of chips, "v6e:16"; or a chip
            alone, which is one chip.

    Raises:
        TopologyError: no such chip or grid; the message lists what there is.

    Example:
        >>> parse_topology("tpu7x:2x2x1").devices
        8
    """
    name, _, grid = text.strip().partition(":")
    chip = CHIPS.get(name.lower())
    if chip is None:
        near = difflib.get_close_matches(name.lower(), CHIPS, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise TopologyError(f"topology {text!r}: no chip {name!r}{hint}. {known()}")
    if not grid:
        return Topology(chip, (1,) * chip.dimensions)
    if not re.fullmatch(r"\d+(x\d+)*", grid):
        raise TopologyError(f"topology {text!r}: {grid!r} is no grid. {known()}")
    shape = tuple(int(n) for n in grid.split("x"))
    if len(shape) == 1:
        shape = _grid_of(chip, shape[0], text)
    if len(shape) != chip.dimensions:
        raise TopologyError(
            f"topology {text!r}: a {chip.title} network has {chip.dimensions} dimensions, {grid!r} has {len(shape)}. "
            f"{known()}"
        )
    if shape not in grids(chip):
        raise TopologyError(f"topology {text!r}: no such grid. {known()}")
    return Topology(chip, shape)


def grids(chip: Chip) -> list[tuple[int, ...]]:
    """The grids of a chip, smallest first.

    GPUs: powers of two. TPUs: one chip, one host and its halves, and then powers of two in which no dimension is more
    than twice another (v5e, v6e) or four times (v5p, tpu7x), up to the largest pod.
    """
    sides = [2**k for k in range(11)]
    found: list[tuple[int, ...]] = []
    if chip.dimensions == 1:
        found = [(n,) for n in sides if n <= chip.largest]
    elif chip.dimensions == 2:
        found = [(1, 1), (2, 2)]
        found += [(a, b) for a in sides for b in sides if a * b >= 8 and a <= b <= 2 * a and a * b <= chip.largest]
    else:
        found = [(1, 1, 1), (2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4)]
        sides = [4, 8, 12, 16, 20, 24, 28, 32]
        found += [
            (a, b, c) for a in sides for b in sides if b >= a for c in sides if c >= b and a * b * c <= chip.largest
        ]
    return sorted(found, key=lambda g: (prod(g), g))


def _grid_of(chip: Chip, count: int, text: str) -> tuple[int, ...]:
    """The most cubic grid of so many chips."""
    fitting = [g for g in grids(chip) if prod(g) == count]
    if not fitting:
        raise TopologyError(f"topology {text!r}: no grid of {count} chips. {known()}")
    return min(fitting, key=lambda g: max(g) - min(g))


def known() -> str:
    """The topologies there are, in words."""
    lines = []
    for chip in CHIPS.values():
        names = ["x".join(map(str, g)) for g in grids(chip)]
        shown = names if len(names) <= 12 else [*names[:10], "...", names[-1]]
        lines.append(f"{chip.name}:{{{', '.join(shown)}}}")
    return "Known: " + "; ".join(lines)
