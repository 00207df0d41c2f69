"""How exactly float32 products and convolutions are computed: a `with` block around PyTorch's own setting."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from .. import _C

_PRECISIONS = ("highest", "high", "medium")
# PyTorch's rows that torch.set_float32_matmul_precision writes.
_ROWS = (("mkldnn", "matmul"), ("cuda", "matmul"))


@contextlib.contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """`torch.set_float32_matmul_precision(precision)` inside a `with` block; what was set before comes back after it.

    Args:
        precision: of float32 dots and convolutions on matrix units: "highest" is float32 ("HIGHEST" in XLA); "high"
            is TF32 or three passes of bfloat16 ("HIGH"); "medium" is the chip's fastest, mostly one pass of bfloat16
            ("DEFAULT"). On a CPU all are float32. What has been recorded so far runs first, as it was set then.

    Raises:
        ValueError: there is no such precision.

    Example:
        >>> with torch.pjrt.matmul_precision("high"):
        ...     y = model(x)
    """
    if precision not in _PRECISIONS:
        raise ValueError(f"precision {precision!r}: expected one of {', '.join(_PRECISIONS)}")
    rows = [torch._C._get_fp32_precision_getter(*row) for row in _ROWS]
    before = _legacy()
    _C.flush_all()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        _C.flush_all()
        if before is not None:
            torch.set_float32_matmul_precision(before)
        for row, said in zip(_ROWS, rows, strict=True):
            torch._C._set_fp32_precision_setter(*row, said)


def _legacy() -> str | None:
    """What torch.get_float32_matmul_precision says, or None where it refuses because torch.backends was set too."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None
