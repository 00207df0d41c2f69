"""What the C++ core calls. Importing this module hands it the functions; JAX starts only when one needs it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch._C._dynamo.eval_frame import set_eval_frame

from .. import _C
from ..runtime.metrics import METRICS

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
    from .checks import refusals
    from .host_ops import HOST_OPS, INDEX_OPS
    from .infer import op_named

    said: dict[str, Any] = {
        "static": [], "run_time": [], "write_only": [], "random": False, "function": None, "indexes": False,
        "refusals": 0,
    }  # fmt: skip
    if name in HOST_OPS:
        return said | {"treatment": _PYTHON, "function": HOST_OPS[name]}
    op = op_named(name)
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
    return compiled(description)


def run(executable: Any, inputs: list[Any], floats: Any, ints: Any, keys: Any) -> list[Any]:
    """Run a compiled trace; an error of the runtime names the ops it came from."""
    from ..runtime.client import check_not_forked

    check_not_forked()
    try:
        results: list[Any] = executable(inputs, floats, ints, keys)
        return results
    except Exception as error:
        from .trace import TraceError

        raise TraceError(
            f"running a trace failed: {type(error).__name__}: {error}\nops of the trace:\n  {executable.summary}"
        ) from error


def source() -> str:
    """See eager.source."""
    from .source import user_line

    return user_line()


def upload(tensor: Any, index: int) -> Any:
    """See runtime.transfer."""
    from ..runtime import transfer

    return transfer.upload(tensor, index)


def download(array: Any) -> Any:
    """See runtime.transfer."""
    from ..runtime import transfer

    return transfer.download(array)


def transfer(array: Any, index: int) -> Any:
    """See runtime.transfer."""
    from ..runtime import transfer as runtime_transfer

    return runtime_transfer.transfer(array, index)


def wait(index: int) -> None:
    """Block until the device has done all that was dispatched to it."""
    from ..runtime.client import check_not_forked, started

    check_not_forked()
    if started():
        from ..runtime.client import wait as wait_for

        wait_for()


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


def _apart_from_dynamo(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, hidden from Dynamo.

    An op that a program runs after a graph break calls us while Dynamo watches every Python frame of the thread, and it
    would begin to compile our frames, and JAX's.
    """

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        before = set_eval_frame(None)
        try:
            return function(*args)
        finally:
            set_eval_frame(before)

    return call


_BRIDGE: dict[str, Callable[..., Any]] = {
    "describe": describe,
    "infer": infer,
    "plan": plan,
    "fallback": fallback,
    "compile": compile_trace,
    "run": run,
    "source": source,
    "upload": upload,
    "download": download,
    "transfer": transfer,
    "wait": wait,
    "host_sync": host_sync,
    "device_count": device_count,
    "no_device": no_device,
    "device_memory": device_memory,
}
_C.set_bridge({name: _apart_from_dynamo(function) for name, function in _BRIDGE.items()})
