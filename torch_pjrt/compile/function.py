"""A graph as a function of arrays, which JAX can trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from torch.fx import Node

from ..eager.infer import LayoutTuple
from ..lowering import view
from ..lowering.check import Requirement, collecting
from .evaluate import Evaluation
from .graph import Convention
from .sizes import Sizes
from .strided import Memory


@dataclass(frozen=True, slots=True)
class Argument:
    """How one tensor argument lies in memory.

    Attributes:
        index: which argument of the graph it is.
        own: layout of the tensor.
        base: layout of the array under its storage.
        structure: the view that the tensor is of the array; None: all of it.
        starts: how many numbers say where the view starts.
        moved: whether the array holds a copy of the tensor, not the memory that it lies in.
    """

    index: int
    own: LayoutTuple
    base: LayoutTuple
    structure: Any
    starts: int
    moved: bool = False


@dataclass(slots=True)
class GraphFunction:
    """The graph for arguments that lie in memory in a given way, at given sizes.

    Attributes:
        nodes, needed, constants: of the graph.
        convention: how it is called.
        arguments: its tensor arguments.
        sizes: what its symbolic sizes stand for.
        results: the nodes whose values it returns.
        through_views: arguments that it writes to through a view: their whole arrays are returned after the results.
        checked: what it requires of its data, and the node that does; known once it has been traced. If there is
            anything, the findings are the last result.
    """

    nodes: Sequence[Node]
    needed: set[Node]
    constants: Sequence[Node]
    convention: Convention
    arguments: Sequence[Argument]
    sizes: Sizes
    results: Sequence[Node]
    through_views: Sequence[Argument] = ()
    checked: list[tuple[Node, Requirement]] = field(default_factory=list)

    def __call__(
        self, tensors: Sequence[jax.Array], constants: Sequence[jax.Array], starts: Any, keys: Any
    ) -> list[jax.Array]:
        """The results.

        Args:
            tensors: the arrays under the arguments.
            constants: the tensors that are attributes of the graph's module.
            starts: int64, where the arguments' views start, one after the other; None if there is none.
            keys: uint32, four for each node that draws; None if there is none.
        """
        convention = self.convention
        place = 0
        values: dict[Node, Any] = {n: self.sizes.of([n.meta["val"]])[0] for n in convention.ints}
        where: dict[int, list[jax.Array]] = {}
        memories: dict[Node, Memory] = {}
        for a, array in zip(self.arguments, tensors, strict=True):
            where[a.index] = [starts[place + k].astype(np.int32) for k in range(a.starts)]
            place += a.starts
            whole = a.structure is None
            node = convention.placeholders[a.index]
            values[node] = array if whole else view.read(array, a.structure, where[a.index])
            memories[node] = Memory(array, a.base, a.structure, where[a.index], a.moved)
        evaluation = Evaluation(
            values,
            self.sizes,
            None if keys is None else keys.reshape(-1, 4),
            dict(zip(self.constants, constants, strict=True)),
            memories=memories,
        )
        with collecting() as collector:
            values = evaluation.run(self.nodes, self.needed, lambda: len(collector.found))
        self.checked[:] = zip(evaluation.required_by, (r for r, _ in collector.found), strict=True)
        results = [values[n] for n in self.results]
        by_index = {a.index: array for a, array in zip(self.arguments, tensors, strict=True)}
        for a in self.through_views:
            content = values[convention.written[a.index]]
            results.append(view.write(by_index[a.index], a.structure, where[a.index], content))
        if collector.found:
            results.append(jnp.stack([finding for _, finding in collector.found]))
        return results
