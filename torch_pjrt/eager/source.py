"""The line of the user's program that is running now."""

from __future__ import annotations

import functools
import os
import sys

import torch

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
# Code that Python or PyTorch made up; "<string>" and "<stdin>" are the user's.
_NOT_THE_USERS = (_OURS, _TORCH, "<frozen ", "<eval_with_key", "<__")


@functools.lru_cache(maxsize=1 << 16)
def _place(file: str, line: int, function: str) -> str:
    return f"{file}:{line} in {function}"


def user_line() -> str:
    """ "file:line in function" of the innermost frame outside torch and this package.

    In a backward pass, which runs on a thread without Python frames, the autograd node stands for the line.
    """
    frame = sys._getframe(1) if hasattr(sys, "_getframe") else None
    last = None
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_NOT_THE_USERS):
            last = frame
            break
        frame = frame.f_back
    node = torch._C._current_autograd_node()
    backward = f"backward of {node.name()}" if node is not None else ""
    if last is None:
        return backward or "<unknown line>"
    place = _place(last.f_code.co_filename, last.f_lineno, last.f_code.co_name)
    return f"{place} ({backward})" if backward else place
