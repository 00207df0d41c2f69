"""The numbers that a graph's symbolic sizes stand for in one call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch


class UnboundSize(RuntimeError):
    """A size depends on something that none of the graph's arguments tells."""


class Sizes:
    """Numbers for symbols, learnt from the graph's arguments.

    Example:
        >>> sizes = Sizes()
        >>> sizes.bind(fake.shape, (7, 3))  # fake.shape is (s0, 3)
        >>> sizes.of([fake.shape[0] * 2])
        (14,)
    """

    def __init__(self, known: Mapping[Any, int] | None = None) -> None:
        self.known: dict[Any, sympy.Integer] = {k: sympy.Integer(v) for k, v in (known or {}).items()}

    def bind(self, symbolic: Iterable[Any], actual: Sequence[int]) -> None:
        """Learn what symbols stand for: `symbolic` sizes of an argument (or the argument itself) have these values."""
        for size, number in zip(symbolic, actual, strict=True):
            if isinstance(size, torch.SymInt):
                expression = size.node.expr
                if expression.is_Symbol and expression not in self.known:
                    self.known[expression] = sympy.Integer(number)

    def of(self, symbolic: Iterable[Any]) -> tuple[int, ...]:
        """The sizes as numbers. Raises UnboundSize if one depends on a symbol that nothing has bound."""
        return tuple(self._number(s) for s in symbolic)

    def _number(self, size: Any) -> int:
        return self.of_expression(size.node.expr) if isinstance(size, torch.SymInt) else int(size)

    def of_expression(self, expression: Any) -> int:
        """A sympy expression of sizes as a number. Raises UnboundSize as `of` does."""
        found = sympy.sympify(expression).xreplace(self.known)
        if found.free_symbols:
            raise UnboundSize(
                f"size {expression} depends on {', '.join(map(str, found.free_symbols))}, which no argument tells"
            )
        return int(found)
