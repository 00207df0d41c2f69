"""Keeping Dynamo and the program's modes out of our own frames."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from torch._C import DisableTorchFunction, _len_torch_dispatch_stack, _len_torch_function_stack
from torch._C._dynamo.eval_frame import set_eval_frame
from torch.utils._python_dispatch import _disable_current_modes

P = ParamSpec("P")
R = TypeVar("R")


def unwatched(function: Callable[P, R]) -> Callable[P, R]:
    """The function, hidden from Dynamo and from the program's modes.

    What an op calls while Dynamo watches every Python frame of the thread (after a graph break, in a hook of autograd)
    it would begin to compile: our frames, and JAX's. And a mode that is on (`TorchDispatchMode`, `TorchFunctionMode`: a
    default device, selective checkpointing) would be told of the calls of PyTorch that compiling makes.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        before = set_eval_frame(None)
        try:
            if _len_torch_dispatch_stack() or _len_torch_function_stack():
                with _disable_current_modes(), DisableTorchFunction():
                    return function(*args, **kwargs)
            return function(*args, **kwargs)
        finally:
            set_eval_frame(before)

    return call
