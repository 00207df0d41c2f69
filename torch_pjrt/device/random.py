"""Random numbers: one generator a device, whose draws depend on its seed and on nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from .. import _C
from .devices import current_device, device_count, index_of


class _DefaultGenerators:
    """The default generators by device index, made on first use. Meshes of the process's devices share the first."""

    def __getitem__(self, index: int) -> torch.Generator:
        if not 0 <= index < device_count() + _C.mesh_count():
            raise IndexError(f"device index {index} out of range: there are {device_count()} devices")
        return _C.default_generator(index)

    def __len__(self) -> int:
        return device_count()

    def __iter__(self) -> Iterator[torch.Generator]:
        return (self[index] for index in range(len(self)))


default_generators = _DefaultGenerators()


def manual_seed(seed: int) -> None:
    """Seed the current device's generator."""
    default_generators[current_device()].manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seed every device's generator."""
    for generator in default_generators:
        generator.manual_seed(int(seed))


def seed() -> int:
    """Seed the current device's generator from the system's entropy; returns the seed."""
    return default_generators[current_device()].seed()


def seed_all() -> None:
    """Seed every device's generator with one number from the system's entropy."""
    manual_seed_all(default_generators[current_device()].seed())


def initial_seed() -> int:
    """The seed of the current device's generator."""
    return default_generators[current_device()].initial_seed()


def get_rng_state(device: Any = None) -> torch.Tensor:
    """The generator's state: 16 bytes (seed, number of draws) in a CPU uint8 tensor."""
    with _disable_current_modes():  # a generator is real even where tensors are fake
        return default_generators[index_of(device)].get_state()


def set_rng_state(new_state: torch.Tensor, device: Any = None) -> None:
    """Set the generator's state to one that `get_rng_state` returned."""
    with _disable_current_modes():
        default_generators[index_of(device)].set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    """The states of all devices' generators."""
    return [get_rng_state(i) for i in range(len(default_generators))]


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Set the states of all devices' generators."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)
