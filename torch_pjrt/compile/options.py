"""`torch.compile(mode=, options=)` for this backend: XLA's own options, checked before anything is compiled."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..runtime.defaults import refusal
from ..runtime.platform import platform

# What PyTorch's modes ask of XLA, by platform. A graph is one program already, so "reduce-overhead" has nothing to do
# but on NVIDIA, where XLA can replay it as a CUDA graph.
_MODES: dict[str, dict[str, dict[str, Any]]] = {
    "default": {},
    "reduce-overhead": {"cuda": {"xla_gpu_graph_min_graph_size": 1}},
    "max-autotune": {"cuda": {"xla_gpu_exhaustive_tiling_search": True, "xla_gpu_graph_min_graph_size": 1}},
    "max-autotune-no-cudagraphs": {"cuda": {"xla_gpu_exhaustive_tiling_search": True}},
}
# Options that are ours, not XLA's: fields of Options.
_OURS = ("activation_memory_budget", "inner_collectives", "scan_blocks", "whole_step")


class OptionError(ValueError):
    """An option that does not exist or cannot have this value."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a compile was asked for.

    Attributes:
        compiler_options: for XLA, by its own names.
        activation_memory_budget: how much of what the forward pass would save may be saved: 1.0 all that pays,
            0.0 nothing but the arguments (recompute everything), as in `torch._functorch.config`.
        inner_collectives: whether collectives may be part of programs that all ranks run together (`collectives.py`).
        whole_step: whether forward, backward and optimizer may become one program (`recorded.py`).
        scan_blocks: from so many equal blocks in a row on they are compiled once (`blocks.py`); 0: never.
    """

    compiler_options: Mapping[str, Any] = field(default_factory=dict)
    activation_memory_budget: float = 1.0
    inner_collectives: bool = True
    whole_step: bool = False
    scan_blocks: int = 8


def read_options(mode: str | None, options: Mapping[str, Any] | None) -> Options:
    """The options of one `torch.compile`.

    Args:
        mode: one of PyTorch's modes.
        options: XLA's debug options by name ("xla_cpu_enable_fast_math": True), or our own.

    Raises:
        OptionError: unknown, or of a value that XLA does not take; the message has the names nearest to it.

    Example:
        >>> torch.compile(model, backend="pjrt", options={"xla_cpu_enable_fast_math": True})
    """
    chosen = mode or "default"
    if chosen not in _MODES:
        raise OptionError(f"mode {chosen!r}: expected one of {', '.join(_MODES)}{_nearest(chosen, _MODES)}")
    given = dict(options or {})
    ours = {name: _READ[name](name, given.pop(name)) for name in _OURS if name in given}
    if ours.get("whole_step"):
        ours["scan_blocks"] = 0  # one program, not one for each block
    for name, value in given.items():
        _check(name, value)
    return Options(_MODES[chosen].get(platform(), {}) | given, **ours)


def _fraction(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise OptionError(f"option {name}={value!r}: expected a number from 0 to 1")
    return float(value)


def _blocks(name: str, value: Any) -> int:
    if isinstance(value, bool):
        return Options().scan_blocks if value else 0
    if not isinstance(value, int) or value < 2:
        raise OptionError(f"option {name}={value!r}: expected a bool, or a number of blocks from 2 on")
    return value


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise OptionError(f"option {name}={value!r}: expected True or False")
    return value


_READ: dict[str, Callable[[str, Any], Any]] = {
    "activation_memory_budget": _fraction,
    "inner_collectives": _flag,
    "scan_blocks": _blocks,
    "whole_step": _flag,
}


def _check(name: str, value: Any) -> None:
    if not isinstance(name, str) or not isinstance(value, (bool, int, float, str)):
        raise OptionError(f"option {name!r}: {value!r}: expected a name and a bool, number or string")
    refused = refusal(name, value)
    if refused is None:
        return
    if "No such compile option" in refused:
        raise OptionError(
            f"option {name!r} is none of XLA's and none of ours{_nearest(name, _names())}. "
            f"Ours: {', '.join(_OURS)}. XLA's: https://github.com/openxla/xla/blob/main/xla/xla.proto (DebugOptions)"
        )
    raise OptionError(f"option {name}={value!r}: {refused}")


@functools.cache
def _names() -> tuple[str, ...]:
    """Names of XLA options that its Python bindings and its defaults show: not all, but the usual ones."""
    from jaxlib import xla_client

    # Each object is a pointer into the one before, which it does not keep alive.
    whole = xla_client.CompileOptions()
    build = whole.executable_build_options
    defaults = build.debug_options
    shown = set(re.findall(r"^(xla_\w+):", str(defaults), re.MULTILINE))
    return tuple(sorted(shown | {n for n in dir(defaults) if n.startswith("xla_")} | set(_OURS)))


def _nearest(name: str, names: Any) -> str:
    found = difflib.get_close_matches(name, list(names), n=3, cutoff=0.6)
    return f" (did you mean {' or '.join(found)}?)" if found else ""
