"""Where CPU PyTorch is no measure: its own faults, found by looking at each difference."""

from __future__ import annotations

from .units import Unit

# (op, variant) -> what CPU PyTorch does, and how the difference is told.
_FAULTS: dict[tuple[str, str], tuple[str, tuple[str, ...]]] = {
    ("normal", "out"): ("does not give `out=` the size of the mean", ("must match the size",)),
    ("normal.number_mean", "out"): ("does not give `out=` the size of the mean", ("must match the size",)),
    ("nn.functional.pixel_unshuffle", "sizes"): (
        "returns a tensor without elements in the shape that it had",
        ("torch.Size([0, ",),
    ),
    ("index_put", "sizes"): (
        "refuses a number's mask, which indexing takes",
        ("too many indices for tensor of dimension 0",),
    ),
    ("repeat_interleave", "sizes"): ("reads rows that are not there", ("index 0 is out of bounds",)),
    ("addbmm", "inplace"): ("resizes the tensor that addbmm_ writes to", ("doesn't match the broadcast shape",)),
    ("torch._scaled_mm_v2", "sizes"): (
        "multiplies matrices without elements whatever their shapes",
        ("cannot be multiplied", "must be a matrix", "Invalid scaling configuration"),
    ),
    ("torch._scaled_mm_v2", "noncontiguous"): ("refuses scales that are not dense", ("expected scale_",)),
}


def fault(unit: Unit, variant: str, message: str) -> str | None:
    """What CPU PyTorch does wrong in a way of trying a unit, if that is the difference which `message` tells."""
    said, told = _FAULTS.get((unit.op, variant), ("", ()))
    return f"CPU PyTorch {said}" if any(t in message for t in told) else None
