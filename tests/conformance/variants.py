"""The ways in which an op is tried: each makes cases of the database's samples."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .case import Case, Skip
from .place import map_tensors, tensors
from .units import Unit

Make = Callable[[Unit, int | None], Iterator[Case]]
Program = Callable[[Any, list[Tensor]], Any]
Op = Callable[..., Any]
OP_VARIANTS: dict[str, Make] = {}


def variant(name: str) -> Callable[[Make], Make]:
    """Register a way of trying an op; it raises Skip where the op has no such form."""

    def register(make: Make) -> Make:
        OP_VARIANTS[name] = make
        return make

    return register


def samples(unit: Unit, limit: int | None, gradients: bool = False) -> list[tuple[int, Any]]:
    """(number, sample) of the database's samples: all, or `limit` of them, evenly spread."""
    # The database makes them from PyTorch's global generator, which it seeds itself; so should anything else be.
    torch.manual_seed(0)
    made = list(enumerate(unit.info.sample_inputs("cpu", unit.torch_dtype, requires_grad=gradients)))
    return spread(made, limit)


def spread(made: list[Any], limit: int | None) -> list[Any]:
    """`limit` entries of a list, evenly spread."""
    if limit is None or len(made) <= limit:
        return made
    if limit == 1:
        return made[:1]
    return [made[round(i * (len(made) - 1) / (limit - 1))] for i in range(limit)]


def arguments(unit: Unit, sample: Any) -> Any:
    """(input, args, kwargs); a factory op is told the device."""
    kwargs = dict(sample.kwargs)
    if getattr(unit.info, "is_factory_function", False):
        kwargs.setdefault("device", "cpu")
    options = kwargs.get("options")
    if getattr(options, "acc_policy", None) == "auto":  # linear_cross_entropy: PyTorch accumulates otherwise on the CPU
        kwargs["options"] = dataclasses.replace(options, acc_policy="accurate")
    if unit.op == "torch._scaled_mm":  # its samples overflow, which the CPU's kernels make NaN, infinite or the largest
        return sample.input, (sample.args[0], sample.args[1] / 2**20, *sample.args[2:]), kwargs
    return _kept_on_host(unit, (sample.input, tuple(sample.args), kwargs))


def _kept_on_host(unit: Unit, inputs: Any) -> Any:
    if unit.op in _READS_ON_HOST:
        for t in tensors(inputs[1:]):
            t.stays_on_host = True  # type: ignore[attr-defined]
    return inputs


# Ops whose further arguments PyTorch wants on the CPU, whatever the device.
_READS_ON_HOST = ("tensor_split",)


def call(unit: Unit, sample: Any = None, op: Op | None = None) -> Program:
    """The program that calls the op, or what stands for it."""
    op = op or unit.info
    return lambda inputs, _: _defined(unit, sample, inputs, op(inputs[0], *inputs[1], **inputs[2]))


# Factors that are defined up to signs, phases or the basis of a subspace: the database's samples bring a function to
# what is defined (it is there for the gradients).
_UP_TO_PHASE = ("svd", "linalg.svd", "linalg.eig", "linalg.eigh", "pca_lowrank", "svd_lowrank")
# Ops that may choose any of equal elements: what is at the indices is defined, the indices are not. With the position
# of `dim` among the arguments.
_ANY_OF_EQUALS = {"topk": 1, "kthvalue": 1, "mode": 0, "sort": 0, "argsort": 0}
_GRADIENT_TO_ANY = (*_ANY_OF_EQUALS, "msort")
# Gradients of the infinity norm of complex numbers: CPU PyTorch's abs and its norm disagree in the last digit, so that
# no element is the largest and the gradient is 0, or 0 / 0.
_UNEQUAL_NORMS = ("renorm", "_foreach_norm")
# Normalizations: the statistics kept for the backward pass are PyTorch's own affair, and on devices it keeps others
# than on the CPU (in float32; in evaluation the running ones).
_KEEP_STATISTICS = ("native_layer_norm", "native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update")


def _defined(unit: Unit, sample: Any, inputs: Any, result: Any) -> Any:
    """What PyTorch defines of a result."""
    if unit.op in _UP_TO_PHASE and sample is not None:
        return sample.output_process_fn_grad(result)
    if unit.op in _KEEP_STATISTICS:
        return result[0]
    x, args, kwargs = inputs
    if unit.op in _ANY_OF_EQUALS and x.dim() and not kwargs.get("stable"):
        *values, indices = result if isinstance(result, tuple) else (result,)
        place = _ANY_OF_EQUALS[unit.op]
        dim = kwargs.get("dim", args[place] if len(args) > place else -1)
        if indices.dim() < x.dim():
            indices = indices.unsqueeze(dim)
        return values, x.gather(dim, indices)
    return result


@variant("forward")
def forward(unit: Unit, limit: int | None) -> Iterator[Case]:
    """The op's result."""
    for i, sample in samples(unit, limit):
        yield Case(str(i), arguments(unit, sample), call(unit, sample), undefined=undefined(unit))


@variant("noncontiguous")
def noncontiguous(unit: Unit, limit: int | None) -> Iterator[Case]:
    """Every tensor of more than one element lies with gaps."""
    for i, sample in samples(unit, limit):
        yield Case(str(i), arguments(unit, sample.noncontiguous()), call(unit, sample), undefined=undefined(unit))


@variant("views")
def views(unit: Unit, limit: int | None) -> Iterator[Case]:
    """Tensors with a lazy conj or neg bit, and expanded ones."""
    dtype = unit.torch_dtype
    for i, sample in samples(unit, limit):
        inputs = arguments(unit, sample)
        if dtype.is_complex:
            yield Case(f"{i} conj", map_tensors(_conj_view, inputs), call(unit, sample), undefined=undefined(unit))
        if dtype.is_complex or dtype.is_floating_point:
            # Batch norms write statistics without saying so: CPU PyTorch writes to a copy of such views.
            negated = (_neg_view(inputs[0]), *inputs[1:]) if "batch_norm" in unit.op else map_tensors(_neg_view, inputs)
            yield Case(f"{i} neg", negated, call(unit, sample), undefined=undefined(unit))
        first = inputs[0]
        if _expandable(unit) and isinstance(first, Tensor) and first.dim() and first.numel():
            expanded = first.detach()[..., :1].expand_as(first)
            yield Case(f"{i} expanded", (expanded, *inputs[1:]), call(unit, sample), undefined=undefined(unit))


@variant("sizes")
def sizes(unit: Unit, limit: int | None) -> Iterator[Case]:
    """Tensors without elements, and 0-d ones."""
    if unit.op == "_chunk_cat":
        raise Skip("CPU PyTorch's own kernel ends the process")
    for i, sample in samples(unit, None if limit is None else min(limit, 4)):
        inputs = arguments(unit, sample)
        empty = _kept_on_host(unit, map_tensors(lambda t: t.detach()[:0] if t.dim() else t, inputs))
        yield Case(f"{i} empty", empty, call(unit, sample), undefined=undefined(unit))
        single = _kept_on_host(unit, map_tensors(_single, inputs))
        yield Case(f"{i} 0-d", single, call(unit, sample), undefined=undefined(unit))


@variant("inplace")
def inplace(unit: Unit, limit: int | None) -> Iterator[Case]:
    """The in-place form: the tensor's new value, and that it is the tensor which is returned."""
    method = unit.info.get_inplace()
    if method is None:
        raise Skip("the op has no in-place form")

    def program(inputs: Any, _: list[Tensor]) -> Any:
        own = map_tensors(lambda t: t.clone(), inputs[0])
        result = method(own, *inputs[1], **inputs[2])
        return own, result is own or result is None

    for i, sample in samples(unit, limit):
        yield Case(str(i), arguments(unit, sample), program)


@variant("out")
def out(unit: Unit, limit: int | None) -> Iterator[Case]:
    """`out=`: into a tensor of the result's shape, into one with gaps, and into an empty one that is resized."""
    if not unit.info.supports_out:
        raise Skip("the op takes no out=")
    for i, sample in samples(unit, limit):
        if sample.kwargs.get("as_tuple"):
            continue
        for form, buffer in _BUFFERS.items():
            yield Case(f"{i} {form}", arguments(unit, sample), _into(unit, sample, buffer), undefined=undefined(unit))


def _into(unit: Unit, sample: Any, buffer: Callable[[Tensor], Tensor]) -> Callable[[Any, list[Tensor]], Any]:
    def program(inputs: Any, constants: list[Tensor]) -> Any:
        if not constants:
            result = unit.info(inputs[0], *inputs[1], **inputs[2])
            constants.extend(buffer(t.detach()) for t in tensors(result))
            single = isinstance(result, Tensor)
        else:
            single = len(constants) == 1
        given = [c.clone() for c in constants]
        unit.info(inputs[0], *inputs[1], **inputs[2], out=given[0] if single else tuple(given))
        return _defined(unit, sample, inputs, given[0] if single else tuple(given))

    return program


def _gapped(t: Tensor) -> Tensor:
    wide = torch.zeros(*t.shape, 2, dtype=t.dtype)
    return wide[..., 0]


_BUFFERS: dict[str, Callable[[Tensor], Tensor]] = {
    "same shape": lambda t: torch.zeros_like(t),
    "with gaps": _gapped,
    "empty": lambda t: t.new_empty(0),
}


@variant("backward")
def backward(unit: Unit, limit: int | None) -> Iterator[Case]:
    """Gradients of every differentiable argument."""
    needs_backward(unit)
    for i, sample in samples(unit, limit, gradients=True):
        yield Case(str(i), arguments(unit, sample), gradients(unit, sample))


def gradients(unit: Unit, sample: Any, op: Op | None = None) -> Program:
    """The program that gives the gradients of the op, or of what stands for it."""

    def program(inputs: Any, constants: list[Tensor]) -> Any:
        outputs, leaves = _differentiable(unit, sample, inputs, op)
        constants.extend(_random_like(o) for o in outputs if not constants or len(constants) < len(outputs))
        return torch.autograd.grad(outputs, leaves, constants, allow_unused=True)

    return program


@variant("double_backward")
def double_backward(unit: Unit, limit: int | None) -> Iterator[Case]:
    """Gradients of gradients."""
    _needs(unit, "PyTorch has no double backward of it", unit.info.supports_gradgrad)

    for i, sample in samples(unit, limit, gradients=True):

        def program(inputs: Any, constants: list[Tensor], sample: Any = sample) -> Any:
            outputs, leaves = _differentiable(unit, sample, inputs)
            made = bool(constants)
            if not made:
                constants.extend(_random_like(o).requires_grad_() for o in outputs)
            cotangents = constants[: len(outputs)]
            first = torch.autograd.grad(outputs, leaves, cotangents, create_graph=True, allow_unused=True)
            first = [g for g in first if g is not None and g.requires_grad]
            if not first:
                raise Skip("the gradient is constant")
            if not made:
                constants.extend(_random_like(g) for g in first)
            seconds = constants[len(outputs) :]
            return torch.autograd.grad(first, [*leaves, *cotangents], seconds, allow_unused=True)

        yield Case(str(i), arguments(unit, sample), program)


@variant("forward_ad")
def forward_mode(unit: Unit, limit: int | None) -> Iterator[Case]:
    """Tangents of the results, by forward-mode automatic differentiation."""
    _needs(unit, "PyTorch has no forward-mode formula of it", unit.info.supports_forward_ad)

    for i, sample in samples(unit, limit, gradients=True):

        def program(inputs: Any, constants: list[Tensor], sample: Any = sample) -> Any:
            _need_a_definite_gradient(unit, inputs)
            leaves = [t for t in tensors(inputs) if t.requires_grad]
            if not leaves:
                raise Skip("nothing to differentiate")
            if not constants:
                constants.extend(_random_like(t) for t in leaves)
            tangents = {id(leaf): c for leaf, c in zip(leaves, constants, strict=True)}
            with forward_ad.dual_level():
                duals = map_tensors(
                    lambda t: forward_ad.make_dual(t.detach(), tangents[id(t)]) if id(t) in tangents else t, inputs
                )
                results = tensors(sample.output_process_fn_grad(unit.info(duals[0], *duals[1], **duals[2])))
                return [forward_ad.unpack_dual(r).tangent for r in results]

        yield Case(str(i), arguments(unit, sample), program)


@variant("vmap")
def vmapped(unit: Unit, limit: int | None) -> Iterator[Case]:
    """The op mapped over a new first dimension of its input, by `torch.func.vmap`."""
    for i, sample in samples(unit, limit):
        first, *others = arguments(unit, sample)
        if not isinstance(first, Tensor) or first.layout != torch.strided:
            continue
        second = first * 0.5 if first.is_floating_point() or first.is_complex() else first.clone()
        one = call(unit, sample)

        def program(inputs: Any, constants: list[Tensor], one: Program = one) -> Any:
            x, *rest = inputs
            return torch.func.vmap(lambda part: one((part, *rest), constants), randomness="different")(x)

        yield Case(str(i), (torch.stack([first, second]), *others), program, undefined=undefined(unit))


@variant("errors")
def errors(unit: Unit, limit: int | None) -> Iterator[Case]:
    """Wrong arguments: what CPU PyTorch refuses is refused, with an error of the same type."""
    if unit.info.error_inputs_func is None:
        raise Skip("the database has no wrong arguments of it")
    for i, error in spread(list(enumerate(unit.info.error_inputs("cpu"))), limit):
        yield Case(str(i), arguments(unit, error.sample_input), call(unit))


def _differentiable(unit: Unit, sample: Any, inputs: Any, op: Op | None = None) -> tuple[list[Tensor], list[Tensor]]:
    """(results that depend on the leaves, the leaves)"""
    _need_a_definite_gradient(unit, inputs)
    leaves = [t for t in tensors(inputs) if t.requires_grad]
    result = sample.output_process_fn_grad((op or unit.info)(inputs[0], *inputs[1], **inputs[2]))
    outputs = [t for t in tensors(result) if t.requires_grad]
    if not outputs or not leaves:
        raise Skip("nothing to differentiate")
    return outputs, leaves


def needs_backward(unit: Unit) -> None:
    """Raise Skip if PyTorch has no backward of the op in the dtype."""
    _needs(unit, "PyTorch has no backward of it in this dtype", unit.info.supports_autograd)


def _need_a_definite_gradient(unit: Unit, inputs: Any) -> None:
    """Raise Skip if the gradient of these arguments is nothing that a device could be held to."""
    x, args, kwargs = inputs
    if unit.op in _GRADIENT_TO_ANY and not kwargs.get("stable") and x.unique().numel() < x.numel():
        raise Skip("which of equal elements the gradient goes to is not defined")
    infinite = any(a in (math.inf, -math.inf) for a in (*args, *kwargs.values()) if isinstance(a, float))
    if unit.op in _UNEQUAL_NORMS and unit.torch_dtype.is_complex and infinite:
        raise Skip("CPU PyTorch's gradient of the infinity norm of complex numbers is wrong")


def _needs(unit: Unit, reason: str, supported: bool) -> None:
    if not supported or unit.torch_dtype not in unit.info.supported_backward_dtypes("cpu"):
        raise Skip(reason)


def _random_like(t: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(t.numel())
    if not (t.is_floating_point() or t.is_complex()):
        return torch.ones_like(t)
    wide = torch.randn(t.shape, generator=generator, dtype=torch.complex64 if t.is_complex() else torch.float32)
    return wide.to(t.dtype)


def _conj_view(t: Tensor) -> Tensor:
    return t.detach().conj_physical().conj() if t.is_complex() and t.layout == torch.strided else t


def _neg_view(t: Tensor) -> Tensor:
    differentiable = t.is_floating_point() or t.is_complex()
    return torch._neg_view(-t.detach()) if differentiable and t.layout == torch.strided else t


def _single(t: Tensor) -> Tensor:
    return t.detach().reshape(-1)[0] if t.numel() else t


def elementwise(unit: Unit) -> bool:
    """Whether each element of the result comes from one of the arguments' each."""
    return unit.database == "op_db" and type(unit.info).__name__ in ("UnaryUfuncInfo", "BinaryUfuncInfo")


def _expandable(unit: Unit) -> bool:
    return elementwise(unit) or type(unit.info).__name__ in ("ReductionOpInfo", "ShapeFuncInfo")


def undefined(unit: Unit) -> bool:
    """Whether the op's values are whatever memory held."""
    return "empty" in unit.op or unit.op in ("new_empty_strided", "resize_", "resize_as_")
