"""The table of rules: how a primitive keeps padding apart from what is real."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jax import Array

from .aligned import Aligned, NotPaddable, Step
from .arrays import Extent, Extents, Numbers, Padded, extent

Rule = Callable[["Call"], list[Padded]]


@dataclass(frozen=True, slots=True)
class Call:
    """One equation with its operands.

    Attributes:
        step: the equation.
        operands: its operands.
        numbers: the run-time numbers.
        run: evaluates a body.
    """

    step: Step
    operands: list[Padded]
    numbers: Numbers
    run: Callable[[Aligned, Sequence[Padded], Numbers], list[Padded]]

    @property
    def fixed(self) -> bool:
        """Whether nothing in it depends on sizes."""
        return all(x.fixed for x in self.operands) and self.step.fixed

    @property
    def params(self) -> dict[str, Any]:
        return self.step.params

    def bind(self, *arrays: Array, **params: Any) -> Any:
        """The primitive itself, by default with the parameters of the bucket's size."""
        return self.step.primitive.bind(*arrays, **{**self.step.params, **params})

    def fitted(self, param: str) -> Any:
        """A parameter, with an expression for each number in it that depends on sizes."""
        if param not in self.step.differs:
            return self.step.params[param]
        if param not in self.step.fitted:
            raise NotPaddable(f"its {param} depends on sizes")
        return self.step.fitted[param]

    def fresh(self, result: int = 0) -> Extents:
        """The extents of a result of which nothing is known but its sizes: padding at the end."""
        dims, shape = self.step.dims[result], self.step.shapes[result]
        return tuple(None if d is None else extent(d, n) for d, n in zip(dims, shape, strict=True))


@dataclass(frozen=True, slots=True)
class _Entry:
    rule: Rule
    may_differ: frozenset[str]


_RULES: dict[str, _Entry] = {}


def rule(*names: str, may_differ: Sequence[str] = ()) -> Callable[[Rule], Rule]:
    """Register the decorated function for primitives of these names, whose parameters `may_differ` with sizes."""

    def register(fn: Rule) -> Rule:
        for name in names:
            if name in _RULES:
                raise ValueError(f"{name} has two rules")
            _RULES[name] = _Entry(fn, frozenset(may_differ))
        return fn

    return register


def rule_of(step: Step) -> Rule:
    """The rule of an equation's primitive. Raises NotPaddable if there is none."""
    entry = _RULES.get(step.primitive.name)
    if entry is None:
        raise NotPaddable("no rule says what padding does to it")
    further = set(step.differs) - entry.may_differ
    if further:
        raise NotPaddable(f"its {', '.join(sorted(further))} depends on sizes")
    return entry.rule


def plain(e: Extent | None) -> None:
    """Raise NotPaddable unless the padding of the dimension lies at its end."""
    if e is not None and not e.prefix:
        raise NotPaddable("it works along a dimension that was merged from several")


def unpadded(extents: Extents, axes: Sequence[int], what: str) -> None:
    """Raise NotPaddable if one of the axes is padded."""
    if any(extents[a] is not None for a in axes):
        raise NotPaddable(f"{what} has a size that varies")
