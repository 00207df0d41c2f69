"""Running a step on fake tensors, twice: once to reach the state that a loop is in, once to write it down."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from math import prod
from typing import Any

import torch
from torch import nn
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorConverter, FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves, tree_map

from ..lowering.target import Target, compiling_for
from .placements import placements_of
from .record import Names, Recorder, address
from .tape import Finding, PlanError, Tape

aten = torch.ops.aten

Step = Callable[..., Any]

_LARGE = 64 << 20
_CONTENT = "_torch_pjrt_content"


def fake_mode() -> FakeTensorMode:
    """The mode under which a step is made and run; real tensors that the step reaches become fake ones."""
    fake = _Mode(allow_non_fake_inputs=True)
    fake.fake_tensor_converter = _Converter(copy_data=False)
    return fake


class _Mode(FakeTensorMode):
    """PyTorch's, with what it has not, or has as CUDA has it."""

    def dispatch(self, func: OpOverload, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        if func is aten.is_pinned.default:
            return True  # where fake memory lies nobody knows, and DDP asserts that what it has pinned is
        if func is aten._pin_memory.default:
            return super().dispatch(aten.clone.default, types, args[:1], {})
        result: Any = super().dispatch(func, types, args, kwargs)
        if func in (aten.lift_fresh.default, aten.lift_fresh_copy.default) and not isinstance(args[0], FakeTensor):
            setattr(result, _CONTENT, args[0])
        if func is aten._scaled_dot_product_efficient_attention.default and result[1].numel():
            of_rows = result[0].shape[:-1]  # and not of a multiple of 32 of them
            sums = super().dispatch(aten.new_empty.default, types, (result[1], of_rows), {})
            return result[0], sums, *result[2:]
        return result


def content_of(tensor: FakeTensor) -> torch.Tensor | None:
    """The numbers of a fake tensor that the program wrote down, `torch.tensor([...])`; None of all others."""
    found: torch.Tensor | None = getattr(tensor, _CONTENT, None)
    return found


@contextmanager
def as_if_real() -> Iterator[None]:
    """Have transformers take fake tensors for real ones, or it would plan the program that it makes for a compiler.

    It asks whether a tensor is fake and then builds attention masks that it otherwise leaves out (5.24,
    `transformers.utils.import_utils.is_tracing`). There is no setting for it.
    """
    module: Any = sys.modules.get("transformers.utils.import_utils")
    if module is None or not hasattr(module, "is_fake_tensor"):
        yield
        return
    before = module.is_fake_tensor
    module.is_fake_tensor = lambda tensor: False
    try:
        yield
    finally:
        module.is_fake_tensor = before


class _Converter(FakeTensorConverter):
    """Remembers the fake tensors of real tensors, for good, and not those of results.

    PyTorch's forgets a fake tensor that nobody holds, and with it which storage it shared. It also has a weak
    reference to each result, and `Module.to` refuses to move a parameter that has one.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.held: list[FakeTensor] = []

    def set_tensor_memo(self, t: torch.Tensor, v: FakeTensor) -> None:
        if t.device.type != "meta":
            super().set_tensor_memo(t, v)

    def from_real_tensor(self, *args: Any, **settings: Any) -> FakeTensor:
        fake: FakeTensor = super().from_real_tensor(*args, **settings)
        self.held.append(fake)
        return fake


def trace_step(step: Step, inputs: Sequence[Any], fake: FakeTensorMode) -> Tape:
    """What `step(*inputs)` does when it is not the first one.

    The first step of a program makes optimizer states and caches; so the step is run once before it is recorded. The
    tensors that it closes over may be real or fake ones; real ones keep their content, gradients and optimizer states.

    Args:
        step: called twice.
        inputs: its arguments; tensors among them, and those that the step closes over, may be real, fake or on the meta
            device.

    Raises:
        PlanError: the step does something that no program can.
        whatever the step raises.

    Example:
        >>> trace_step(lambda x: x + 1, [torch.ones(3)], fake_mode()).operations[0].name
        'aten::add.Tensor'
    """
    found = _Found()
    with ExitStack() as stack:
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))  # modes are a thread's own
        stack.enter_context(found.watching())
        stack.enter_context(as_if_real())
        stack.enter_context(compiling_for(Target("tpu")))  # attention is one op, which has lowerings for the CPU too
        stack.enter_context(fake)
        given = tree_map(lambda x: _given(x, fake) if isinstance(x, torch.Tensor) else x, list(inputs))
        with Recorder(fake, Names(), recording=False):
            held = step(*given)
        names = Names()
        for number, leaf in enumerate(tree_leaves(given)):
            if isinstance(leaf, torch.Tensor):
                names.note(_as_fake(leaf, fake), "argument", f"argument {number}")
        found.name_all(names, fake)
        # The references keep the addresses from being used again.
        before = {address(g): StorageWeakRef(g.untyped_storage()) for g in found.gradients(fake)}
        del held
        recorder = Recorder(fake, names)
        with recorder:
            held = step(*given)
        gradients = {recorder.number_of(g) for g in found.gradients(fake)}
        read = {r.storage for o in recorder.tape.operations for r in o.reads()}
        kept = {recorder.number_at(a) for a in before} & read
        # Gradients that stay only until the next step throws them away are no results.
        tape = recorder.finish(lambda number: number not in gradients or bool(kept))
        tape.parameters = found.size(recorder, fake)
        tape.idle = tuple(found.idle(recorder, fake))
        _count_batch(tape, _local(given, fake))
        _note_what_lives(tape, {recorder.number_of(t) for t in _local(held, fake)}, held)
    return tape


class _Found:
    """The modules and optimizers that a step uses, and what they were like before it."""

    def __init__(self) -> None:
        self.modules: list[nn.Module] = []
        self.optimizers: list[Optimizer] = []
        self._depth = 0
        self._real: list[tuple[torch.Tensor, torch.Tensor | None]] = []
        self._states: list[tuple[Optimizer, dict[Any, dict[str, Any]]]] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note what is called within; at the end real tensors get back what the step has done to them."""
        handles = [
            nn.modules.module.register_module_forward_pre_hook(self._enter),
            nn.modules.module.register_module_forward_hook(self._leave, always_call=True),
            register_optimizer_step_pre_hook(self._step),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            for tensor, gradient in self._real:
                tensor.grad = gradient
            for optimizer, state in self._states:
                optimizer.state.clear()
                optimizer.state.update(state)

    def _enter(self, module: nn.Module, args: Any) -> None:
        if self._depth == 0 and not any(m is module for m in self.modules):
            self.modules.append(module)
            real = [t for t in [*module.parameters(), *module.buffers()] if not isinstance(t, FakeTensor)]
            self._real += [(t, t.grad) for t in real if t.is_leaf]
        self._depth += 1

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        self._depth = max(0, self._depth - 1)

    def _step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not any(o is optimizer for o in self.optimizers):
            self.optimizers.append(optimizer)
            if any(not isinstance(p, FakeTensor) for group in optimizer.param_groups for p in group["params"]):
                self._states.append((optimizer, {p: dict(s) for p, s in optimizer.state.items()}))

    def _tensors(self) -> Iterator[tuple[str, str, torch.Tensor]]:
        for module in self.modules:
            for name, parameter in module.named_parameters():
                yield "parameter", name, parameter
            for name, buffer in module.named_buffers():
                yield "buffer", name, buffer

    def _parameters(self) -> list[torch.Tensor]:
        of_optimizers = [p for o in self.optimizers for group in o.param_groups for p in group["params"]]
        return [*(t for role, _, t in self._tensors() if role == "parameter"), *of_optimizers]

    def gradients(self, fake: FakeTensorMode) -> list[torch.Tensor]:
        """The gradients that parameters have now."""
        return [_as_fake(p.grad, fake) for p in self._parameters() if p.grad is not None]

    def name_all(self, names: Names, fake: FakeTensorMode) -> None:
        """Say what parameters, buffers, gradients and optimizer states are called, and how they are placed."""
        known: dict[int, tuple[str, tuple[tuple[str, int], ...]]] = {}
        for role, name, tensor in self._tensors():
            local, placements = placements_of(tensor)
            names.note(_as_fake(local, fake), role, name, placements)
            known.setdefault(id(tensor), (name, placements))
        for number, parameter in enumerate(self._parameters()):
            name, placements = known.get(id(parameter), (f"parameter {number}", ()))
            local, _ = placements_of(parameter)
            names.note(_as_fake(local, fake), "parameter", name, placements)
            if parameter.grad is not None:
                names.note(_as_fake(parameter.grad, fake), "gradient", name, placements)
            for optimizer in self.optimizers:
                for key, value in optimizer.state.get(parameter, {}).items():
                    if isinstance(value, torch.Tensor):
                        like = placements if value.shape == parameter.shape else ()
                        names.note(_as_fake(value, fake), "optimizer", f"{name} ({key})", like)

    def size(self, recorder: Recorder, fake: FakeTensorMode) -> tuple[int, int]:
        """Numbers and bytes of the parameters that the recorded step has touched, of a DTensor all of it."""
        unique = {id(p): p for p in self._parameters()}.values()
        touched = [p for p in unique if recorder.number_of(_as_fake(p, fake)) is not None]
        return sum(p.numel() for p in touched), sum(p.numel() * p.itemsize for p in touched)

    def idle(self, recorder: Recorder, fake: FakeTensorMode) -> Iterator[tuple[str, int]]:
        """Parameters and buffers that the recorded step has not touched."""
        seen: set[int] = set()
        for _, name, tensor in self._tensors():
            faked = _as_fake(tensor, fake)
            if recorder.number_of(faked) is None and address(faked) not in seen:
                seen.add(address(faked))
                yield name, faked.untyped_storage().nbytes()


def _as_fake(tensor: torch.Tensor, fake: FakeTensorMode) -> torch.Tensor:
    """The fake tensor of one; of a DTensor, that of this rank's part."""
    tensor, _ = placements_of(tensor)
    return tensor if isinstance(tensor, FakeTensor) else fake.from_tensor(tensor, static_shapes=True)


def _given(tensor: torch.Tensor, fake: FakeTensorMode) -> torch.Tensor:
    return tensor if is_traceable_wrapper_subclass(tensor) else _as_fake(tensor, fake)


def _local(value: Any, fake: FakeTensorMode) -> list[torch.Tensor]:
    """The tensors in it; of DTensors, this rank's part."""
    return [_as_fake(t, fake) for t in tree_leaves(value) if isinstance(t, torch.Tensor)]


def _count_batch(tape: Tape, given: Sequence[torch.Tensor]) -> None:
    tensors = [t for t in given if t.dim() > 0]
    if tensors:
        tape.examples = tensors[0].shape[0]
        if not tensors[0].dtype.is_floating_point and tensors[0].dim() == 2:
            tape.tokens = prod(tensors[0].shape)


def _note_what_lives(tape: Tape, results: set[int | None], held: Any) -> None:
    """What the step leaves on the device beside what it returns: most often what autograd keeps for a backward pass."""
    left = [i for i in tape.returned if i not in results]
    size = sum(tape.storages[i].nbytes for i in left)
    graph = any(isinstance(t, torch.Tensor) and t.grad_fn is not None for t in tree_leaves(held))
    if graph and size > _LARGE:
        what = f"{size / 2**30:.2f} GiB live on after the step, most likely kept by autograd for a backward pass"
        tape.findings.append(Finding("memory", f"{what}; use torch.no_grad() or detach the result", ""))


__all__ = ["PlanError", "fake_mode", "trace_step"]
