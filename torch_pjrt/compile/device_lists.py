"""The device's name in PyTorch's lists of device types, where a feature asks such a list and has no hook.

Each list is a constant in a function that Dynamo traces, so it is the constant that changes: a function of ours in its
place would be a graph break.
"""

from __future__ import annotations

from types import CodeType, FunctionType, ModuleType
from typing import Any

from ..imported import when_imported

# module -> function -> a constant in it.
_LISTS: dict[str, tuple[str, Any]] = {
    "torch.nn.attention.flex_attention": ("_validate_device", frozenset({"cuda", "cpu", "xpu", "hpu", "mps"})),
    "torch._higher_order_ops.associative_scan": ("associative_scan", ("cuda", "xpu")),
}


def enter_name(name: str) -> None:
    """Add the name to each list, now or as soon as its module is imported."""
    for module in _LISTS:
        when_imported(module, lambda found: _enter(found, name))


def _enter(module: ModuleType, name: str) -> None:
    function, known = _LISTS[module.__name__]
    asks = getattr(module, function, None)
    if isinstance(asks, FunctionType):
        longer = known | {name} if isinstance(known, frozenset) else (*known, name)
        asks.__code__ = _replaced(asks.__code__, known, longer)


def _replaced(code: CodeType, constant: Any, other: Any) -> CodeType:
    """The code with another constant, also in the functions that it defines."""

    def one(c: Any) -> Any:
        if isinstance(c, CodeType):
            return _replaced(c, constant, other)
        return other if type(c) is type(constant) and c == constant else c

    return code.replace(co_consts=tuple(map(one, code.co_consts)))
