"""A graph's calls as nodes of the trace: a training step as one program.

A compiled graph need not run when it is called. Recorded like an op (csrc/graph_recorder.cpp), the forward graph, the
backward graph and the optimizer's ops are all there when the step ends, and become one program; a value read earlier
cuts the step, as it cuts a trace of ops.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import jax
import torch
from torch.fx import Node

from ..eager.infer import LayoutTuple
from ..eager.recorded import RecordedGraph
from ..lowering.check import pass_on
from ..lowering.dtypes import to_numpy
from ..runtime.defaults import takes
from ..runtime.executable import Executable
from ..runtime.platform import platform
from . import shared
from .blocks import symbolic
from .content import content
from .dump import listing, wanted
from .evaluate import name_of, user_line
from .function import Argument, GraphFunction
from .graph import Makes, OutputTuple, Takes, contiguous
from .report import REPORT, ProgramRecord
from .sizes import Sizes

if TYPE_CHECKING:
    from .program import Program

# torch_pjrt::Role in csrc/trace.h.
_ROLES = {"forward": 0, "backward": 1, "inference": 2}
_UNKNOWN = itertools.count()

# What the C++ core needs to record a call: the graph, its number, the layouts of what it makes (the content of written
# arguments first), how the call's outputs are made of that, and the tensors that the graph's module holds.
Recipe = tuple[RecordedGraph, int, list[LayoutTuple], list[OutputTuple], list[torch.Tensor]]


def recording(program: Program) -> dict[str, Any] | None:
    """How the core records calls of a graph; None if they run by themselves.

    Of graphs without a backward pass those that write to their arguments are recorded, right after a backward pass: the
    update by a compiled optimizer. Graphs with symbolic sizes run by themselves, padded, as do those with collectives.
    So do, on XLA:CPU, those of which activations are to be recomputed: in one program XLA finds the two computations
    equal and keeps the first (it drops optimization barriers early; JAX's own `checkpoint` saves nothing there either).
    """
    convention = program.convention
    taken = list(zip(program.convention.placeholders, convention.takes, strict=True))
    written_on_the_host = any(convention.takes[i] is Takes.HOST for i in convention.written)
    if not program.options.whole_step or program.link is None or not convention.results or program.members:
        return None
    if program.link.recomputes and platform() == "cpu":
        return None
    if not convention.written if program.kind == "inference" else written_on_the_host:
        return None
    if any(t is Takes.INT for _, t in taken) or any(symbolic(n) for n, _ in taken):
        return None
    return {
        "role": _ROLES[program.kind],
        "options": _number_of(repr(sorted(program.options.compiler_options.items()))),
        "describe": lambda layouts: _describe(program, layouts),
    }


def _describe(program: Program, layouts: Sequence[LayoutTuple]) -> Recipe | None:
    """What it takes to record a call with tensors of these layouts; None if it cannot be."""
    convention = program.convention
    places = [i for i, t in enumerate(convention.takes) if t in (Takes.TENSOR, Takes.HOST)]
    arguments = [Argument(i, layout, layout, None, 0) for i, layout in zip(places, layouts, strict=True)]
    sizes = program.bind(arguments)
    recipes = convention.recipes(sizes)
    if any(kind == Makes.HOST for kind, *_ in recipes):
        return None
    written = [k for k, a in enumerate(arguments) if a.index in convention.written]
    fresh: list[Node] = []
    layouts_made = [contiguous(*arguments[k].own[:2]) for k in written]
    outputs: list[OutputTuple] = []
    for kind, index, layout, offset, constant in recipes:
        if kind == Makes.RESULT:
            assert layout is not None
            fresh.append(convention.results[index])
            layouts_made.append(layout)
            index = len(fresh) - 1
        outputs.append((kind, index, layout, offset, constant))
    results = [*(convention.written[arguments[k].index] for k in written), *fresh]
    graph = replace(program.padded.graph, arguments=arguments, sizes=sizes, results=results, checked=[])
    constants = [_on_device(t, convention.device) for t in program.constants.values()]
    text = None if wanted() else _content(program, graph, sizes, constants)
    recorded = Recorded(program, graph, text, tuple(written))
    options = sorted(program.options.compiler_options.items())
    key = f"{next(_UNKNOWN)}" if text is None else f"{shared.generation()}{options}\0{text}"
    return recorded, _number_of(key), layouts_made, outputs, constants


def _on_device(tensor: torch.Tensor, index: int) -> torch.Tensor:
    with torch.no_grad():
        return tensor.detach().to(torch.device(torch._C._get_privateuse1_backend_name(), index))


def _number_of(text: str) -> int:
    """64 bits of the text's SHA-256: the core's hashes are made of such numbers."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def _content(program: Program, graph: GraphFunction, sizes: Sizes, constants: Sequence[torch.Tensor]) -> str | None:
    named = program.convention.placeholders
    held = [jax.ShapeDtypeStruct(t.shape, to_numpy(t.dtype)) for t in constants]
    return content(
        program.nodes, program.part, sizes,
        arguments=[(named[a.index], (a.own, a.base, a.structure, a.starts)) for a in graph.arguments],
        ints={}, constants=dict(zip(graph.constants, held, strict=True)), results=graph.results, writes=[],
        donated=[], device=program.convention.device,
    )  # fmt: skip


@functools.cache
def _step_options() -> Mapping[str, Any]:
    """XLA options for the program of a step.

    XLA:CPU copies a donated weight away if its update may be made before all have read it. With this it puts the two in
    order: 21 MB of temporaries became 6 in the MLP of benchmarks/models, 1.18 of the parts' CPU time 1.01 (12 rounds).
    """
    option = "xla_cpu_copy_insertion_use_region_analysis"
    return {option: True} if platform() == "cpu" and takes(option, True) else {}


@dataclass(slots=True, eq=False)
class Recorded:
    """A graph for arguments of given layouts, as `torch_pjrt.eager.recorded.RecordedGraph` asks for it."""

    program: Program
    graph: GraphFunction
    content: str | None
    written: tuple[int, ...]
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.name = f"{self.program.kind} graph of {len(self.program.nodes)} nodes"

    @property
    def options(self) -> Mapping[str, Any]:
        return {**_step_options(), **self.program.options.compiler_options}

    @property
    def draws(self) -> int:
        return self.program.convention.draws

    def __str__(self) -> str:
        return self.name

    def evaluate(self, operands: Sequence[jax.Array], keys: jax.Array | None) -> tuple[list[jax.Array], list[int]]:
        """Its outputs, and for each thing that it required of its data the number of the node that did."""
        count = len(self.graph.arguments)
        if self.program.kind == "backward":
            # What it recomputes of the forward pass is not to be found equal to that, or it would be kept instead.
            operands = jax.lax.optimization_barrier(list(operands))
        results = self.graph(operands[:count], operands[count:], None, keys)
        if not self.graph.checked:
            return results, []
        findings = results.pop()
        pass_on([requirement for _, requirement in self.graph.checked], findings)
        places = {node: i for i, node in enumerate(self.program.part)}
        return results, [places[node] for node, _ in self.graph.checked]

    def place(self, number: int) -> tuple[str, str | None]:
        """The op and the user's line of a node."""
        node = self.program.part[number]
        return name_of(node), user_line(node) or None

    def note_program(
        self,
        graphs: Sequence[RecordedGraph],
        ops: int,
        executable: Executable,
        seconds: float,
        donated: list[int],
        loaded: bool,
    ) -> None:
        """Enter a program into the report, made of these graphs and so many ops."""
        made = ProgramRecord.of(executable, seconds, donated, (), "loaded" if loaded else "compiled")
        if len(graphs) == 1 and not ops:
            self.program.record.programs.append(made)
        else:
            REPORT.add_step([g.program.record for g in graphs if isinstance(g, Recorded)], ops, made)

    def text(self) -> str:
        """The graph's nodes, one a line."""
        return "\n".join(listing(self.program.nodes))
