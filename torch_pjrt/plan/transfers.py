"""Collectives of a traced rank: what a call of PyTorch's does, and how it is computed in a program that all ranks run.

A tape has them under names of its own, "collective::all_reduce", one operation for each tensor that is sent, whichever
of PyTorch's two families a program calls: `c10d` (`torch.distributed`, FSDP2, DDP) or `_c10d_functional` (DTensor).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import torch
import torch.distributed as dist
from torch._ops import OpOverload

from .tape import PlanError

if TYPE_CHECKING:
    from jax import Array

Groups = tuple[tuple[int, ...], ...]

PREFIX = "collective::"
_NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor")
_REDUCTIONS: dict[str, Any] = dict(dist.ReduceOp.RedOpType.__members__) if dist.is_available() else {}
# What waits, and moves nothing.
_WAITS = frozenset({"barrier", "monitored_barrier_", "check_for_nan", "wait_tensor"})


@dataclass(frozen=True)
class Transfer:
    """One collective of one operand.

    Attributes:
        kind: a function of `distributed.programs` ("all_reduce", ...), with "/list" where a rank gives or gets a tensor
            for each rank.
        given: what this rank gives.
        written: the tensors that it gets its results in.
        made: the new ones that it gets.
        settings: of the kind; the `ranks` of its group, None for all, how many `members` that has, and how many ranks
            there are in the `world`.
    """

    kind: str
    given: tuple[torch.Tensor, ...]
    written: tuple[torch.Tensor, ...]
    made: tuple[torch.Tensor, ...]
    settings: dict[str, Any]


def is_collective(func: OpOverload) -> bool:
    """Whether it is a call between ranks, or waits for one."""
    return func.namespace in _NAMESPACES


def answer(func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """What a collective of fake tensors returns when it is over."""
    if func.namespace != "c10d":
        return args[0] if func._opname == "wait_tensor" else func(*args, **kwargs)
    returns = func._schema.returns
    if not returns:
        return None
    from torch._C import _distributed_c10d

    future: Any = torch.futures.Future()
    future.set_result(args[0] if isinstance(args[0], list) else [args[0]])
    make: Any = _distributed_c10d._create_work_from_future  # type: ignore[attr-defined]
    work = make(future).boxed()
    return work if len(returns) == 1 else (args[0], work)


def transfers_of(func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> list[Transfer]:
    """What a collective moves, in order; nothing for one that waits.

    Args:
        result: what the call returned.

    Raises PlanError for one that not all ranks do alike.
    """
    if func._opname in _WAITS:
        return []
    reader = (_OF_C10D if func.namespace == "c10d" else _FUNCTIONAL).get(func._opname)
    if reader is None:
        raise PlanError(
            f"{func.name()}: a plan is one program, which all ranks run alike, and this does something else on each "
            "(as between the stages of a pipeline): plan what one rank does, without it"
        )
    by_name = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
    return reader(_Call(func.name(), by_name, result))


@dataclass(frozen=True)
class _Call:
    """A call: its arguments by name, and what it returned."""

    name: str
    given: dict[str, Any]
    result: Any

    def __getitem__(self, name: str) -> Any:
        return self.given[name]

    def listed(self, name: str) -> list[torch.Tensor]:
        """Tensors, of which the schema has one or a list."""
        value = self.given[name]
        return [value] if isinstance(value, torch.Tensor) else list(value)

    @property
    def results(self) -> list[torch.Tensor]:
        return [self.result] if isinstance(self.result, torch.Tensor) else list(self.result)

    @property
    def group(self) -> dict[str, Any]:
        """The settings that say who takes part."""
        asked: Any = self.given.get("process_group", self.given.get("group_name"))
        group = asked
        if isinstance(asked, str):
            from torch._C._distributed_c10d import _resolve_process_group

            group = _resolve_process_group(asked)  # type: ignore[arg-type]
        elif not isinstance(asked, dist.ProcessGroup):
            group = dist.ProcessGroup.unbox(asked)
        ranks = tuple(dist.get_process_group_ranks(group))
        world = dist.get_world_size()
        partition(ranks, world)  # raises where nothing can be said of the other ranks
        return {"members": len(ranks), "ranks": None if len(ranks) == world else ranks, "world": world}

    @property
    def reduction(self) -> str:
        """The reduction's name in torch.distributed.ReduceOp; of scaled terms that of the sum, which costs as much."""
        op = self.given["reduce_op"]
        if isinstance(op, str):
            return op.upper()
        number = op._get_method("op")()
        name = next(name for name, value in _REDUCTIONS.items() if int(value) == number)
        return "SUM" if name == "PREMUL_SUM" else name


def partition(ranks: Sequence[int], world: int) -> Groups:
    """The groups of all ranks of which one is given: its pattern, moved along until every rank is in one.

    So do the dimensions of a mesh, and several of them taken together.

    Raises PlanError if no such groups cover the ranks, each once.

    Example:
        >>> partition((0, 4), 8)
        ((0, 4), (1, 5), (2, 6), (3, 7))
    """
    pattern = [r - ranks[0] for r in ranks]
    free = dict.fromkeys(range(world), True)
    found: list[tuple[int, ...]] = []
    while free:
        first = next(iter(free))
        group = tuple(first + n for n in pattern)
        if not all(free.pop(r, False) for r in group):
            raise PlanError(
                f"a process group of the ranks {list(ranks)} of {world}: the groups of the others are not this one "
                "moved along, as those of a mesh are, so there is no one program for all ranks"
            )
        found.append(group)
    return tuple(found)


def evaluate(kind: str, given: Sequence[Array], settings: dict[str, Any]) -> list[Array]:
    """The results of a collective on one rank's arrays, along `runtime.members.AXIS`."""
    from ..distributed import programs

    rest = dict(settings)
    ranks, world, members = rest.pop("ranks"), rest.pop("world"), rest.pop("members")
    rest["groups"] = None if ranks is None else partition(ranks, world)
    if members == 1:
        return list(given)
    name, _, several = kind.partition("/")
    of: Callable[..., Array] = getattr(programs, name)
    if kind == "reduce_scatter":  # of which the parts may lie along any dimensions
        given = [x if x.ndim and x.shape[0] % members == 0 else x.reshape(-1) for x in given]
    if not several:
        return [of(x.reshape(1) if x.ndim == 0 else x, members, **rest) for x in given]
    result = of(jnp.stack(list(given)), members, **rest)
    return list(result.reshape(-1, *given[0].shape))


_Reader = Callable[[_Call], list[Transfer]]


def _in_place(kind: str, name: str, *settings: str) -> _Reader:
    """A collective of tensors that it writes to."""
    return lambda call: [Transfer(kind, (t,), (t,), (), _settings(call, settings)) for t in call.listed(name)]


def _into(kind: str, source: str, target: str, *settings: str) -> _Reader:
    """A collective of tensors that writes to others."""
    return lambda call: [
        Transfer(kind, (t,), (into,), (), _settings(call, settings))
        for t, into in zip(call.listed(source), call.listed(target), strict=True)
    ]


def _new(kind: str, name: str, *settings: str) -> _Reader:
    """A collective that returns new tensors."""
    return lambda call: [
        Transfer(kind, (t,), (), (made,), _settings(call, settings))
        for t, made in zip(call.listed(name), call.results, strict=True)
    ]


def _lists(kind: str, source: str, target: str, *settings: str) -> _Reader:
    """A collective of lists, which has a tensor for each rank on one side or on both."""

    def read(call: _Call) -> list[Transfer]:
        given, written = call[source], call[target]
        if call.name == "c10d::allgather_coalesced_":  # which has the lists the other way round
            written = [list(of_one) for of_one in zip(*written, strict=True)]
        if isinstance(given[0], torch.Tensor) and isinstance(written[0], torch.Tensor):  # one list each
            given, written = [given], [written]
        found = []
        for g, w in zip(given, written, strict=True):
            one, other = (tuple([x] if isinstance(x, torch.Tensor) else x) for x in (g, w))
            if len({t.shape for t in (*one, *other)}) > 1:
                raise _uneven(call.name)
            found.append(Transfer(f"{kind}/list", one, other, (), _settings(call, settings)))
        return found

    return read


def _settings(call: _Call, names: Sequence[str]) -> dict[str, Any]:
    found = call.group
    for name in names:
        if name == "reduce_op":
            found["op"] = call.reduction
        else:
            found["root"] = call[name]
    return found


def _all_to_all(reader: _Reader) -> _Reader:
    """As `reader`, which reads it of even parts; where all goes to one rank, as in a ring, each rank's goes as far."""

    def read(call: _Call) -> list[Transfer]:
        to, source = ([i for i, n in enumerate(call[f"{side}_split_sizes"]) if n] for side in ("input", "output"))
        sizes = {*call["input_split_sizes"], *call["output_split_sizes"]}
        found = reader(call)
        if len(sizes) <= 1:
            return found
        members = found[0].settings["members"]
        if len(to) != 1 or len(source) != 1 or (to[0] + source[0]) % members or len(sizes) != 2:
            raise _uneven(call.name, "or not round a ring")
        return [replace(t, kind="shift", settings=t.settings | {"by": to[0]}) for t in found]

    return read


def _shard_dim_all_to_all(call: _Call) -> list[Transfer]:
    settings = call.group | {"split": call["shard_dim"], "concat": call["gather_dim"]}
    return [Transfer("all_to_all", (call["input"],), (), (call.result,), settings)]


def _uneven(name: str, otherwise: str = "") -> PlanError:
    what = " ".join(["parts of different sizes", otherwise]).strip()
    return PlanError(
        f"{name}: the ranks send each other {what}, and no program that all run alike can be planned for that; plan "
        "with even parts"
    )


_OF_C10D: dict[str, _Reader] = {
    "allreduce_": _in_place("all_reduce", "tensors", "reduce_op"),
    "allreduce_coalesced_": _in_place("all_reduce", "tensors", "reduce_op"),
    "reduce_": _in_place("all_reduce", "tensors", "reduce_op"),  # which it is, and one rank reads the result
    "broadcast_": _in_place("broadcast", "tensors", "root_rank"),
    "_allgather_base_": _into("all_gather", "input_tensor", "output_tensor"),
    "allgather_into_tensor_coalesced_": _into("all_gather", "inputs", "outputs"),
    "allgather_": _lists("all_gather", "input_tensors", "output_tensors"),
    "allgather_coalesced_": _lists("all_gather", "input_list", "output_lists"),
    "_reduce_scatter_base_": _into("reduce_scatter", "input_tensor", "output_tensor", "reduce_op"),
    "reduce_scatter_tensor_coalesced_": _into("reduce_scatter", "inputs", "outputs", "reduce_op"),
    "reduce_scatter_": _lists("reduce_scatter", "input_tensors", "output_tensors", "reduce_op"),
    "alltoall_base_": _all_to_all(_into("all_to_all", "input", "output")),
    "alltoall_": _lists("all_to_all", "input_tensors", "output_tensors"),
}
_FUNCTIONAL: dict[str, _Reader] = {
    "all_reduce": _new("all_reduce", "input", "reduce_op"),
    "all_reduce_": _in_place("all_reduce", "input", "reduce_op"),
    "all_reduce_coalesced": _new("all_reduce", "inputs", "reduce_op"),
    "all_reduce_coalesced_": _in_place("all_reduce", "inputs", "reduce_op"),
    "broadcast": _new("broadcast", "input", "src"),
    "broadcast_": _in_place("broadcast", "input", "src"),
    "all_gather_into_tensor": _new("all_gather", "input"),
    "all_gather_into_tensor_out": _into("all_gather", "input", "out"),
    "all_gather_into_tensor_coalesced": _new("all_gather", "inputs"),
    "reduce_scatter_tensor": _new("reduce_scatter", "input", "reduce_op"),
    "reduce_scatter_tensor_out": _into("reduce_scatter", "input", "out", "reduce_op"),
    "reduce_scatter_tensor_coalesced": _new("reduce_scatter", "inputs", "reduce_op"),
    "all_to_all_single": _all_to_all(_new("all_to_all", "input")),
    "shard_dim_alltoall": _shard_dim_all_to_all,
}
