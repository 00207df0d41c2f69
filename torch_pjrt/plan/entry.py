"""Where the step comes from: a user's function, `train.py:make_step`."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from .tape import PlanError

# (step, its example inputs).
Made = tuple[Callable[..., Any], Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Entry:
    """A way to make the step.

    Attributes:
        title: how it was asked for.
        make: makes the step and example inputs, under a fake mode: parameters have sizes and no content. Called with
            the batch (examples in one step, over all devices) and whether to recompute activations.
        takes_batch: whether the batch changes anything.
        takes_remat: whether recomputing does.
    """

    title: str
    make: Callable[[int, bool], Made]
    takes_batch: bool
    takes_remat: bool


def user_entry(text: str) -> Entry:
    """The entry of a user's function, "train.py:make_step" or "package.module:make_step".

    The function returns (step, example_inputs). If it has a parameter named `batch` it is given the number of examples
    of one step, over all devices; if it has one named `remat`, whether to recompute activations in the backward pass.

    Raises:
        PlanError: no such file or function.
        whatever the file raises.
    """
    place, _, name = text.rpartition(":")
    if not place or not name:
        raise PlanError(
            f"{text!r} names no function: write file.py:function, package.module:function or hf:config.json"
        )
    module = _load(place)
    function = getattr(module, name, None)
    if not callable(function):
        functions = [k for k, v in vars(module).items() if inspect.isfunction(v) and v.__module__ == module.__name__]
        raise PlanError(f"{place} has no function {name!r}; it has {', '.join(functions) or 'none'}")
    accepted = inspect.signature(function).parameters

    def make(batch: int, remat: bool) -> Made:
        given: dict[str, Any] = {"batch": batch, "remat": remat}
        made = function(**{k: v for k, v in given.items() if k in accepted})
        if not isinstance(made, tuple) or len(made) != 2 or not callable(made[0]):
            raise PlanError(
                f"{text} must return (step, example_inputs), a function and its arguments; it returned "
                f"{type(made).__name__}"
            )
        step, inputs = made
        return step, list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]

    return Entry(text, make, "batch" in accepted, "remat" in accepted)


def _load(place: str) -> ModuleType:
    path = Path(place)
    if path.suffix != ".py":
        sys.path.insert(0, "")
        return importlib.import_module(place)
    if not path.is_file():
        raise PlanError(f"{place}: no such file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise PlanError(f"{place} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.parent.resolve()))  # as `python train.py` has it
    spec.loader.exec_module(module)
    return module
