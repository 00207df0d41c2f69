"""safetensors knows devices by a list of names that ours is not in; it takes the index of an accelerator instead."""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from .devices import index_of

_MODULE = "safetensors"


def install(name: str) -> None:
    """Let `safetensors.safe_open`, `load_file` and `load_model` take the device by its name.

    The module is changed when the program imports it, or now if it has.
    """
    if _MODULE in sys.modules:
        _translate(sys.modules[_MODULE], name)
    else:
        sys.meta_path.insert(0, _Finder(name))


def _translate(module: ModuleType, name: str) -> None:
    open_file: Callable[..., Any] = module.safe_open

    @functools.wraps(open_file, updated=())
    def safe_open(filename: Any, framework: str, device: Any = "cpu", **kwargs: Any) -> Any:
        if str(device).partition(":")[0] == name:
            device = index_of(str(device))
        return open_file(filename, framework=framework, device=device, **kwargs)

    module.safe_open = safe_open  # type: ignore[attr-defined]
    torch_side = sys.modules.get(f"{_MODULE}.torch")
    if torch_side is not None:
        torch_side.safe_open = safe_open  # type: ignore[attr-defined]


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the module as the other finders do, once, and changes it when it has been executed."""

    def __init__(self, name: str) -> None:
        self.name = name

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            _translate(module, self.name)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
