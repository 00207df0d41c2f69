"""Reading the optimized HLO of a program: its instructions, as far as an estimate needs them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

_BITS = {
    "pred": 8, "s2": 2, "u2": 2, "s4": 4, "u4": 4, "f4e2m1fn": 4, "s8": 8, "u8": 8, "s16": 16, "u16": 16, "bf16": 16,
    "f16": 16, "s32": 32, "u32": 32, "f32": 32, "s64": 64, "u64": 64, "f64": 64, "c64": 64, "c128": 128, "token": 0,
    "opaque": 0,
}  # fmt: skip
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,]*)\](\{[^}]*\})?")
_NAME = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(r"\b(calls|to_apply|body|condition)=%([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")


@dataclass(frozen=True, slots=True)
class Array:
    """One array of an instruction's type.

    Attributes:
        dtype: XLA's name of it.
        sizes: of its dimensions.
        space: the memory it lies in: 0 is HBM.
        nbytes: without padding.
    """

    dtype: str
    sizes: tuple[int, ...]
    space: int
    nbytes: int

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.sizes))}]"


@dataclass(slots=True)
class Instruction:
    """One instruction.

    Attributes:
        name, opcode: XLA's.
        arrays: its results.
        operands: names of the instructions that it reads.
        attributes: the rest of its line.
        index: which element of a tuple it gets, for `get-tuple-element`; which parameter it is, for `parameter`;
            the whole number that it is, for `constant`.
    """

    name: str
    opcode: str
    arrays: tuple[Array, ...]
    operands: tuple[str, ...]
    attributes: str
    index: int | None = None

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for a in self.arrays)

    @property
    def cycles(self) -> int | None:
        """The compiler's estimate; None if it has none."""
        found = re.search(r'"estimated_cycles":"?(\d+)', self.attributes)
        return None if found is None else int(found[1])

    @property
    def place(self) -> str:
        """Its `op_name`: what it was made from."""
        found = re.search(r'op_name="([^"]*)"', self.attributes)
        return "" if found is None else found[1]

    def called(self) -> dict[str, str]:
        """Names of the computations that it calls, by their part ("calls", "body", "condition", "branch 0", ...)."""
        found = dict(_CALLED.findall(self.attributes))
        branches = _BRANCHES.search(self.attributes)
        if branches is not None:
            found |= {f"branch {i}": name for i, name in enumerate(_NAME.findall(branches[1]))}
        return found


@dataclass(slots=True)
class Module:
    """A program: its computations by name, each a list of instructions in the order that they run in."""

    computations: dict[str, list[Instruction]] = field(default_factory=dict)
    entry: str = ""

    def trips(self, loop: Instruction, caller: Mapping[str, Instruction]) -> int | None:
        """How often a `while` turns: as the compiler notes it, or as it counts; None if that is not to be seen.

        Args:
            caller: the instructions of the computation that the loop is in, by name.
        """
        noted = re.search(r'"known_trip_count":\{"n":"?(\d+)', loop.attributes)
        if noted is not None:
            return int(noted[1])
        called = loop.called()
        condition, body = (self.computations.get(called.get(p, ""), []) for p in ("condition", "body"))
        if not condition or not body:
            return None
        named = {i.name: i for i in condition}
        compared = condition[-1]
        if compared.opcode != "compare" or "direction=LT" not in compared.attributes:
            return None
        counter, bound = (named.get(o) for o in compared.operands)
        if counter is None or bound is None or counter.index is None or bound.index is None:
            return None
        step = _added(body, counter.index)
        start = _element(caller, loop.operands[0], counter.index)
        return None if step is None or start is None else -(-(bound.index - start) // step)

    @property
    def main(self) -> list[Instruction]:
        return self.computations[self.entry]


def parse(text: str) -> Module:
    """The instructions of an HLO module's text."""
    module = Module()
    current: list[Instruction] | None = None
    # What a Pallas kernel says of itself is the one attribute that is written on several lines.
    text = re.sub(r"kernel_metadata=\{\n.*?\n\}", "kernel_metadata={}", text, flags=re.DOTALL)
    for line in text.splitlines():
        if current is None:
            head = re.match(r"(ENTRY )?%?([\w.\-]+) \(.*\{\s*$", line)
            if head is not None:
                current = module.computations[head[2]] = []
                if head[1]:
                    module.entry = head[2]
        elif line.startswith("}"):
            current = None
        else:
            found = _instruction(line)
            if found is not None:
                current.append(found)
    return module


def _instruction(line: str) -> Instruction | None:
    head = re.match(r"\s*(?:ROOT )?%?([\w.\-]+) = ", line)
    if head is None:
        return None
    rest = line[head.end() :]
    end = _closing(rest, 0) + 1 if rest.startswith("(") else rest.find(" ")
    kind = rest[:end]
    opened = rest.find("(", end)
    if opened < 0:
        return None
    closed = _closing(rest, opened)
    attributes = rest[closed + 1 :]
    opcode = rest[end:opened].strip()
    index = re.search(r"\bindex=(\d+)", attributes)
    if opcode in ("parameter", "constant"):
        index = re.match(r"\((-?\d+)$", rest[opened:closed])
    return Instruction(
        head[1],
        opcode,
        tuple(arrays(kind)),
        tuple(_NAME.findall(rest[opened:closed])),
        attributes,
        int(index[1]) if index is not None else None,
    )


def _closing(text: str, at: int) -> int:
    depth = 0
    for i in range(at, len(text)):
        if text[i] == "(":
            depth += 1
        elif text[i] == ")":
            depth -= 1
            if depth == 0:
                return i
    return len(text)


def _element(instructions: Mapping[str, Instruction], name: str, index: int) -> int | None:
    """The whole number that an element of a tuple is, copies seen through."""
    held = instructions.get(name)
    if held is None or held.opcode != "tuple" or index >= len(held.operands):
        return None
    element = instructions.get(held.operands[index])
    while element is not None and element.opcode in ("copy", "bitcast", "copy-done", "copy-start"):
        element = instructions.get(element.operands[0])
    return element.index if element is not None and element.opcode == "constant" else None


def _added(body: Sequence[Instruction], index: int) -> int | None:
    """What a loop's body adds to an element of its tuple."""
    named = {i.name: i for i in body}
    root = body[-1]
    if root.opcode != "tuple" or index >= len(root.operands):
        return None
    total, current = 0, named.get(root.operands[index])
    while current is not None and current.opcode in ("add", "copy", "bitcast"):
        numbers = [named[o].index for o in current.operands if o in named and named[o].opcode == "constant"]
        others = [named[o] for o in current.operands if o in named and named[o].opcode != "constant"]
        total += sum(n for n in numbers if n is not None)
        current = others[0] if others else None
    ends = current is not None and current.opcode == "get-tuple-element" and current.index == index
    return total if ends and total > 0 else None


def arrays(kind: str) -> Iterator[Array]:
    """The arrays in the text of a type, tuples opened."""
    for dtype, sizes, layout in _ARRAY.findall(kind):
        shape = tuple(int(n) for n in sizes.split(",") if n)
        space = re.search(r"S\((\d+)\)", layout)
        bits = _BITS.get(dtype, 8)
        yield Array(dtype, shape, int(space[1]) if space is not None else 0, prod(shape) * bits // 8)


def groups(attributes: str, devices: int) -> list[list[int]]:
    """The groups of partitions that a collective runs in, whichever way XLA writes them; one of all if none is named.

    XLA writes them out, `{{0,1},{2,3}}`; as an iota, `[2,2]<=[4]` or `[2,2]<=[2,2]T(1,0)`; or by a mesh of its own,
    `mesh['a'=2,'b'=2] {'b'}`.
    """
    listed = re.search(r"(?:replica_groups|source_target_pairs)=\{(\{[\d,{}]*\})\}", attributes)
    if listed is not None:
        return [[int(n) for n in g.split(",")] for g in re.findall(r"\{([\d,]+)\}", listed[1])]
    iota = re.search(r"replica_groups=\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", attributes)
    if iota is not None:
        order = _transposed([int(n) for n in iota[3].split(",")], [int(n) for n in (iota[4] or "").split(",") if n])
        size = int(iota[2])
        return [order[i : i + size] for i in range(0, len(order), size)]
    meshed = re.search(r"replica_groups=mesh\[([^\]]*)\][^{]*\{([^}]*)\}", attributes)
    if meshed is not None:
        return _of_mesh(meshed[1], meshed[2])
    return [list(range(devices))]


def _transposed(sizes: list[int], order: list[int]) -> list[int]:
    """0, 1, 2, ... in an array of these sizes, its dimensions in another order."""
    order = order or list(range(len(sizes)))
    strides = [prod(sizes[d + 1 :]) for d in range(len(sizes))]
    found = [0]
    for d in order:
        found = [base + i * strides[d] for base in found for i in range(sizes[d])]
    return found


def _of_mesh(axes: str, along: str) -> list[list[int]]:
    named = [(name, int(n)) for name, n in re.findall(r"'([^']+)'=(\d+)", axes)]
    sizes: list[int] = []
    chosen: list[int] = []
    asked = {
        name: (int(before or 1), int(n or 0)) for name, before, n in re.findall(r"'([^']+)'(?::\((\d+)\)(\d+))?", along)
    }
    for name, n in named:
        before, part = asked.get(name, (1, 0))
        if name not in asked:
            sizes.append(n)
        elif not part:
            chosen.append(len(sizes))
            sizes.append(n)
        else:  # a part of an axis: the axis is three, of which the middle one is meant
            chosen.append(len(sizes) + 1)
            sizes += [before, part, n // (before * part)]
    outer = [d for d in range(len(sizes)) if d not in chosen]
    order = _transposed(sizes, outer + chosen)
    size = prod(sizes[d] for d in chosen)
    return [order[i : i + size] for i in range(0, len(order), size)]
