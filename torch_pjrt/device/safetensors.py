"""safetensors knows devices by a list of names that ours is not in; it takes the index of an accelerator instead."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ..imported import when_imported
from .devices import index_of


def install(name: str) -> None:
    """Let `safetensors.safe_open`, `load_file` and `load_model` take the device by its name.

    The module is changed when the program imports it, or now if it has.
    """
    when_imported("safetensors", lambda module: _translate(module, name))


def _translate(module: ModuleType, name: str) -> None:
    open_file: Callable[..., Any] = module.safe_open

    @functools.wraps(open_file, updated=())
    def safe_open(filename: Any, framework: str, device: Any = "cpu", **kwargs: Any) -> Any:
        if str(device).partition(":")[0] == name:
            device = index_of(str(device))
        return open_file(filename, framework=framework, device=device, **kwargs)

    module.safe_open = safe_open  # type: ignore[attr-defined]
    torch_side = sys.modules.get("safetensors.torch")
    if torch_side is not None:
        torch_side.safe_open = safe_open  # type: ignore[attr-defined]
