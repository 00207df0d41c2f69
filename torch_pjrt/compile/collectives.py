"""Functional collectives as nodes of a program, which then runs on all ranks together, so that XLA can overlap them.

Such a program must be the same on every rank. So when a graph with collectives is compiled, its ranks tell each other
what it is (through PyTorch's store, once a graph). If all have the same one, its collectives become part of the
program; else they stay what they are without this: calls between two programs, which every rank makes with its own.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import jax
import torch
import torch.distributed as dist
from jax import Array
from torch._ops import OpOverload
from torch.fx import GraphModule, Node

from .. import _C
from ..distributed import programs
from ..eager.content import Unknown
from ..runtime.members import Members
from .bodies import attribute
from .draws import op_of
from .sizes import Sizes

if TYPE_CHECKING:
    from ..distributed.group import Collectives

log = logging.getLogger(__name__)


class Together(Members):
    """The ranks that run a graph's program, each call of it on the record of their group.

    Args:
        group: the ranks.
        index: of this process's device.
        what: describes the graph; equal on all ranks.
    """

    def __init__(self, group: Collectives, index: int, what: str) -> None:
        found = group.members(index)
        super().__init__(list(found.mesh.devices.flat), group.rank)
        self.number = group.number
        self._what = what
        self._group = group

    def caller(self, compiled: jax.stages.Compiled, content: str | None = None) -> Callable[..., list[Array]]:
        """As `Members.caller`; raises DistBackendError where the ranks don't call the same.

        Ranks that have the same graph still have different programs where their arguments lie differently in memory.
        """
        of_graph = "" if content is None else content.rpartition("\n")[0]  # without `identity`
        what = f"{self._what}, program {_hash(of_graph)[:8]}"
        run = self.program(compiled)
        return lambda *arrays: self._group.watched(what, lambda: run(*arrays))


@dataclass(frozen=True)
class Inside:
    """How a collective happens in a program.

    Attributes:
        members: who runs the program.
        groups: their ranks that do it among themselves; None: all do.
        size: how many ranks a group has.
    """

    members: Together
    groups: tuple[tuple[int, ...], ...] | None
    size: int


def inside(node: Node) -> Inside | None:
    """How the collective that a node is happens in its program; None if it is none, or happens between programs."""
    found: Inside | None = node.meta.get("collective")
    return found


def members_of(nodes: Sequence[Node]) -> Together | None:
    """Who runs the program of these nodes; None: this device alone."""
    found = (inside(n) for n in nodes)
    return next((i.members for i in found if i is not None), None)


def identity(nodes: Sequence[Node]) -> str:
    """Who runs the program of these nodes, and in which groups: with the graph's content, all that it depends on."""
    found = [i for n in nodes if (i := inside(n)) is not None]
    return "" if not found else f"{found[0].members.number} {[(i.groups, i.size) for i in found]}"


def evaluate(node: Node, args: Sequence[Any]) -> Any:
    """The value of a collective that is part of the program, along `members.AXIS`."""
    how, op = inside(node), op_of(node)
    assert how is not None
    return args[0] if op is _WAIT else _OPS[op](how, *args)


def is_collective(op: OpOverload) -> bool:
    """Whether the op is one that can be part of a program, or waits for one."""
    return op in _OPS or op is _WAIT


def agree(gm: GraphModule, kind: str, index: Callable[[], int]) -> None:
    """Let the graph's collectives happen inside its program, if all ranks compile the same graph.

    Args:
        gm: changed in place: `inside` tells of the collectives, and their groups have names that all ranks share.
        kind: "forward", "backward" or "inference".
        index: returns that of the device.

    Raises DistBackendError if a rank does not compile it within the group's timeout.
    """
    taking_part = [n for n in gm.graph.nodes if op_of(n) in _OPS]
    if not taking_part or not dist.is_initialized():
        return
    from ..distributed.registration import collectives_of

    names = list(dict.fromkeys(_group_of(n) for n in taking_part))
    groups = [collectives_of(name) for name in names]
    everybody = collectives_of(dist.group.WORLD.group_name)  # type: ignore[union-attr]
    leader = groups[0] if len(groups) == 1 else everybody
    if leader is None or None in groups:
        return  # a group of other devices takes part: what its ranks do is not ours to arrange
    sizes = [g.size for g in groups if g is not None]
    if leader.size not in (max(sizes), prod(sizes)):
        return  # of several groups, other than the dimensions of a mesh of all ranks: who is to agree is not known
    own_index = index()
    if own_index >= _C.device_count():
        return  # a mesh of this process's devices: its groups are of this process alone, and do nothing
    before = {n: n.args for n in taking_part}
    slots = {name: f"group {k}" for k, name in enumerate(names)}
    for node in taking_part:
        node.args = (*node.args[:-1], slots[_group_of(node)])
    content = _content(gm, kind, own_index) if all(map(_divides_evenly, taking_part)) else ""
    ranks = [list(g.ranks) for g in groups if g is not None]
    said = leader.told(json.dumps([content, ranks]), f"the compiling of a graph with collectives ({kind})")
    everyone = [json.loads(s) for s in said]
    of_slots = zip(*(theirs for _, theirs in everyone), strict=False)
    even = all(len({len(of_rank) for of_rank in slot}) == 1 for slot in of_slots)
    if not content or not even or any(theirs != content for theirs, _ in everyone):
        log.info("the ranks compile different %s graphs: their collectives run between programs", kind)
        for node, args in before.items():
            node.args = args
        return
    counted = Counter(op_of(n).name().partition("::")[2] for n in taking_part)  # type: ignore[union-attr]
    listed = ", ".join(f"{count} {name}" for name, count in sorted(counted.items()))
    members = Together(leader, own_index, f"a compiled {kind} graph ({content[:12]}) with {listed}")
    for k, name in enumerate(names):
        places = {tuple(leader.ranks.index(r) for r in theirs[k]) for _, theirs in everyone}
        how = Inside(members, None if len(places) == 1 else tuple(sorted(places)), len(ranks[k]))
        for node in taking_part:
            if before[node][-1] == name:
                node.meta["collective"] = how
    for node in gm.graph.nodes:
        source = node.args[0] if op_of(node) is _WAIT else None
        if isinstance(source, Node) and (inside(source) or _is_part(source)):
            node.meta["collective"] = inside(taking_part[0])


def _is_part(node: Node) -> bool:
    """Whether the node picks one result of a collective of several tensors."""
    return bool(node.args) and isinstance(node.args[0], Node) and inside(node.args[0]) is not None


def _group_of(node: Node) -> str:
    group = node.args[-1]
    return group if isinstance(group, str) else str(getattr(group, "group_name", group))


def _divides_evenly(node: Node) -> bool:
    """Whether the ranks' parts are of one size: others are not the same program on all ranks."""
    if op_of(node) is not _ops.all_to_all_single.default:
        return True
    sizes = [size for split in node.args[1:3] for size in split]  # type: ignore[union-attr]
    return len({str(s.meta["val"] if isinstance(s, Node) else s) for s in sizes}) == 1


def _content(gm: GraphModule, kind: str, index: int) -> str:
    """A hash of what the graph computes; "" if that cannot be told, or if its sizes may differ between ranks."""
    from .blocks import symbolic
    from .content import call_text, value_text

    number = {node: f"%{i}" for i, node in enumerate(gm.graph.nodes)}
    lines = [kind]
    if any(map(symbolic, number)):
        return ""
    try:
        for node, name in number.items():
            held = node.op == "get_attr" and isinstance(attribute(node), torch.Tensor)
            what = node.op if held or node.op == "placeholder" else call_text(node, number, Sizes())
            value = attribute(node) if held else node.meta.get("val")
            lines.append(f"{name} = {what}: {value_text(value, Sizes())}")
    except Unknown:
        return ""
    return _hash(portable("\n".join(lines), index))


def portable(text: str, index: int) -> str:
    """The text without the number of the rank's own device."""
    name = torch._C._get_privateuse1_backend_name()
    return text.replace(f"{name}:{index}", name)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# --- what each does with a member's own array ---


def _all_reduce(how: Inside, x: Array, op: str, group: str) -> Array:
    return programs.all_reduce(x, how.size, op=op.upper(), groups=how.groups)


def _all_gather(how: Inside, x: Array, size: int, group: str) -> Array:
    return programs.all_gather(x.reshape(1) if x.ndim == 0 else x, how.size, groups=how.groups)


def _reduce_scatter(how: Inside, x: Array, op: str, size: int, group: str) -> Array:
    return programs.reduce_scatter(x, how.size, op=op.upper(), groups=how.groups)


def _all_to_all(how: Inside, x: Array, output_sizes: Any, input_sizes: Any, group: str) -> Array:
    return programs.all_to_all(x, how.size, groups=how.groups)


def _shard_dim_all_to_all(how: Inside, x: Array, gather_dim: int, shard_dim: int, group: str) -> Array:
    return programs.all_to_all(x, how.size, split=shard_dim, concat=gather_dim, groups=how.groups)


def _broadcast(how: Inside, x: Array, source: int, group: str) -> Array:
    return programs.broadcast(x, how.size, root=source, groups=how.groups)


def _each(one: Callable[..., Array]) -> Callable[..., list[Array]]:
    """The same of several tensors."""
    return lambda how, xs, *settings: [one(how, x, *settings) for x in xs]


_ops = torch.ops._c10d_functional
_WAIT = _ops.wait_tensor.default if dist.is_available() else None
_OPS: dict[OpOverload | None, Callable[..., Any]] = (
    {}
    if _WAIT is None
    else {
        _ops.all_reduce.default: _all_reduce,
        _ops.all_gather_into_tensor.default: _all_gather,
        _ops.reduce_scatter_tensor.default: _reduce_scatter,
        _ops.all_to_all_single.default: _all_to_all,
        _ops.broadcast.default: _broadcast,
        _ops.all_reduce_coalesced.default: _each(_all_reduce),
        _ops.all_gather_into_tensor_coalesced.default: _each(_all_gather),
        _ops.reduce_scatter_tensor_coalesced.default: _each(_reduce_scatter),
        torch.ops._dtensor.shard_dim_alltoall.default: _shard_dim_all_to_all,
    }
)
