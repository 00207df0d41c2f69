"""Keeping Dynamo out of our own frames."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from torch._C._dynamo.eval_frame import set_eval_frame

P = ParamSpec("P")
R = TypeVar("R")


def unwatched(function: Callable[P, R]) -> Callable[P, R]:
    """The function, hidden from Dynamo.

    What an op calls while Dynamo watches every Python frame of the thread (after a graph break, in a hook of autograd)
    it would begin to compile: our frames, and JAX's.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        before = set_eval_frame(None)
        try:
            return function(*args, **kwargs)
        finally:
            set_eval_frame(before)

    return call
