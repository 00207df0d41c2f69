"""Where CPU PyTorch is no measure: its own faults, found by looking at each difference."""

from __future__ import annotations

from .units import Unit

_FAULTS = {
    ("normal", "out"): "does not give `out=` the size of the mean",
    ("normal.number_mean", "out"): "does not give `out=` the size of the mean",
    ("nn.functional.pixel_unshuffle", "sizes"): "returns a tensor without elements in the shape that it had",
    ("index_put", "sizes"): "refuses a number's mask, which indexing takes",
    ("repeat_interleave", "sizes"): "reads rows that are not there",
    ("addbmm", "inplace"): "resizes the tensor that addbmm_ writes to",
    ("torch._scaled_mm_v2", "sizes"): "multiplies matrices without elements whatever their shapes",
    ("torch._scaled_mm_v2", "noncontiguous"): "refuses scales that are not dense",
}


def fault(unit: Unit, variant: str) -> str | None:
    """What CPU PyTorch does wrong in a way of trying a unit, where the device does otherwise."""
    said = _FAULTS.get((unit.op, variant))
    return said and f"CPU PyTorch {said}"
