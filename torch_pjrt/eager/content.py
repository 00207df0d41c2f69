"""What a trace computes, as text: equal texts mean the same program, in this process or another.

The C++ core knows traces by a hash over pointers, which no other process shares. Source lines are left out: moving
a program's lines changes nothing of what it computes.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import torch
from torch._ops import OpOverload

from ..lowering import find
from ..lowering.matmul import precision
from .infer import Call

if TYPE_CHECKING:
    from .recorded import RecordedGraph
    from .trace import Node, Operand, Trace

_NAMED = (torch.dtype, torch.device, torch.layout, torch.memory_format)


class Unknown(TypeError):
    """Something whose content cannot be written down, so that no other process can know it again."""


def content(trace: Trace, donated: dict[int, int]) -> str | None:
    """All that the program of `trace` depends on, or None if that cannot be told (a lowering from elsewhere).

    Example:
        >>> content(trace, donated={0: 0})
        'HIGHEST;torch.float32;None;0;[Spec(torch.float32,(4,))];(0,);[(0,0)];0,0,0\\nop|aten::relu|...'
    """
    memory: dict[int, str] = {}

    def known(o: Any, write: Callable[[Any], str]) -> str:
        # Calls and view structures live as long as the process: the same object is the same text.
        text = memory.get(id(o))
        if text is None:
            text = memory[id(o)] = write(o)
        return text

    def operand(o: Operand) -> str:
        structure = "" if o.structure is None else known(o.structure, text_of)
        return (
            f"{o.kind},{o.index},{o.out},{structure},{o.starts},{o.run_time_starts},{text_of(o.base)},{text_of(o.view)}"
        )

    def node(n: Node) -> str:
        call = known(n.call, _call) if n.call else known(n.graph, _graph) if n.graph else ""
        structure = "" if n.structure is None else known(n.structure, text_of)
        operands = ";".join(map(operand, n.operands))
        numbers = f"{n.first_float},{n.first_int},{n.first_key}"
        return f"{n.kind}|{call}|{operands}|{text_of(n.outs)}|{numbers}|{structure}"

    try:
        numbers = f"{trace.floats},{trace.ints},{trace.keys}"
        pairs = text_of([*donated.items()])
        head = f"{lowering_state()};{trace.device};{text_of(trace.inputs)};{trace.results};{pairs};{numbers}"
        return "\n".join([head, *map(node, trace.nodes)])
    except Unknown:
        return None


def _call(call: Call) -> str:
    return f"{name_of(call.op)}{text_of(call.template)}{text_of(call.specs)}"


def _graph(graph: RecordedGraph) -> str:
    if graph.content is None:
        raise Unknown(f"{graph.name} has no text of its own")
    return graph.content


def name_of(op: OpOverload) -> str:
    """The op's full name. Raises Unknown if it is lowered elsewhere: our own source is in the key, others' is not."""
    lowering = find(op)
    if lowering is None or not lowering.fn.__module__.startswith(__package__.partition(".")[0] + "."):
        raise Unknown(f"{op.name()} is lowered outside of this package, whose version does not tell how")
    return op.name()


def lowering_state() -> str:
    """The global state that lowerings read: PyTorch's (csrc/lowering_state.h), and JAX's own, for half products."""
    half = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
    return f"{precision()};{torch.get_default_dtype()};{half}"


def text_of(o: Any) -> str:
    """Numbers, strings, PyTorch's constants, and what is made of them. Raises Unknown for anything else."""
    if o is None or isinstance(o, (bool, int, float, complex, str)):
        return repr(o)
    if isinstance(o, (tuple, list)):
        return f"{'(' if isinstance(o, tuple) else '['}{','.join(map(text_of, o))}]"
    if isinstance(o, _NAMED):
        return str(o)
    if isinstance(o, OpOverload):
        return o.name()
    if isinstance(o, enum.Enum):
        return f"{type(o).__name__}.{o.name}"
    if dataclasses.is_dataclass(o):
        fields = (text_of(getattr(o, f.name)) for f in dataclasses.fields(o))
        return f"{type(o).__name__}({','.join(fields)})"
    raise Unknown(f"a {type(o).__name__} has no text of its own")
