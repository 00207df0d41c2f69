"""Writing a tape: a dispatch mode that sees every operation of a step on fake tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry

from ..eager.source import user_line
from ..lowering import Spec, find
from ..lowering.apply import overload_name, written
from ..lowering.registry import get
from ..lowering.view import Layout, is_dense
from .tape import Finding, Operation, PlanError, Ref, Storage, Tape
from .transfers import PREFIX, answer, is_collective, transfers_of

aten = torch.ops.aten


def _attention_flops(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any) -> int:
    """Two products, of all scores: a causal mask is not counted as less, as PyTorch's counter does it."""
    return 2 * query.shape[:-1].numel() * key.shape[-2] * (query.shape[-1] + value.shape[-1])


def _attention_backward_flops(
    grad: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any
) -> int:
    """Five products: the scores are computed again."""
    return 2 * query.shape[:-1].numel() * key.shape[-2] * (3 * query.shape[-1] + 2 * value.shape[-1])


# PyTorch's counter knows the attention of each backend but this.
_ATTENTION = {
    aten._scaled_dot_product_fused_attention_overrideable: _attention_flops,
    aten._scaled_dot_product_fused_attention_overrideable_backward: _attention_backward_flops,
}

# Their results have no content yet.
_EMPTY = frozenset(
    {
        aten.empty.memory_format, aten.empty_strided.default, aten.empty_like.default, aten.new_empty.default,
        aten.new_empty_strided.default, aten.empty_permuted.default,
    }
)  # fmt: skip
# Tensors whose truth a program asks for to see whether something went wrong.
_ALARMS = frozenset({"isnan", "isinf", "any", "ne", "logical_not", "gt", "ge"})


@dataclass(slots=True)
class _Known:
    """A storage seen so far; the weak reference keeps its address from being used again."""

    number: int
    alive: StorageWeakRef
    base: Layout


@dataclass
class Names:
    """What is known of tensors that exist before the step: (role, name, placements) by the storage's address."""

    known: dict[int, tuple[str, str, tuple[tuple[str, int], ...]]] = field(default_factory=dict)

    def note(self, tensor: torch.Tensor, role: str, name: str, placements: tuple[tuple[str, int], ...] = ()) -> None:
        """The first name given to a storage stays."""
        self.known.setdefault(address(tensor), (role, name, placements))


def address(tensor: torch.Tensor) -> int:
    """The identity of the storage under a fake tensor."""
    return int(tensor.untyped_storage()._cdata)


class Recorder(TorchDispatchMode):
    """Records the operations run under it. Enter it inside the fake mode.

    Args:
        fake: the mode whose tensors the step works on.
        names: what is known of the tensors that exist already.
        recording: whether to record; if not, only the numbers that the step asks for are answered.
    """

    def __init__(self, fake: FakeTensorMode, names: Names, recording: bool = True) -> None:
        super().__init__()
        self.fake = fake
        self.names = names
        self.recording = recording
        self.tape = Tape()
        self._storages: dict[int, _Known] = {}
        self._lines: dict[int, str] = {}
        self._truths: dict[int, str] = {}  # the operation that made the boolean tensor at an address
        self._findings: Counter[tuple[str, str, str]] = Counter()
        self._regions: Regions = Regions()

    # --- what PyTorch calls ---

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if any(is_traceable_wrapper_subclass(t) for t in _tensors((args, kwargs))):
            return NotImplemented  # a DTensor: its own code calls operations of tensors, which come here again
        args, kwargs = tree_map(self._faked, (args, dict(kwargs or {})))
        if func.namespace == "prim":  # a question about a tensor, its device
            return func(*args, **kwargs)
        if func is aten._pin_memory.default:
            func, args = aten.clone.default, args[:1]
        if is_collective(func):
            return self._transfer(func, args, dict(kwargs))
        if _has_code_for_devices(func):
            with self:
                return func._op_dk(torch._C.DispatchKey.PrivateUse1, *args, **kwargs)
        if func is aten._local_scalar_dense.default or func is aten.equal.default:
            return self._number(func, args)
        if _is_composite(func) and get(overload_name(func)) is None:
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        if self.recording:
            for t in _tensors((args, kwargs)):
                self._known(t)  # what exists before an operation is none of its results
        try:
            result = func(*args, **kwargs)
        except torch._subclasses.fake_tensor.DynamicOutputShapeException:
            raise PlanError(
                f"{func.name()} at {user_line()}: the size of its result depends on data, and no program of one size "
                "can be planned for it; use a form of fixed size (torch.where, a mask that is multiplied in)"
            ) from None
        if isinstance(result, torch.Tensor) and result.dtype == torch.bool:
            self._truths[address(result)] = overload_name(func).partition(".")[0]
        if self.recording:
            self._record(func, args, dict(kwargs), result)
        return result

    # --- what is asked at the end ---

    def finish(self, live: Callable[[int], bool] = lambda number: True) -> Tape:
        """The tape. Call it when the step's results are held and all else of the step is gone.

        Args:
            live: whether a storage made in the step, by its number, is a result although it lives.
        """
        tape = self.tape
        held = {k.number: torch.UntypedStorage._new_with_weak_ptr(k.alive.cdata) for k in self._storages.values()}
        alive = {number for number, storage in held.items() if storage is not None and storage.nbytes() > 0}
        # FSDP2's gathered parameters are there between steps, without memory, and are written before they are read.
        first = _first_uses(tape)
        for number, storage in held.items():
            emptied = storage is not None and storage.nbytes() == 0 and tape.storages[number].nbytes > 0
            if emptied and first.get(number) == "write":
                tape.storages[number] = replace(tape.storages[number], role="made")
        made = {i for i, s in enumerate(tape.storages) if s.role == "made"}
        tape.returned = tuple(sorted(i for i in made & alive if live(i)))
        tape.freed = frozenset(i for i in range(len(tape.storages)) if i not in made and i not in alive)
        tape.findings += [Finding(*key, count) for key, count in self._findings.items()]
        return tape

    def number_of(self, tensor: torch.Tensor) -> int | None:
        """The number of the storage under a tensor; None if the step never touched it."""
        return self.number_at(address(tensor))

    def number_at(self, at: int) -> int | None:
        """The number of the storage with this address."""
        known = self._storages.get(at)
        return None if known is None else known.number

    # --- storages ---

    def _faked(self, x: Any) -> Any:
        if isinstance(x, torch.Tensor) and not isinstance(x, FakeTensor):
            return self.fake.from_tensor(x, static_shapes=True)
        return x

    def _known(self, tensor: torch.Tensor) -> _Known:
        key = address(tensor)
        found = self._storages.get(key)
        if found is None:
            role, name, placements = self.names.known.get(key, ("other", "", ()))
            found = self._new(tensor, role, name, placements)
        return found

    def _new(
        self, tensor: torch.Tensor, role: str, name: str = "", placements: tuple[tuple[str, int], ...] = ()
    ) -> _Known:
        base = _base(tensor)
        known = _Known(len(self.tape.storages), StorageWeakRef(tensor.untyped_storage()), base)
        self._storages[address(tensor)] = known
        self.tape.storages.append(Storage(base, role, name, tensor.device.type, placements))
        return known

    def _check_room(self, resized: torch.Tensor) -> None:
        known = self._known(resized)
        if resized.untyped_storage().nbytes() > self.tape.storages[known.number].nbytes:
            raise PlanError(
                f"aten::resize_ at {user_line()} makes a tensor larger than its memory was, to {tuple(resized.shape)}: "
                "no program of one size can be planned for that; make a new tensor"
            )

    def _ref(self, tensor: torch.Tensor) -> Ref:
        known = self._known(tensor)
        view = Layout(tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset()))
        return Ref(known.number, view, tensor.is_conj(), tensor.is_neg())

    # --- operations ---

    def _record(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        by_name = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
        targets = [t for name in written(func) for t in _tensors(by_name.get(name))]
        returned = list(_fresh(func, result))
        fresh = [None if t is None or address(t) in self._storages else t for t in returned]
        if not targets and not any(t is not None for t in fresh):
            return  # a view, or something said to the host
        line = self._line(func)
        writes = tuple(self._ref(t) for t in targets)
        for t in fresh:
            if t is not None:
                self._new(t, "made")
        if func in _EMPTY:
            return
        if func is aten.resize_.default:
            self._check_room(args[0])
            return
        self._note_copy(func, args, [*targets, *fresh], line)
        lowering = find(func)
        if lowering is None:
            self._findings["fallback", func.name(), line] += 1
        backward = torch._C._current_autograd_node() is not None
        recorded_args, recorded_kwargs = tree_map(
            lambda x: self._ref(x) if isinstance(x, torch.Tensor) else None if isinstance(x, torch.Generator) else x,
            (args, kwargs),
        )
        if not isinstance(recorded_args, tuple):
            recorded_args = tuple(recorded_args)
        region = self._regions.of(backward and torch.is_grad_enabled())
        self.tape.operations.append(
            Operation(
                func.name(),
                recorded_args,
                recorded_kwargs,
                writes,
                tuple(None if t is None else self._known(t).number for t in fresh),
                tuple(
                    [w.spec for w in writes] + [None if t is None else Spec(tuple(t.shape), t.dtype) for t in returned]
                ),
                line,
                backward,
                region,
                lowering is not None and lowering.random,
                lowering is None,
            )
        )
        counted: Any = flop_registry.get(func.overloadpacket) or _ATTENTION.get(func.overloadpacket)
        if counted is not None:
            flops = int(counted(*args, **kwargs, out_val=result))
            self.tape.flops += flops
            self.tape.model_flops += flops if region is None else 0

    def _transfer(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record a collective, as one operation for each tensor that it moves."""
        if self.recording:
            for t in _tensors((args, kwargs)):
                self._known(t)
        result = answer(func, args, kwargs)
        if not self.recording:
            return result
        line, backward = self._line(func), torch._C._current_autograd_node() is not None
        for moved in transfers_of(func, args, kwargs, result):
            for t in moved.made:
                self._new(t, "made")
            writes = tuple(self._ref(t) for t in moved.written)
            self.tape.operations.append(
                Operation(
                    PREFIX + moved.kind,
                    tuple(self._ref(t) for t in moved.given),
                    moved.settings,
                    writes,
                    tuple(self._known(t).number for t in moved.made),
                    (*(w.spec for w in writes), *(Spec(tuple(t.shape), t.dtype) for t in moved.made)),
                    line,
                    backward,
                    self._regions.of(backward and torch.is_grad_enabled()),
                )
            )
        return result

    def _note_copy(
        self, func: OpOverload, args: tuple[Any, ...], results: Sequence[torch.Tensor | None], line: str
    ) -> None:
        """A copy between the host and the device: the host waits for one, each step sends the other."""
        if func not in (aten._to_copy.default, aten.copy_.default) or results[0] is None:
            return
        source, target = args[func is aten.copy_.default], results[0]
        if not isinstance(source, torch.Tensor) or source.device.type == target.device.type:
            return
        kind = {"cpu": "host sync"}.get(target.device.type, "upload" if source.device.type == "cpu" else "")
        if kind:
            self._findings[kind, f"{func.name()} of {source.nbytes} bytes to {target.device.type}", line] += 1

    def _line(self, func: OpOverload) -> str:
        """The user's line; of an operation in the backward pass, that of the forward operation."""
        node = torch._C._current_autograd_node()
        if node is None or torch.is_grad_enabled():
            line = user_line()
            if node is None:
                # The operation's own node has been made just before it reached us; later ones may have none.
                self._lines.setdefault(torch.autograd._get_sequence_nr() - 1, line)
            return line
        return self._lines.get(node._sequence_nr()) or user_line()

    def _number(self, func: OpOverload, args: tuple[Any, ...]) -> Any:
        """A number that the host asks for: the tensor's own where it is known, else a stand-in."""
        tensor = args[0]
        constant = getattr(tensor, "constant", None)
        if func is aten._local_scalar_dense.default and constant is not None:
            return constant.item()
        truth = self._truths.get(address(tensor)) not in _ALARMS
        value: Any = truth if tensor.dtype == torch.bool or func is aten.equal.default else 1
        if tensor.dtype.is_floating_point:
            value = 1.0
        elif tensor.dtype.is_complex:
            value = 1 + 0j
        if tensor.device.type != "cpu":
            self._findings["host sync", f"{func.name()} (taken as {value})", user_line()] += 1
        return value


class Regions:
    """Numbers the stretches of a backward pass that compute a part of the forward pass again."""

    def __init__(self) -> None:
        self.count = 0
        self.inside = False

    def of(self, again: bool) -> int | None:
        """The number of the region that an operation belongs to, None for one that computes nothing `again`."""
        if again and not self.inside:
            self.count += 1
        self.inside = again
        return self.count if again else None


def _base(tensor: torch.Tensor) -> Layout:
    """How the array under a storage lies: as its first tensor, where that is all of it, else flat."""
    sizes, strides = tuple(tensor.shape), tuple(tensor.stride())
    whole = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.dtype.itemsize
    if tensor.storage_offset() == 0 and whole and is_dense(sizes, strides):
        return Layout(tensor.dtype, sizes, strides)
    return Layout(tensor.dtype, (tensor.untyped_storage().nbytes() // tensor.dtype.itemsize,), (1,))


def _first_uses(tape: Tape) -> dict[int, str]:
    """For each storage, whether the first operation that touches it is a "write" or a "read"."""
    found: dict[int, str] = {}
    for operation in tape.operations:
        written = {w.storage for w in operation.writes}
        for ref in operation.reads():
            if ref.storage not in written:
                found.setdefault(ref.storage, "read")
        for number in written:
            found.setdefault(number, "write")
    return found


def _has_code_for_devices(func: OpOverload) -> bool:
    """Whether it is one of FSDP2's, whose code for any device is PyTorch operations."""
    return func.namespace == "fsdp" and bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "PrivateUse1"))


def _is_composite(func: OpOverload) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"))


def _fresh(func: OpOverload, result: Any) -> Iterator[torch.Tensor | None]:
    """The results that are not arguments, lists opened, None where the operation returns no tensor."""
    returns = func._schema.returns
    for value, ret in zip([result] if len(returns) == 1 else list(result or ()), returns, strict=True):
        if ret.alias_info is not None and ret.alias_info.is_write:
            continue
        for t in value if isinstance(value, (list, tuple)) else [value]:
            if t is None or isinstance(t, torch.Tensor):
                yield t


def _tensors(value: Any) -> list[torch.Tensor]:
    return [t for t in tree_leaves(value) if isinstance(t, torch.Tensor)]
