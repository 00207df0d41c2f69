"""Random PyTorch programs, what is left to see after one ran, and the smallest program that still shows a fault.

A program is a list of Python lines over named tensors; `print(program)` is source to run as it is. It is written while
it runs on the CPU, so that each line fits the tensors there are; `steps.py` has the kinds of lines.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from hypothesis import strategies as st

from .rarer_steps import DRAWING, KINDS
from .writer import Writer, is_leaf, names, reloaded, values

# The CPU's generator belongs to all threads: a line that seeds it and draws does so alone.
_SEEDING = threading.Lock()

# (rtol, atol) for the coarsest dtype that a program has touched: a float64 that once was a float32 is no better.
TOLERANCE = {
    torch.float64: 1e-10,
    torch.float32: 2e-5,
    torch.complex64: 2e-5,
    torch.float16: 5e-3,
    torch.bfloat16: 4e-2,
}


@dataclass(frozen=True)
class Program:
    """Lines of Python over `torch`, `values` and `device`, and the dtypes that its tensors have had."""

    lines: tuple[str, ...]
    dtypes: frozenset[torch.dtype]

    @property
    def tolerance(self) -> float:
        return max((TOLERANCE[d] for d in self.dtypes if d in TOLERANCE), default=0.0)

    def source(self, device: str = "cpu") -> str:
        """The program as a script that prints every tensor it leaves."""
        return "\n".join(
            [
                "import copy",
                "import io",
                "import torch",
                "",
                inspect.getsource(values),
                inspect.getsource(reloaded),
                f'device = "{device}"',
                *self.lines,
                "for name, t in sorted(globals().copy().items()):",
                "    if isinstance(t, torch.Tensor):",
                "        print(name, t.dtype, tuple(t.shape), t.stride(), t.storage_offset(), t.tolist(), t.grad)",
            ]
        )

    def __repr__(self) -> str:
        return "\n" + "\n".join(self.lines)


@st.composite
def programs(draw: st.DrawFn, shortest: int = 4, longest: int = 12, *, drawing: bool = False) -> Program:
    """Programs of `shortest` to `longest` steps; a step is one or two lines. `drawing` adds random draws."""
    # Even odds for every choice: Hypothesis' own draws prefer the simple ones, and shrinking is `smallest`'s work.
    random = draw(st.randoms(use_true_random=True))
    writer = Writer(random.randrange)
    writer.add(KINDS["create"])
    writer.add(KINDS["parameter" if writer.chance(2) else "create"])
    table = KINDS
    if drawing:
        # Drawn indices are in range on the CPU only, and an error that `strict` raises at once comes later in `fused`.
        table = {name: kind for name, kind in (KINDS | DRAWING).items() if name != "embedding"}
        writer.add(DRAWING["seed"])
    kinds = [kind for kind in table.values() for _ in range(kind.weight)]
    for _ in range(shortest + writer.below(longest - shortest + 1)):
        writer.add(writer.pick(kinds))
    return Program(tuple(writer.lines), frozenset(writer.dtypes))


@dataclass(frozen=True)
class Raised:
    """A line that raised."""

    line: str
    error: type[BaseException]


@dataclass(frozen=True)
class Seen:
    """All there is to see of a tensor."""

    name: str
    facts: dict[str, object]
    value: torch.Tensor
    grad: Seen | None

    def differences(self, other: Seen, tolerance: float, scale: float) -> Iterator[str]:
        for fact, wanted in self.facts.items():
            if other.facts[fact] != wanted:
                yield f"{self.name}: {fact} is {other.facts[fact]}, on the CPU {wanted}"
        if self.value.shape == other.value.shape and self.value.dtype == other.value.dtype:
            rtol = tolerance if _inexact(self.value) else 0.0
            if not torch.allclose(other.value, self.value, rtol=rtol, atol=rtol * scale, equal_nan=True):
                yield f"{self.name} is\n{other.value}\non the CPU\n{self.value}"
        if self.grad is not None and other.grad is not None:
            yield from self.grad.differences(other.grad, tolerance, scale)


Observation = Raised | Seen


def run(program: Program, device: str) -> list[Observation]:
    """Run the program on a device: the lines that raised, in order, then every tensor left, by name."""
    space = names(device)
    seen: list[Observation] = []
    for line in program.lines:
        try:
            with _SEEDING if "manual_seed" in line else contextlib.nullcontext():
                exec(line, space)
        except Exception as error:
            seen.append(Raised(line, type(error)))
    tensors = {name: t for name, t in sorted(space.items()) if isinstance(t, torch.Tensor)}
    storages: dict[int, str] = {}
    for name, t in tensors.items():
        storages.setdefault(t.untyped_storage()._cdata, name)
    seen += [_observe(name, t, storages) for name, t in tensors.items()]
    return seen


def _observe(name: str, t: torch.Tensor, storages: dict[int, str]) -> Seen:
    grad = _observe(f"{name}.grad", t.grad, {}) if is_leaf(t) and t.grad is not None else None
    facts: dict[str, object] = {
        "dtype": t.dtype,
        "shape": tuple(t.shape),
        # Where a dimension can't be stepped along, its stride means nothing, and kernels and meta kernels differ.
        "strides": [s if n > 1 else None for n, s in zip(t.shape, t.stride(), strict=True)] if t.numel() else None,
        "storage_offset": t.storage_offset() if t.numel() else None,  # it comes of the strides
        "requires_grad": t.requires_grad,
        "is_leaf": is_leaf(t),
        "version": t._version,
        "is_conj": t.is_conj(),
        "shares the storage of": storages.get(t.untyped_storage()._cdata),
        "bytes of storage": t.untyped_storage().nbytes(),
        "has a grad": grad is not None,
    }
    if name.endswith(".grad"):
        del facts["version"]  # whether autograd keeps the tensor that comes or a copy depends on how it came
    return Seen(name, facts, t.detach().cpu().resolve_conj().resolve_neg().clone(), grad)


def _inexact(t: torch.Tensor) -> bool:
    return t.is_floating_point() or t.is_complex()


def differences(program: Program, device: str) -> list[str]:
    """What is different on `device` from the CPU, in sentences; empty if nothing is."""
    wanted = run(program, "cpu")
    try:
        got = run(program, device)
    except Exception as error:
        return [f"reading the tensors raised {type(error).__name__}: {error}"]
    return compare(wanted, got, program.tolerance)


def compare(wanted: list[Observation], got: list[Observation], tolerance: float) -> list[str]:
    """What is different in `got`, in sentences."""
    errors, device_errors = ([s for s in seen if isinstance(s, Raised)] for seen in (wanted, got))
    if errors != device_errors:
        return [f"raised: {device_errors}, on the CPU {errors}"]
    tensors, device_tensors = ({s.name: s for s in seen if isinstance(s, Seen)} for seen in (wanted, got))
    if tensors.keys() != device_tensors.keys():
        return [f"tensors left: {[*device_tensors]}, on the CPU {[*tensors]}"]
    floats = [s.value for s in tensors.values() if _inexact(s.value) and s.value.numel()]
    scale = max([1.0, *(float(v.abs().float().nan_to_num(0, 0, 0).max()) for v in floats)])
    return [d for n, s in tensors.items() for d in s.differences(device_tensors[n], tolerance, scale)]


def smallest(program: Program, fails: Callable[[Program], bool]) -> Program:
    """The program with as many lines left out as it takes until every line is needed for `fails`."""
    lines, i = list(program.lines), len(program.lines) - 1
    while i >= 0:
        shorter = Program((*lines[:i], *lines[i + 1 :]), program.dtypes)
        # A name that isn't there would be a fault on both sides; skip such a program instead of running it.
        if not any(isinstance(s, Raised) and s.error is NameError for s in run(shorter, "cpu")) and fails(shorter):
            lines = list(shorter.lines)
            i = min(i, len(lines))
        i -= 1
    return Program(tuple(lines), program.dtypes)
