"""The numbers that a graph's symbolic sizes stand for in one call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch.fx import Node
from torch.utils._pytree import tree_leaves


class UnboundSize(RuntimeError):
    """A size depends on something that none of the graph's arguments tells."""


class Sizes:
    """Numbers for symbols, learnt from the graph's arguments.

    Example:
        >>> sizes = Sizes()
        >>> sizes.bind(fake.shape, (14, 3))  # fake.shape is (2 * s0, 3)
        >>> sizes.of([fake.shape[0] + 1])
        (15,)
    """

    def __init__(self, known: Mapping[Any, int] | None = None) -> None:
        self.known: dict[Any, sympy.Integer] = {k: sympy.Integer(v) for k, v in (known or {}).items()}

    def bind(self, symbolic: Iterable[Any], actual: Sequence[int], products: bool = False) -> None:
        """Learn what symbols stand for: `symbolic` sizes of an argument (or the argument itself) have these values.

        With `products`, a size that leaves more than one symbol open (`n * m + 3`) tells at least what `n * m` is.
        """
        for size, number in zip(symbolic, actual, strict=True):
            if isinstance(size, torch.SymInt):
                constant, factor, term = _linear(size.node.expr.xreplace(self.known))
                found = (number - constant) / factor
                if found.is_Integer and (term.is_Symbol or (products and term.free_symbols)):
                    self.known.setdefault(term, found)

    @property
    def all_apart(self) -> bool:
        """Whether each symbol is known by itself, none as a part of a product alone."""
        return all(s.is_Symbol for s in self.known)

    def of(self, symbolic: Iterable[Any]) -> tuple[int, ...]:
        """The sizes as numbers. Raises UnboundSize if one depends on a symbol that nothing has bound."""
        return tuple(self._number(s) for s in symbolic)

    def _number(self, size: Any) -> int:
        return self.of_expression(size.node.expr) if isinstance(size, torch.SymInt) else int(size)

    def holds(self, condition: Any) -> bool | None:
        """Whether a condition on sizes is true; None if it depends on a symbol that nothing has bound."""
        if not isinstance(condition, torch.SymBool):
            return bool(condition)
        found = condition.node.expr.xreplace(self.known)
        return None if found.free_symbols else bool(found)

    def of_expression(self, expression: Any) -> int:
        """A sympy expression of sizes as a number. Raises UnboundSize as `of` does."""
        found = sympy.sympify(expression).xreplace(self.known)
        if found.free_symbols:
            constant, factor, term = _linear(found)
            if term in self.known:
                return int(constant + factor * self.known[term])
            raise UnboundSize(
                f"size {expression} depends on {', '.join(map(str, found.free_symbols))}, which no argument tells"
            )
        return int(found)


def _linear(expression: Any) -> tuple[Any, Any, Any]:
    """The numbers c and f, and what is symbolic in it, t, of an expression c + f * t."""
    constant, rest = expression.as_coeff_Add()
    factor, term = rest.as_coeff_Mul()
    return constant, factor, term


def symbols_of(value: Any) -> set[Any]:
    """The symbols in a tensor's sizes, or in a size."""
    found: set[Any] = set()
    for size in value.shape if isinstance(value, torch.Tensor) else [value]:
        if isinstance(size, torch.SymInt):
            found |= size.node.expr.free_symbols
    return found


def expressions_of(nodes: Sequence[Node], exact: Mapping[Any, int]) -> set[Any]:
    """The sizes and numbers of elements that occur in the graph, those of `exact` put in."""
    known = {s: sympy.Integer(n) for s, n in exact.items()}
    found: set[Any] = set()
    for node in nodes:
        for value in tree_leaves(node.meta.get("val")):
            if isinstance(value, torch.Tensor):
                shape = [s.node.expr if isinstance(s, torch.SymInt) else sympy.Integer(s) for s in value.shape]
                found.update(e.xreplace(known) for e in [*shape, sympy.Mul(*shape)])
            elif isinstance(value, torch.SymInt):
                found.add(value.node.expr.xreplace(known))
    return {e for e in found if e.free_symbols}
