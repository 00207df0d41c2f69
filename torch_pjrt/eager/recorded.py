"""A compiled graph as a trace sees it: one node among ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import jax

from ..runtime.executable import Executable


class RecordedGraph(Protocol):
    """What a trace asks of a graph that was recorded (`torch_pjrt.compile.recorded`).

    Attributes:
        name: "forward graph 0".
        content: all that its results depend on besides its operands, as text; None if that cannot be told.
        options: XLA's, by name; those of all graphs of a trace are the same.
        written: the operands whose new content its first outputs are.
        draws: how many random keys it takes.
    """

    @property
    def name(self) -> str: ...
    @property
    def content(self) -> str | None: ...
    @property
    def options(self) -> Mapping[str, Any]: ...
    @property
    def written(self) -> Sequence[int]: ...
    @property
    def draws(self) -> int: ...

    def evaluate(self, operands: Sequence[jax.Array], keys: jax.Array | None) -> tuple[list[jax.Array], list[int]]:
        """Its outputs, and for each thing that it required of its data the place in it that did."""

    def place(self, number: int) -> tuple[str, str | None]:
        """The op and the user's line at a place."""

    def note_program(
        self,
        graphs: Sequence[RecordedGraph],
        ops: int,
        executable: Executable,
        seconds: float,
        donated: list[int],
        loaded: bool,
    ) -> None:
        """Enter a program into the report, made of these graphs (this one is the first) and so many ops."""

    def text(self) -> str:
        """The graph for a dump."""
