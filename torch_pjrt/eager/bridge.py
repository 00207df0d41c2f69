"""What the C++ core calls. Importing this module hands it the functions; JAX starts only when one needs it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from .. import _C
from ..runtime import in_flight, interrupts
from ..runtime.metrics import METRICS
from ..runtime.unwatched import unwatched

# c10::Treatment in recorder.h.
_RECORD, _COMPOSITE, _PYTHON, _FALLBACK = 1, 2, 3, 4


def describe(name: str, composite: bool) -> dict[str, Any]:
    """How the core is to treat an op: asked once, when the op is first called.

    Args:
        name: the overload's full name.
        composite: whether PyTorch has a composite kernel of it (which will call ops that we have).
    """
    from ..lowering import find
    from ..lowering.registry import get
    from .checks import number_check, refusals
    from .host_ops import INDEX_OPS, host_op_of
    from .infer import op_named

    said: dict[str, Any] = {
        "static": [], "run_time": [], "write_only": [], "random": False, "function": None, "indexes": False,
        "refusals": 0, "check_numbers": None,
    }  # fmt: skip
    op = op_named(name)
    host_op = host_op_of(op)
    if host_op is not None:
        return said | {"treatment": _PYTHON, "function": host_op}
    lowering = find(op)
    if lowering is None or (composite and not _worth_recording(op, get)):
        return said | {"treatment": _COMPOSITE if composite else _FALLBACK}
    for i, a in enumerate(op._schema.arguments):
        if a.name in lowering.static:
            said["static"].append(i)
        if a.name in lowering.dynamic:
            said["run_time"].append(i)
        if a.name in lowering.write_only:
            said["write_only"].append(i)
    said["random"] = lowering.random
    said["refusals"] = refusals(op)
    said["check_numbers"] = number_check(op)
    if name in INDEX_OPS:
        said |= {"indexes": True, "function": INDEX_OPS[name]}
    return said | {"treatment": _RECORD}


def _worth_recording(op: Any, get: Any) -> bool:
    """A composite op is recorded whole only if there is a lowering written for it (or for its functional twin)."""
    from ..lowering.apply import functional_twin, overload_name

    twin = functional_twin(op)
    names = [overload_name(op)] + ([overload_name(twin)] if twin is not None else [])
    return any(get(n) is not None for n in names) or op._schema.name.startswith("aten::_foreach_")


def infer(name: str, args: list[Any], template: list[Any]) -> Any:
    """See eager.infer."""
    from .infer import infer as inferred

    return inferred(name, args, template)


def plan(base: tuple[Any, ...], seen: tuple[Any, ...]) -> tuple[Any, list[int]]:
    """(structure or None for identity, starts) of the view `seen` of a value laid out as `base`."""
    from ..lowering import view
    from .infer import dtype_of

    found = view.plan(view.Layout(dtype_of(base[0]), *base[1:]), view.Layout(dtype_of(seen[0]), *seen[1:]))
    if found.structure.identity:
        return None, []
    return found.structure, list(found.starts)


def fallback(name: str, args: list[Any]) -> Any:
    """See eager.fallback."""
    from .fallback import fallback as fall_back

    return fall_back(name, args)


def compile_trace(description: dict[str, Any]) -> Any:
    """See eager.trace."""
    from ..runtime.client import check_not_forked
    from .trace import compile_trace as compiled

    check_not_forked()
    try:
        return compiled(description)
    except Exception as error:
        _raise_exhausted(description["device"], error, "compiling a program")
        raise


def prepare(program: Any, inputs: list[Any]) -> None:
    """Compile what a program over several devices has to have for inputs that lie as these do."""
    program.executable.compiled.prepare(inputs)


def run(program: Any, inputs: list[Any], floats: Any, ints: Any, keys: Any) -> tuple[list[Any], Any]:
    """Run a compiled trace; an error of the runtime names the ops it came from. See eager.trace.Program."""
    from ..runtime.client import check_not_forked

    check_not_forked()
    _C.note_peak(program.executable.index, program.executable.working_memory)
    try:
        results: tuple[list[Any], Any] = program(inputs, floats, ints, keys)
        return results
    except Exception as error:
        memory = program.executable.working_memory
        needs = f"running a program that needs {memory} bytes, with the ops\n  {program.summary}\n"
        _raise_exhausted(program.executable.index, error, needs)
        from .trace import TraceError

        raise TraceError(
            f"running a trace failed: {type(error).__name__}: {error}\nops of the trace:\n  {program.summary}"
        ) from error


def verdict(program: Any, findings: Any, wait: bool) -> Any:
    """See eager.verdict."""
    from .verdict import verdict as judged

    return judged(program, findings, wait)


def _raise_exhausted(index: int, failure: Exception, what: str) -> None:
    from ..runtime.memory import exhausted

    error = exhausted(index, failure, what)
    if error is not None:
        raise error from failure


def source() -> str:
    """See eager.source."""
    from .source import user_line

    return user_line()


def upload(tensor: Any, index: int) -> Any:
    """See runtime.transfer."""
    from ..runtime import transfer

    try:
        return transfer.upload(tensor, index)
    except Exception as error:
        _raise_exhausted(index, error, f"sending {tensor.nbytes} bytes to the device")
        raise


def download(array: Any) -> Any:
    """See runtime.transfer."""
    from ..runtime import transfer

    return transfer.download(array)


def transfer(array: Any, index: int) -> Any:
    """See runtime.transfer."""
    from ..runtime import transfer as runtime_transfer

    try:
        return runtime_transfer.transfer(array, index)
    except Exception as error:
        _raise_exhausted(index, error, f"sending {array.nbytes} bytes to another device")
        raise


def wait(index: int) -> None:
    """Block until the device has done all that was dispatched to it."""
    wait_for(in_flight.mark())


def wait_for(mark: int) -> None:
    """Block until everything dispatched before `mark` was taken has finished."""
    if mark:
        from ..runtime.client import check_not_forked

        check_not_forked()
        in_flight.wait(mark)


def supported_dtypes() -> list[Any]:
    """The dtypes that tensors on the device can have."""
    from ..lowering.dtypes import SUPPORTED

    return list(SUPPORTED)


def host_sync(cause: str) -> None:
    """Count one wait of the host for the device."""
    METRICS.host_syncs[cause] += 1


def device_count() -> int:
    """How many devices there are; 0 if the platform does not start. It must not raise: autograd asks in any program."""
    from ..runtime.platform import PlatformError, device_count_hint

    hint = device_count_hint()
    if hint is not None:
        return hint
    from ..runtime.client import device_count as count

    try:
        return count()
    except PlatformError:
        return 0


def no_device() -> None:
    """Raise PlatformError, which says why there is no device and how to get one."""
    from ..runtime.client import devices

    devices()


def device_memory(index: int) -> tuple[int, int]:
    """(free, total) bytes of the device, as the runtime says, or of the host where the device shares its memory."""
    from ..runtime.memory import memory_info

    return memory_info(index)


def attention(query: Any, key: Any, masked: bool) -> int:
    """What scaled_dot_product_attention without dropout is made of, as a number of `torch.nn.attention.SDPBackend`.

    The efficient backend's op is known to DTensor, and is how a TPU's kernels, which keep no scores, get a gradient of
    their own (`lowering/splash.py`). PyTorch's shapes of its gradient are wrong where query heads share a key head;
    the op that it has for other backends also returns numbers, which only a plan's tape takes.
    """
    from ..lowering.target import target
    from ..runtime.platform import platform

    backends = torch.nn.attention.SDPBackend
    module = sys.modules.get("torch.distributed.tensor")
    spread = module is not None and isinstance(query, module.DTensor)
    on = target()
    kernels = (platform() if on is None else on.platform) == "tpu" and query.dtype == torch.bfloat16 and not masked
    if kernels and on is not None and isinstance(query, torch._subclasses.FakeTensor):
        chosen = backends.OVERRIDEABLE
    elif (kernels or spread) and query.shape[1] == key.shape[1]:
        chosen = backends.EFFICIENT_ATTENTION
    else:
        chosen = backends.MATH
    return int(chosen.value)


def out_of_memory(index: int, nbytes: int, largest: Any) -> None:
    """See runtime.memory."""
    from ..runtime import memory

    memory.out_of_memory(index, nbytes, largest)


_BRIDGE: dict[str, Callable[..., Any]] = {
    "describe": describe,
    "infer": infer,
    "plan": plan,
    "fallback": fallback,
    "compile": compile_trace,
    "prepare": prepare,
    "run": run,
    "verdict": verdict,
    "source": source,
    "upload": upload,
    "download": download,
    "transfer": transfer,
    "wait": wait,
    "wait_for": wait_for,
    "mark": in_flight.mark,
    "finished": in_flight.finished,
    "supported_dtypes": supported_dtypes,
    "host_sync": host_sync,
    "device_count": device_count,
    "no_device": no_device,
    "device_memory": device_memory,
    "attention": attention,
    "out_of_memory": out_of_memory,
    "hold_interrupts": interrupts.hold,
    "release_interrupts": interrupts.release,
}
_C.set_bridge({name: unwatched(function) for name, function in _BRIDGE.items()})
