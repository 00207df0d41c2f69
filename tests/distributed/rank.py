"""What a script that `ranks.run_ranks` starts knows of itself, and the cases that it is asked for by name."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import torch

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
NAME = torch._C._get_privateuse1_backend_name()
DEVICE = f"{NAME}:{RANK}"

_Case = TypeVar("_Case", bound=Callable[..., Any])


def kept_in(cases: dict[str, _Case]) -> Callable[[_Case], _Case]:
    """A decorator that keeps functions there, by their names."""

    def keep(function: _Case) -> _Case:
        cases[function.__name__] = function
        return function

    return keep
