"""Is a result right: CPU PyTorch's result within PyTorch's own tolerances, or closer to float64 than CPU PyTorch is."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from .place import DEVICE, tensors
from .units import Unit

# Probability below which two sets of draws are said to come from different distributions. A full run makes some 10^4
# such tests.
SIGNIFICANCE = 1e-7


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What `torch.testing.assert_close` is given; None stands for its defaults per dtype."""

    rtol: float | None = None
    atol: float | None = None


@functools.lru_cache(maxsize=4096)
def tolerance(unit: Unit) -> Tolerance:
    """The widest tolerance that PyTorch's own tests grant this op in this dtype.

    Read from the toleranceOverride and precisionOverride decorators of the tests that compare implementations with one
    another (the CPU's with the GPU's, a reference or another memory layout).
    """
    from torch.testing._comparison import default_tolerances
    from torch.testing._internal.common_device_type import precisionOverride, toleranceOverride
    from torch.testing._internal.opinfo.core import DecorateInfo

    dtype = unit.torch_dtype
    default_rtol, default_atol = default_tolerances(dtype)
    if _is_float8(dtype):  # PyTorch asks for equal ones: here for neighbours
        return Tolerance(torch.finfo(dtype).eps, torch.finfo(dtype).smallest_normal)
    rtol, atol = default_rtol, default_atol
    for entry in getattr(unit.info, "decorators", None) or ():
        applies, given = True, (entry,)
        if isinstance(entry, DecorateInfo):
            given = entry.decorators
            applies = entry.cls_name in _COMPARING and entry.device_type in (None, "cpu", "cuda")
            applies = applies and (entry.dtypes is None or dtype in entry.dtypes)
        for decorator in given if applies else ():
            if isinstance(decorator, toleranceOverride) and dtype in decorator.d:
                atol, rtol = max(atol, decorator.d[dtype].atol), max(rtol, decorator.d[dtype].rtol)
            if isinstance(decorator, precisionOverride) and dtype in decorator.d:
                atol = max(atol, decorator.d[dtype])
    # Without numbers assert_close goes by the dtype, which is not complex32 there any more.
    if (rtol, atol) == (default_rtol, default_atol) and dtype != torch.complex32:
        return Tolerance()
    return Tolerance(rtol, atol)


_COMPARING = (None, "TestCommon", "TestUnaryUfuncs", "TestBinaryUfuncs", "TestReductions", "TestMathBits", "TestModule")


def on_host(tree: Any) -> Any:
    """Results as plain CPU tensors; raises what the device raises when they are read."""
    return tree_map(_on_host, tree)


def _on_host(x: Any) -> Any:
    if not isinstance(x, Tensor):
        return x
    x = x.detach()
    return (x.cpu() if x.device.type != "cpu" else x).resolve_conj().resolve_neg()


def misplaced(tree: Any) -> str | None:
    """Says so if a result is not on the device."""
    for x in tensors(tree):
        if x.device.type != DEVICE:
            return f"a result is on {x.device}, not on the device"
    return None


def difference(got: Any, want: Any, tol: Tolerance) -> str | None:
    """What differs between two results on the host, or None."""
    try:
        torch.testing.assert_close(
            _comparable(got),
            _comparable(want),
            rtol=tol.rtol,
            atol=tol.atol,
            equal_nan=True,
            check_stride=False,
        )
    except AssertionError as error:
        return str(error)
    except Exception as error:  # a structure that assert_close cannot compare
        return None if _same(got, want) else f"{type(error).__name__}: {error}"
    return None


def _is_float8(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point and dtype.itemsize == 1


def _comparable(tree: Any) -> list[Any]:
    """Leaves that assert_close takes: tensors and numbers; anything else compares by its text."""
    leaves = tree_flatten(tree)[0]
    leaves = [x.float() if isinstance(x, Tensor) and _is_float8(x.dtype) else x for x in leaves]
    leaves = [x.to(torch.complex64) if isinstance(x, Tensor) and x.dtype == torch.complex32 else x for x in leaves]
    return [
        x if isinstance(x, Tensor) else torch.tensor(x) if isinstance(x, (int, float, complex)) else _text(x)
        for x in leaves
    ]


def _text(x: Any) -> Tensor:
    return torch.tensor(list(str(x).replace(DEVICE, "cpu").encode()), dtype=torch.uint8)


def _same(got: Any, want: Any) -> bool:
    return str(got) == str(want)


# How often the uncertainty is allowed: two roundings of one ill-conditioned problem differ by that much (the gradients
# of svd through another LAPACK: 2.5 times).
OFTEN = 4
# How often a problem is solved for arguments that are off, to see how far its results are.
SHAKEN = 4


def closer(
    got: Any, want: Any, exact: Any, shaken: Sequence[Any], tol: Tolerance, *, elementwise: bool = False
) -> bool:
    """Whether `got` is as near to the float64 result as the tolerance asks, or as can be asked.

    The CPU's half-precision kernels often accumulate in half precision, and cancellation and ill-conditioned problems
    magnify rounding: there a difference from the CPU says nothing about who is right. A result is uncertain by CPU
    PyTorch's own worst error in it, and by what it changes if the arguments change by a rounding (`shaken`: float64
    results for such arguments). Errors are compared with the largest in the same tensor, since which element the
    rounding hits differs with the order of the operations; of an `elementwise` op with the element's own.
    """
    from torch.testing._comparison import default_tolerances

    got, want, exact, *others = (_strided(x) for x in (got, want, exact, *shaken))
    if not len(got) == len(want) == len(exact):
        return False
    for i, (g, w, e) in enumerate(zip(got, want, exact, strict=True)):
        if not g.shape == w.shape == e.shape or g.dtype != w.dtype:
            return False
        if not (g.is_floating_point() or g.is_complex()):
            if not torch.equal(g, w):
                return False
            continue
        rtol, atol = default_tolerances(g.dtype)
        wide = torch.complex128 if g.is_complex() else torch.float64
        g, w, e = g.to(wide), w.to(wide), e.to(wide)
        near = torch.finfo(got[i].dtype).eps / 50  # to zero: the default for half types is 1e-5, as for float32
        allowed = max(atol, tol.atol or 0, near) + max(rtol, tol.rtol or 0) * e.abs()
        off = (g - e).abs()
        errors = [(x - e).abs() for x in (w, *(o[i] for o in others if len(o) > i)) if x.shape == e.shape]
        uncertain = torch.stack([torch.where(x.isfinite(), x, 0) for x in errors]).amax(0)
        if elementwise:
            uncertain = uncertain + torch.finfo(got[i].dtype).eps * e.abs()
        elif uncertain.numel():
            uncertain = uncertain.max()
        fine = (off <= allowed) | (off <= OFTEN * uncertain) | (g == w) | (g.isnan() & (e.isnan() | w.isnan()))
        fine = fine | (g == e.to(got[i].dtype).to(wide))  # infinite as well, where that is what the dtype makes of it
        if not bool(fine.all()):
            return False
    return True


# Steps: a rounding of the argument may move the result by a whole one, which says nothing about the result.
_STEPS = (
    "floor",
    "ceil",
    "round",
    "trunc",
    "frac",
    "remainder",
    "fmod",
    "floor_divide",
    "div",
    "__rmod__",
    "sign",
    "sgn",
)


def half_a_unit(unit: Unit) -> float:
    """Half a unit in the last place of the dtype, relative; 0 where nothing is rounded or results step."""
    dtype = unit.torch_dtype
    if unit.op.partition(".")[0].removeprefix("_foreach_") in _STEPS:
        return 0.0
    return torch.finfo(dtype).eps / 2 if dtype.is_floating_point or dtype.is_complex else 0.0


def _strided(tree: Any) -> list[Tensor]:
    return [t if t.layout == torch.strided else t.to_dense() for t in tensors(tree)]


def same_distribution(unit: Unit, got: list[Any], want: list[Any]) -> str | None:
    """What differs between two sets of draws: structure, shapes, dtypes or, by Kolmogorov and Smirnov, the values."""
    whole_channels = "feature" in unit.op or unit.op.endswith(("dropout1d", "dropout2d", "dropout3d"))
    from scipy.stats import ks_2samp

    first, reference = tensors(got[0]), tensors(want[0])
    if [(t.shape, t.dtype) for t in first] != [(t.shape, t.dtype) for t in reference]:
        return f"shapes or dtypes differ: {[(tuple(t.shape), t.dtype) for t in first]}, want " + str(
            [(tuple(t.shape), t.dtype) for t in reference]
        )
    for i in range(len(first)):
        ours, theirs = (_values([tensors(x)[i] for x in draws], whole_channels) for draws in (got, want))
        if len(ours) and len(theirs):
            p = float(ks_2samp(ours, theirs, method="asymp").pvalue)
            if p < SIGNIFICANCE:
                return f"result {i} has another distribution than on the CPU (Kolmogorov-Smirnov p = {p:.1e})"
    return None


def _values(draws: list[Tensor], whole_channels: bool) -> Any:
    """All draws' values; where whole channels are dropped, one of each, since the test wants independent ones."""
    if whole_channels:
        draws = [d.flatten(2)[..., 0] if d.dim() > 2 and d.numel() else d for d in draws]
    flat = torch.cat([torch.view_as_real(d).reshape(-1) if d.is_complex() else d.reshape(-1) for d in draws])
    flat = flat.to(torch.float64)
    return flat[torch.isfinite(flat)].numpy()
