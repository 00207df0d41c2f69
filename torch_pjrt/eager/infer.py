"""What an op returns, asked once per (op, argument metadata) and remembered by the C++ core."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload
from torch._prims_common import canonicalize_dim
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from ..lowering import Spec
from ..lowering.apply import functional_twin, written
from ..lowering.dtypes import to_numpy
from .checks import check
from .cpu_probe import Dtypes, result_dtypes
from .formats import in_format

_SCALAR_TYPES: dict[int, torch.dtype] = {
    0: torch.uint8, 1: torch.int8, 2: torch.int16, 3: torch.int32, 4: torch.int64, 5: torch.float16,
    6: torch.float32, 7: torch.float64, 8: torch.complex32, 9: torch.complex64, 10: torch.complex128, 11: torch.bool,
    12: torch.qint8, 13: torch.quint8, 14: torch.qint32, 15: torch.bfloat16, 23: torch.float8_e5m2,
    24: torch.float8_e4m3fn, 25: torch.float8_e5m2fnuz, 26: torch.float8_e4m3fnuz, 27: torch.uint16,
    28: torch.uint32, 29: torch.uint64, 44: torch.float8_e8m0fnu,
}  # fmt: skip
_SCALAR_NUMBERS = {dtype: number for number, dtype in _SCALAR_TYPES.items()}
_MEMORY_FORMATS = [torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d]

# PyTorch's meta kernel wants the strides and multiples of CUDA's tensor cores.
_OF_CUDA = ("aten::_scaled_mm", "aten::_scaled_mm.out", "aten::_scaled_mm_v2", "aten::_scaled_mm_v2.out")
# PyTorch's meta kernel promises a tensor where its CPU kernel gives none, fails where there are no biases, or pads
# as CUDA's kernel does.
_WRONG_META = frozenset(
    {
        "aten::_native_multi_head_attention", "aten::_scaled_dot_product_efficient_attention",
        "aten::_thnn_fused_lstm_cell", *_OF_CUDA,
    }
)  # fmt: skip

# Take a number that is a tensor on the host, as on CUDA, where the meta kernel refuses the other device.
_TAKE_HOST_NUMBERS = frozenset({"copysign", "index_fill", "masked_fill"})

# (dtype number, sizes, strides): how a layout crosses into C++.
LayoutTuple = tuple[int, tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Call:
    """One ATen call as a node of a trace sees it.

    Attributes:
        op: the overload.
        template: its arguments by schema, with ("$tensor",), ("$float", dtype or None) and ("$int", dtype) where a
            value arrives at run time, in order.
        specs: shape and dtype of each normalized output; None where the op returns no tensor.
    """

    op: OpOverload
    template: tuple[Any, ...]
    specs: tuple[Spec | None, ...]

    def __str__(self) -> str:
        return f"{self.op.name()}({', '.join(_argument(a) for a in self.template)})"


def _argument(a: Any) -> str:
    if isinstance(a, tuple) and a and isinstance(a[0], str) and a[0].startswith("$"):
        return a[0][1:]
    if isinstance(a, list):
        return "[" + ", ".join(map(_argument, a)) + "]"
    return repr(a)


@functools.cache
def op_named(name: str) -> OpOverload:
    """The overload with this full name, "aten::add.Tensor"."""
    if name == "torch_pjrt::copy_":  # recorded apart from aten::copy_, which decides where a copy goes
        name = "aten::copy_"
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    found: OpOverload = getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
    return found


def dtype_of(number: int) -> torch.dtype:
    """The torch dtype with this c10::ScalarType number."""
    return _SCALAR_TYPES[number]


def number_of(dtype: torch.dtype) -> int:
    """The c10::ScalarType number of a torch dtype."""
    return _SCALAR_NUMBERS[dtype]


@functools.cache
def _converters(op: OpOverload) -> tuple[Callable[[Any], Any] | None, ...]:
    """Per argument: from the plain int that a boxed call carries to the dtype or memory format it stands for."""

    def of(kind: str) -> Callable[[Any], Any] | None:
        if "ScalarType" in kind:
            return lambda v: _SCALAR_TYPES[v] if isinstance(v, int) else v
        if "MemoryFormat" in kind:
            return lambda v: _MEMORY_FORMATS[v] if isinstance(v, int) else v
        return None

    return tuple(of(str(a.real_type)) for a in op._schema.arguments)


def _converted(op: OpOverload, args: list[Any]) -> list[Any]:
    return [c(a) if c is not None else a for c, a in zip(_converters(op), args, strict=True)]


def _numbers_as_tensors(op: OpOverload, args: Sequence[Any]) -> list[Any]:
    """The arguments with tensors for the numbers that stand for tensors, where Python may not pass numbers.

    Kernels of PyTorch call `gt.Tensor`, say, with a number in a tensor ("wrapped"), and the recorder takes that out.
    """
    if torch._C._should_allow_numbers_as_tensors(op._schema.name.partition("::")[2]):
        return list(args)
    return [
        torch.tensor(a) if isinstance(a, (bool, int, float, complex)) and isinstance(of.type, torch.TensorType) else a
        for a, of in zip(args, op._schema.arguments, strict=True)
    ]


_NOT_NEGATIVE = {
    "aten::linalg_vector_norm": "dim", "aten::segment_reduce": "axis", "aten::_segment_reduce_backward": "axis"
}  # fmt: skip


def _from_the_front(op: OpOverload, metas: list[Any]) -> list[Any]:
    """The arguments, without negative dimensions where PyTorch's reference takes those for empty or for other ones."""
    name = _NOT_NEGATIVE.get(op._schema.name)
    if name is None:
        return metas
    names = [a.name for a in op._schema.arguments]
    at, rank = names.index(name), metas[names.index("data" if "data" in names else "self")].dim()
    wrapped = tree_map(lambda d: d if d is None else canonicalize_dim(rank, d), metas[at])
    return [*metas[:at], wrapped, *metas[at + 1 :]]


def infer(
    name: str, args: list[Any], template: list[Any]
) -> tuple[Call, list[LayoutTuple], list[LayoutTuple | list[LayoutTuple | None] | None]]:
    """What the call writes and returns, by running it on meta tensors.

    Args:
        name: the overload's full name.
        args: its arguments, device tensors among them.
        template: the same with markers for what arrives at run time.

    Returns:
        the call for the trace, the layout of each written tensor afterwards, and of each fresh result.

    Raises:
        whatever PyTorch raises for these shapes and dtypes.
    """
    op = op_named(name)
    args = _converted(op, args)
    with torch.no_grad(), _disable_current_modes():
        host_too = op._schema.name.partition("::")[2].rstrip("_") in _TAKE_HOST_NUMBERS
        metas = [_on_meta(a, host_too=host_too) for a in _numbers_as_tensors(op, args)]
        metas = _from_the_front(op, metas)
        given = dict(zip((a.name for a in op._schema.arguments), metas, strict=True))
        dtypes = result_dtypes(op, given)
        check(op, given)
        try:
            results = _shapes_of_lowering(op, metas) if op.name() in _WRONG_META else _run(op, metas)
        except Exception as error:
            if isinstance(error, NotImplementedError) and not _refuses_dtype(error):
                results = _shapes_of_lowering(op, metas)
            elif isinstance(error, TypeError) and "cond must be a bool" in str(error):
                # A batch of none: upsample_nearest's meta kernel hands torch._check a product of sizes for a condition.
                results = _shapes_of_lowering(op, metas)
            elif type(error) is RuntimeError and str(error).startswith("too many indices"):
                raise IndexError(str(error)) from None
            elif isinstance(error, AssertionError):  # PyTorch's references say so where its kernels raise RuntimeError
                raise RuntimeError(str(error)) from None
            elif "meta" in str(error) and any(t.device.type == "cpu" for a in metas for t in tensors_in(a)):
                raise RuntimeError(two_devices(op, args)) from None
            elif dtypes is not None:  # PyTorch takes these dtypes, whatever its meta kernel says
                results = _run_in_other_dtypes(op, metas, error)
            else:
                raise
        if op.name() in _OF_CUDA and not written(op):  # the lowering leaves the dtype to who asked
            dtypes = (given["out_dtype"] or given["self"].dtype,)
        results = _in_dtypes(results, dtypes)
        if op.name() == "aten::multilabel_margin_loss_forward" and given["self"].dim() < 2:
            results = (results[0].reshape(()), *results[1:])  # the meta kernel has a batch dimension without a batch
    results = in_format(name, given, results)
    changed = [t for n in written(op) for t in tensors_in(given[n])]
    _check_shapes_kept(op, args, given)
    changed = _restrided(op, args, given, changed)
    fresh: list[Any] = []
    returned = [results] if len(op._schema.returns) == 1 else list(results or ())
    for value, ret in zip(returned, op._schema.returns, strict=True):
        if ret.alias_info is not None and ret.alias_info.is_write:
            continue
        fresh.append([_layout(t) for t in value] if isinstance(value, (list, tuple)) else _layout(value))
    specs: list[Spec | None] = [Spec(tuple(t.shape), t.dtype) for t in changed]
    for item in fresh:
        specs += [_spec(s) for s in (item if isinstance(item, list) else [item])]
    for spec in specs:
        if spec is not None:
            to_numpy(spec.dtype)  # TypeError, here and not when the trace is compiled
    call = Call(op, tuple(_converted(op, list(template))), tuple(specs))
    return call, [_layout(t) for t in changed], fresh  # type: ignore[misc]


def _check_shapes_kept(op: OpOverload, args: list[Any], by_name: dict[str, Any]) -> None:
    """Meta kernels resize what an in-place op writes to if it has no elements; the CPU's refuse to broadcast it."""
    for a, given in zip(op._schema.arguments, args, strict=True):
        if a.alias_info is None or not a.alias_info.is_write or a.is_out:
            continue
        for before, after in zip(tensors_in(given), tensors_in(by_name[a.name]), strict=True):
            if before.shape != after.shape:
                raise RuntimeError(
                    f"output with shape {list(before.shape)} doesn't match the broadcast shape {list(after.shape)}"
                )


def _restrided(
    op: OpOverload, args: list[Any], by_name: dict[str, Any], changed: list[torch.Tensor]
) -> list[torch.Tensor]:
    """The written tensors, those that an `out=` op resized with the strides that CPU PyTorch gives them.

    A meta kernel resizes its output to contiguous strides; the CPU's gives it those of the functional result, the
    transposed ones of `sin(x.t())`, say.
    """
    before = [
        t for a, x in zip(op._schema.arguments, args, strict=True) if a.name in written(op) for t in tensors_in(x)
    ]
    if all(b.shape == t.shape for b, t in zip(before, changed, strict=True)):
        return changed
    twin = functional_twin(op)
    if twin is None or len(twin._schema.returns) != len(changed):
        return changed
    taken = [a for a in twin._schema.arguments if a.name in by_name]
    with torch.no_grad(), _disable_current_modes():
        try:
            results = twin(
                *(by_name[a.name] for a in taken if not a.kwarg_only),
                **{a.name: by_name[a.name] for a in taken if a.kwarg_only},
            )
        except NotImplementedError:  # no meta kernel; its results are contiguous
            return changed
    found = [results] if len(changed) == 1 else list(results)
    if any(not isinstance(f, torch.Tensor) or f.shape != t.shape for f, t in zip(found, changed, strict=True)):
        return changed
    return [
        t if b.shape == t.shape else torch.empty_strided(t.shape, f.stride(), dtype=t.dtype, device="meta")
        for b, t, f in zip(before, changed, found, strict=True)
    ]


def _run(op: OpOverload, metas: list[Any]) -> Any:
    args, kwargs = [], {}
    for a, value in zip(op._schema.arguments, metas, strict=True):
        if a.kwarg_only:
            kwargs[a.name] = value
        else:
            args.append(value)
    import torch._meta_registrations  # noqa: F401  (meta kernels of ops that have none in C++)

    return op(*args, **kwargs)


def _refuses_dtype(error: NotImplementedError) -> bool:
    return "not implemented for" in str(error) or "not supported for" in str(error)


# Shapes do not depend on dtypes: what to call a tensor where a meta kernel refuses what CPU PyTorch takes.
_OTHER_DTYPES: tuple[dict[torch.dtype, torch.dtype], ...] = (
    {torch.uint8: torch.int64},
    {torch.uint8: torch.bool},
    {torch.bool: torch.uint8},
    {torch.bool: torch.float32},
    {torch.complex64: torch.float32, torch.complex128: torch.float64},
)


def _run_in_other_dtypes(op: OpOverload, metas: list[Any], error: Exception) -> Any:
    """The op's meta results in shape, with tensors of dtypes that its meta kernel takes; else raises `error`."""
    for names in _OTHER_DTYPES:

        def renamed(x: Any, names: dict[torch.dtype, torch.dtype] = names) -> Any:
            return x.to(names[x.dtype]) if isinstance(x, torch.Tensor) and x.dtype in names else x

        try:
            return _run(op, tree_map(renamed, metas))
        except Exception:
            continue  # the first refusal is the one to report
    raise error


def _in_dtypes(results: Any, dtypes: Dtypes | None) -> Any:
    """Meta results in the dtypes that CPU PyTorch returns; some meta kernels promote what the CPU's do not."""
    if dtypes is None:
        return results
    leaves, tree = tree_flatten(results)
    if len(leaves) != len(dtypes):
        return results
    return tree_unflatten(
        [
            t.to(d) if isinstance(t, torch.Tensor) and d is not None and t.dtype != d else t
            for t, d in zip(leaves, dtypes, strict=True)
        ],
        tree,
    )


def _shapes_of_lowering(op: OpOverload, metas: list[Any]) -> Any:
    """Meta results of an op that PyTorch has no meta kernel for, from the shapes that its lowering makes."""
    import jax

    from ..lowering import find
    from ..lowering.dtypes import to_torch

    lowering = find(op)
    if lowering is not None and not op._schema.returns:
        return None  # it only writes (`_fused_sgd_`), which changes no shape
    twin = functional_twin(op)
    if (
        lowering is not None
        and twin is not None
        and all(a.is_out for a in op._schema.arguments if a.name in written(op))
    ):
        return _resized_outputs(op, twin, metas)
    if lowering is None or written(op):
        raise NotImplementedError(f"{op.name()} has neither a meta kernel nor a lowering that tells its result's shape")
    leaves, tree = tree_flatten(metas)
    slots = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]

    def run(*arrays: jax.Array) -> Any:
        filled = list(leaves)
        for i, a in zip(slots, arrays, strict=True):
            filled[i] = a
        args = tree_unflatten(filled, tree)
        names = [a.name for a in op._schema.arguments]
        keyword = {n: v for n, v, a in zip(names, args, op._schema.arguments, strict=True) if a.kwarg_only}
        key = {"key": jax.numpy.zeros(4, "uint32")} if lowering.random else {}
        return lowering.fn(*args[: len(args) - len(keyword)], **keyword, **key)

    with jax.enable_x64(True):
        shapes = jax.eval_shape(
            run, *(jax.ShapeDtypeStruct(tuple(leaves[i].shape), to_numpy(leaves[i].dtype)) for i in slots)
        )
    return jax.tree.map(lambda s: torch.empty(s.shape, dtype=to_torch(s.dtype), device="meta"), shapes)


def _resized_outputs(op: OpOverload, twin: OpOverload, metas: list[Any]) -> list[torch.Tensor]:
    """The `out=` tensors of an op without a meta kernel, in the shapes that its functional form's lowering gives."""
    by_name = dict(zip((a.name for a in op._schema.arguments), metas, strict=True))
    results = tensors_in(
        _shapes_of_lowering(twin, [by_name.get(a.name, a.default_value) for a in twin._schema.arguments])
    )
    outs = [t for n in written(op) for t in tensors_in(by_name[n])]
    for out, result in zip(outs, results, strict=True):
        if out.shape != result.shape:
            out.resize_(result.shape)
    return outs


def two_devices(op: OpOverload, args: Sequence[Any]) -> str:
    """The message for tensors on more than one device."""
    devices = list(dict.fromkeys(str(t.device) for a in args for t in tensors_in(a)))
    return (
        f"Expected all tensors to be on the same device, but found at least two devices, {' and '.join(devices)}! "
        f"(when recording {op.name()})"
    )


def _on_meta(x: Any, *, host_too: bool = False) -> Any:
    """The arguments with meta tensors for the device's; numbers on the host stay, unless `host_too`."""
    if isinstance(x, torch.Tensor):
        if x.device.type == "cpu" and not host_too:
            return x
        return torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device="meta")
    if isinstance(x, (list, tuple)):
        return [_on_meta(i, host_too=host_too) for i in x]
    return x


def tensors_in(x: Any) -> list[torch.Tensor]:
    """The tensors in an argument, or in a list of arguments."""
    if isinstance(x, torch.Tensor):
        return [x]
    return [t for i in x for t in tensors_in(i)] if isinstance(x, (list, tuple)) else []


def _layout(t: torch.Tensor | None) -> LayoutTuple | None:
    if t is None:
        return None
    return _SCALAR_NUMBERS[t.dtype], tuple(t.size()), tuple(t.stride())


def _spec(layout: LayoutTuple | None) -> Spec | None:
    return None if layout is None else Spec(layout[1], dtype_of(layout[0]))
