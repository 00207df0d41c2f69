"""One case: arguments on the CPU and a program that both devices run on them."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from .place import duplicate, plain, tensors

# Draws of a random op that are compared with as many of the CPU's.
DRAWS = 8


class Skip(Exception):
    """A case that says nothing about the device, with the reason."""


@dataclass(slots=True)
class Case:
    """A program with its arguments.

    Attributes:
        label: the sample's number, and what was done to it.
        inputs: the arguments, on the CPU.
        program: called with (inputs, constants) on each device; what it returns is compared, and what it writes.
        constants: further tensors (cotangents, `out=` buffers) that the CPU's run makes and the device's run takes.
        random: the program draws from the generator; written: the places of the tensors among the arguments that it
            changes. Both are known once the CPU has run it.
        also: another program for the CPU whose outcome is right as well: PyTorch's decompositions, of which compiled
            programs are made, check and round otherwise than its kernels here and there.
        undefined: the values are whatever memory held (`torch.empty`): only shapes and dtypes are compared.
    """

    label: str
    inputs: Any
    program: Callable[[Any, list[Tensor]], Any]
    constants: list[Tensor] = field(default_factory=list)
    undefined: bool = False
    also: Callable[[Any, list[Tensor]], Any] | None = None
    random: bool = False
    written: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run gave: results, the arguments as they are afterwards and those whose version moved; or an error."""

    results: Any = None
    arguments: list[Tensor] = field(default_factory=list)
    moved: frozenset[int] = frozenset()
    error: Exception | None = None

    def tree(self, places: Iterable[int]) -> Any:
        """What is compared: the results, and the arguments at `places`."""
        return [self.results, [self.arguments[i] for i in sorted(places)] if self.arguments else []]


def attempt(case: Case, inputs: Any, constants: list[Tensor]) -> Outcome:
    """Run the program."""
    arguments = tensors(inputs)
    before = [t._version for t in arguments]
    try:
        results = case.program(inputs, constants)
    except Skip:
        raise
    except Exception as error:
        error.__traceback__ = None  # it holds every tensor of the frame
        return Outcome(error=error)
    moved = frozenset(i for i, (t, version) in enumerate(zip(arguments, before, strict=True)) if t._version != version)
    return Outcome(results, arguments, moved)


def on_cpu(case: Case) -> list[Outcome]:
    """CPU PyTorch's outcome; several of a random program, which is one that moved the CPU's generator."""
    state = torch.get_rng_state()
    outcome = attempt(case, duplicate(case.inputs), case.constants)
    case.random = not torch.equal(state, torch.get_rng_state())
    case.written = outcome.moved | _changed(tensors(case.inputs), outcome.arguments)
    if not case.random or outcome.error is not None:
        return [outcome]
    return [outcome] + [attempt(case, duplicate(case.inputs), case.constants) for _ in range(DRAWS - 1)]


def with_memory_filled(case: Case) -> Outcome:
    """CPU PyTorch's outcome once more, with NaN (the largest integer) in memory that nothing was written to."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        return attempt(case, duplicate(case.inputs), case.constants)
    finally:
        torch.use_deterministic_algorithms(before)


def _changed(before: list[Tensor], after: list[Tensor]) -> frozenset[int]:
    """Some kernels write without saying so (batch norm's running statistics)."""
    pairs = enumerate(zip(before, after, strict=False))
    return frozenset(i for i, (x, y) in pairs if plain(x) and not _equal(x, y))


def _equal(x: Tensor, y: Tensor) -> bool:
    if x.dtype == torch.complex32:  # which torch.equal does not take
        x, y = torch.view_as_real(x.resolve_conj()), torch.view_as_real(y.resolve_conj())
    return x.shape == y.shape and torch.equal(x, y)


def in_float64(case: Case, noise: float = 0.0, seed: int = 0) -> Outcome:
    """The outcome on the CPU with every float argument in float64, each number off by up to `noise` of itself."""
    generator = torch.Generator().manual_seed(seed)

    def widened(x: Any) -> Any:
        if isinstance(x, torch.dtype):
            return torch.complex128 if x.is_complex else torch.float64 if x.is_floating_point else x
        if isinstance(x, Tensor) and (x.is_floating_point() or x.is_complex()):
            return shaken(x.detach().to(torch.complex128 if x.is_complex() else torch.float64), x.requires_grad)
        if isinstance(x, torch.nn.Module):
            wide = copy.deepcopy(x).double()
            for t in itertools.chain(wide.parameters(), wide.buffers()):
                if t.is_floating_point():
                    t.data = shaken(t.detach(), False)
            return wide
        return x

    def shaken(x: Tensor, differentiable: bool) -> Tensor:
        if noise and x.layout == torch.strided:
            x = x * (1 + noise * (2 * torch.rand(x.shape, generator=generator, dtype=torch.float64) - 1))
        return x.requires_grad_(differentiable)

    return attempt(case, tree_map(widened, duplicate(case.inputs)), [widened(c) for c in case.constants])
