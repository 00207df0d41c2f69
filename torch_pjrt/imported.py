"""Doing something to another package's module when the program imports it, and not before: importing it takes time."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


def when_imported(module: str, then: Callable[[ModuleType], None]) -> None:
    """Call `then` with the module of this name as soon as it has been executed, or now if it has."""
    if module in sys.modules:
        then(sys.modules[module])
    else:
        sys.meta_path.insert(0, _Finder(module, then))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module as Python would, and calls a function when it has been executed, which is once.

    Programs also look for a module without importing it, to know whether it is there.
    """

    def __init__(self, module: str, then: Callable[[ModuleType], None]) -> None:
        self.module = module
        self.then = then
        self.looking = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.module or self.looking:
            return None
        self.looking = True  # the others are asked
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self.looking = False
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_then(module: ModuleType) -> None:
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            execute(module)
            self.then(module)

        spec.loader.exec_module = execute_and_then  # type: ignore[method-assign]
        return spec
