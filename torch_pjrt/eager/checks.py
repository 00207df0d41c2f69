"""What CPU PyTorch's kernels refuse and its meta kernels don't: dimensions, numbers and overlapping memory.

A shape is inferred on meta tensors, and many of PyTorch's meta kernels are Python references that check less than the
kernels they stand for. A program that is wrong must say so on every device, so the missing checks are here. What is
refused for its dtypes: cpu_probe.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

Check = Callable[[Mapping[str, Any]], None]
_CHECKS: dict[str, Check] = {}
_NUMBER_CHECKS: dict[str, Check] = {}
# Refusal in aliasing.h.
_REPEATS, _PARTIAL_OVERLAP, _OVERLAP = 1, 2, 4


def check(op: OpOverload, given: Mapping[str, Any]) -> None:
    """Raise what the op's CPU kernel raises for these arguments (meta tensors, by name) and its meta kernel may not."""
    # By the base name, which all forms have, or by one that only the in-place form has.
    for name in dict.fromkeys((base_name(op), op._schema.name.partition("::")[2])):
        if name in _CHECKS:
            _CHECKS[name](given)


def number_check(op: OpOverload) -> Callable[..., None] | None:
    """What to call with the op's arguments at every call: one entry serves all numbers that come at run time.

    None for most ops; the others draw from a distribution that has no meaning for some parameters.
    """
    found = _NUMBER_CHECKS.get(base_name(op))
    names = [a.name for a in op._schema.arguments]
    return found and (lambda *args: found(dict(zip(names, args, strict=True))))


def refusals(op: OpOverload) -> int:
    """The bits of the memory overlaps that the op's CPU kernel refuses: what TensorIterator does unless told not to."""
    name = base_name(op)
    if name in ("index_add", "index_copy", "index_select", "cat", "gather", "take") or name.startswith("scatter"):
        return _REPEATS | _OVERLAP
    if name in ("index_put", "_index_put_impl"):
        return _OVERLAP
    if name in ("masked_fill", "index_fill"):
        return _PARTIAL_OVERLAP
    if name in ("cumsum", "cumprod") or torch.Tag.nondeterministic_seeded in op.tags or name.startswith("_foreach_"):
        return _REPEATS
    if name == "copy" or torch.Tag.pointwise in op.tags:
        return _REPEATS | _PARTIAL_OVERLAP
    return 0


def base_name(op: OpOverload) -> str:
    """`aten::add_.Tensor` and `aten::add.out` -> "add"."""
    name: str = op._schema.name.partition("::")[2]
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


def _refuse_for(*names: str, table: dict[str, Check] = _CHECKS) -> Callable[[Check], Check]:
    def register(fn: Check) -> Check:
        if twice := table.keys() & set(names):
            raise ValueError(f"two checks for {twice}")
        table.update(dict.fromkeys(names, fn))
        return fn

    return register


@_refuse_for("cat")
def _check_cat(given: Mapping[str, Any]) -> None:
    for i, t in enumerate(given["tensors"]):
        if t.dim() == 0:
            raise RuntimeError(f"zero-dimensional tensor (at position {i}) cannot be concatenated")


@_refuse_for("_foreach_sub")
def _check_subtracted(given: Mapping[str, Any]) -> None:
    if any(isinstance(number, bool) for number in given.get("scalars") or ()):
        raise RuntimeError(
            "Subtraction, the `-` operator, with a bool tensor is not supported. "
            "If you are trying to invert a mask, use the `~` or `logical_not()` operator instead."
        )


@_refuse_for("masked_fill")
def _check_filled(given: Mapping[str, Any]) -> None:
    value = given["value"]  # a tensor's is looked at by the program
    if isinstance(value, complex) and value.imag and not given["self"].is_complex():
        raise RuntimeError(f"value cannot be converted to type {given['self'].dtype} without overflow")


@_refuse_for("masked_scatter_")
def _check_mask_fits(given: Mapping[str, Any]) -> None:
    own, mask = given["self"].dim(), given["mask"].dim()
    if mask > own:
        raise RuntimeError(
            f"expand: the number of sizes provided ({own}) must be greater or equal to the number of dimensions in the "
            f"tensor ({mask})"
        )


@_refuse_for("native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update")
def _check_normalized(given: Mapping[str, Any]) -> None:
    sizes = given["input"].shape
    if 0 in sizes:
        raise RuntimeError(f"input tensor must have at least one element, but got input_sizes = {list(sizes)}")


@_refuse_for("searchsorted")
def _check_sequence(given: Mapping[str, Any]) -> None:
    if given["sorted_sequence"].dim() == 0:
        raise RuntimeError(
            "torch.searchsorted(): input value can be a scalar only when boundaries tensor dimension is 1, but we got "
            "boundaries tensor dim(0)"
        )


@_refuse_for("hash_tensor")
def _check_mode(given: Mapping[str, Any]) -> None:
    if given["mode"] != 0:
        raise RuntimeError(f"Unknown hash_tensor mode: {given['mode']}")


@_refuse_for("index_add")
def _check_added(given: Mapping[str, Any]) -> None:
    self, source = given["self"], given["source"]
    shapes = [list(t.shape) for t in (self, source)]
    if len(shapes[0]) == len(shapes[1]) > 0:
        dim = given["dim"] % len(shapes[0])
        shapes = [s[:dim] + s[dim + 1 :] for s in shapes]
    if shapes[0] != shapes[1]:
        raise RuntimeError(
            "source tensor shape must match self tensor shape, excluding the specified dimension. "
            f"Got self.shape = {list(self.shape)} source.shape = {list(source.shape)}"
        )


@_refuse_for("convolution", "_convolution", "convolution_overrideable")
def _check_convolution(given: Mapping[str, Any]) -> None:
    if any(n < 0 for n in given["padding"]):
        raise RuntimeError("negative padding is not supported")
    if any(n <= 0 for n in given["stride"]):
        raise RuntimeError("non-positive stride is not supported")
    if any(n <= 0 for n in given["dilation"]):
        raise RuntimeError("dilation should be greater than zero")
    if given["weight"].size(0) == 0:
        raise RuntimeError(
            f"Given groups={given['groups']}, expected weight to be at least {given['groups']} at dimension 0, but got "
            f"weight of size {list(given['weight'].shape)} instead"
        )


@_refuse_for("mv")
def _check_vector(given: Mapping[str, Any]) -> None:
    if given["self"].dim() == 0:
        raise IndexError("Dimension specified as 0 but tensor has no dimensions")


@_refuse_for("geqrf")
def _check_matrix(given: Mapping[str, Any]) -> None:
    if given["self"].dim() < 2:
        raise RuntimeError("torch.geqrf: input must have at least 2 dimensions.")


@_refuse_for("_softmax", "_log_softmax", "sort", "argsort", "topk", "cummax", "cummin")
def _check_dim(given: Mapping[str, Any]) -> None:
    d, rank = given["dim"], max(given["self"].dim(), 1)
    if not -rank <= d < rank:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-rank}, {rank - 1}], but got {d})")


@_refuse_for("median", "mode", "nanmedian", "amax", "amin", "aminmax", "kthvalue")
def _check_not_empty(given: Mapping[str, Any]) -> None:
    self, dims = given["self"], given.get("dim")
    if self.numel():
        return
    for d in dims if isinstance(dims, list) else [] if dims is None else [dims]:
        if -self.dim() <= d < self.dim() and self.size(d) == 0:
            raise IndexError(f"Expected reduction dim {d} to have non-zero size.")


@_refuse_for("max", "min", "argmax", "argmin")
def _check_extremum(given: Mapping[str, Any]) -> None:
    if given.get("dim") is None and given["self"].numel() == 0:
        wrong: type[Exception] = IndexError if "keepdim" in given else RuntimeError  # of argmax, and of max
        raise wrong("Expected reduction dim to be specified for input.numel() == 0.")
    _check_not_empty(given)


@_refuse_for("clamp")
def _check_clamp(given: Mapping[str, Any]) -> None:
    if given["min"] is None and given["max"] is None:
        raise RuntimeError("torch.clamp: At least one of 'min' or 'max' must not be None")


@_refuse_for("_adaptive_avg_pool2d", "_adaptive_avg_pool3d")
def _check_pooled(given: Mapping[str, Any]) -> None:
    sizes = given["self"].shape
    for d in range(1, len(given["output_size"]) + 1):
        if len(sizes) >= d and sizes[-d] == 0:
            raise RuntimeError(
                "Expected input to have non-zero size for non-batch dimensions, but input has sizes "
                f"{list(sizes)} with dimension {len(sizes) - d} being empty"
            )


@_refuse_for("index", "_unsafe_index")
def _check_indices(given: Mapping[str, Any]) -> None:
    shapes = [i.shape for i in given["indices"] if i is not None]
    try:
        torch.broadcast_shapes(*shapes)
    except RuntimeError:
        said = ", ".join(str(list(s)) for s in shapes)
        raise IndexError(
            f"shape mismatch: indexing tensors could not be broadcast together with shapes {said}"
        ) from None


@_refuse_for("index_put", "_index_put_impl", "_unsafe_index_put")
def _check_assigned(given: Mapping[str, Any]) -> None:
    _check_indices(given)
    shape, place = list(given["values"].shape), given["self"][tuple(_or_all(given["indices"]))].shape
    kept = shape[next((i for i, n in enumerate(shape) if n != 1), len(shape)) :]
    if len(kept) > len(place) or any(n not in (1, m) for n, m in zip(kept[::-1], place[::-1], strict=False)):
        raise RuntimeError(
            f"shape mismatch: value tensor of shape {shape} cannot be broadcast to indexing result of shape "
            f"{list(place)}"
        )


def _or_all(indices: Sequence[torch.Tensor | None]) -> list[torch.Tensor | slice]:
    return [slice(None) if i is None else i for i in indices]


@_refuse_for("index_select")
def _check_index_select(given: Mapping[str, Any]) -> None:
    n = given["index"].numel()
    if given["index"].dim() > 1:
        raise IndexError("index_select(): Index is supposed to be a vector")
    if given["self"].dim() == 0 and n != 1:
        raise RuntimeError(f"index_select(): Index to scalar can have only 1 value, got {n} value(s)")


@_refuse_for("select_scatter", "slice_scatter", "diagonal_scatter")
def _check_scattered(given: Mapping[str, Any]) -> None:
    """These write to a view, whose own kernel says what is wrong with it."""
    self = given["self"]
    if "index" in given:
        place = self.select(given["dim"], given["index"])
    elif "offset" in given:
        place = self.diagonal(given["offset"], given["dim1"], given["dim2"])
    else:
        place = torch.ops.aten.slice.Tensor(self, *(given[n] for n in ("dim", "start", "end", "step")))
    if place.shape != given["src"].shape:
        raise RuntimeError(
            f"expected src to have a size equal to the slice of self. src size = {list(given['src'].shape)}, "
            f"slice size = {list(place.shape)}"
        )


@_refuse_for("index_copy")
def _check_index_copy(given: Mapping[str, Any]) -> None:
    index, source, d = given["index"], given["source"], given["dim"]
    if index.dim() > 1:
        raise IndexError(f"index_copy_(): Index should have dimension 1 or 0 (got {index.dim()})")
    if -source.dim() <= d < source.dim() and index.numel() != source.size(d):
        raise IndexError(
            f"index_copy_(): Number of indices ({index.numel()}) should be equal to source.size(dim) ({source.size(d)})"
        )


@_refuse_for("put")
def _check_put(given: Mapping[str, Any]) -> None:
    index, source = given["index"].numel(), given["source"].numel()
    if index != source:
        raise IndexError(
            "put_(): Expected source and index to have the same number of elements, but got "
            f"source.numel() = {source}, index.numel() = {index}"
        )


@_refuse_for("index_reduce")
def _check_index_reduce(given: Mapping[str, Any]) -> None:
    if given["reduce"] not in ("prod", "mean", "amax", "amin"):
        raise RuntimeError(
            f"index_reduce(): Expected reduce to be one of prod, mean, amax or amin but got {given['reduce']}."
        )


@_refuse_for("bucketize")
def _check_bucketize(given: Mapping[str, Any]) -> None:
    if given["boundaries"].dim() != 1:
        raise RuntimeError(f"boundaries tensor must be 1 dimension, but got dim({given['boundaries'].dim()})")


@_refuse_for("_flash_attention_forward", "_flash_attention_forward_no_dropout_inplace")
def _check_flash_attention(given: Mapping[str, Any]) -> None:
    name = "_flash_attention_forward"
    for argument in ("alibi_slopes", "block_table"):
        if given[argument] is not None:
            raise NotImplementedError(f"{name}(): {argument} is not supported on this device")
    if given["return_debug_mask"]:
        raise NotImplementedError(f"{name}(): return_debug_mask=True is not supported on this device")
    query, key, value = (given[n] for n in ("query", "key", "value"))
    first, second = given["cum_seq_q"], given["cum_seq_k"]
    if (first is None) != (second is None) or (first is not None and first.shape != second.shape):
        told = [None if t is None else tuple(t.shape) for t in (first, second)]
        raise RuntimeError(f"{name}(): cum_seq_q and cum_seq_k must be of as many sequences, got shapes {told}")
    if query.dim() != (4 if first is None else 3) or not query.dim() == key.dim() == value.dim():
        raise RuntimeError(f"{name}(): query, key and value of {query.dim()}, {key.dim()} and {value.dim()} dimensions")
    if (
        query.shape[-1] != key.shape[-1]
        or key.shape[:-1] != value.shape[:-1]
        or query.shape[-2] % max(key.shape[-2], 1)
    ):
        shapes = ", ".join(str(tuple(t.shape)) for t in (query, key, value))
        raise RuntimeError(f"{name}(): the shapes of query, key and value do not fit each other: {shapes}")
    if not query.is_floating_point() or not query.dtype == key.dtype == value.dtype:
        raise RuntimeError(f"{name}(): query, key and value are {query.dtype}, {key.dtype} and {value.dtype}")
    if not 0 <= given["dropout_p"] <= 1:
        raise RuntimeError(f"{name}(): dropout_p is {given['dropout_p']}, expected a probability")


@_refuse_for("multinomial")
def _check_multinomial(given: Mapping[str, Any]) -> None:
    samples, choices = given["num_samples"], given["self"].shape[-1:]
    if samples <= 0:
        raise RuntimeError("cannot sample n_sample <= 0 samples")
    if choices and choices[0] == 0:
        raise RuntimeError("invalid multinomial distribution (sum of probabilities <= 0)")
    if choices and not given["replacement"] and samples > choices[0]:
        raise RuntimeError("cannot sample n_sample > prob_dist.size(-1) samples without replacement")


@_refuse_for("random")
def _check_random(given: Mapping[str, Any]) -> None:
    low, high = given.get("from", 0), given.get("to")
    if high is not None and low >= high:
        raise RuntimeError(f"random_ expects 'from' to be less than 'to', but got from={low} >= to={high}")


@_refuse_for("uniform", table=_NUMBER_CHECKS)
def _check_uniform(given: Mapping[str, Any]) -> None:
    if given["from"] > given["to"]:
        raise RuntimeError(
            f"uniform_ expects to return a [from, to) range, but found from={given['from']} > to={given['to']}"
        )


@_refuse_for("bernoulli", table=_NUMBER_CHECKS)
def _check_bernoulli(given: Mapping[str, Any]) -> None:
    p = given.get("p")
    if isinstance(p, float) and not 0 <= p <= 1:
        raise RuntimeError(f"bernoulli_ expects p to be in [0, 1], but got p={p}")


@_refuse_for("geometric", table=_NUMBER_CHECKS)
def _check_geometric(given: Mapping[str, Any]) -> None:
    if not 0 < given["p"] < 1:
        raise RuntimeError(f"geometric_ expects p to be in (0, 1), but got p={given['p']}")


@_refuse_for("normal", "normal_functional", table=_NUMBER_CHECKS)
def _check_normal(given: Mapping[str, Any]) -> None:
    std = given["std"]
    if isinstance(std, float) and not std >= 0:
        raise RuntimeError(f"normal expects std >= 0.0, but found std {std}")


@_refuse_for("exponential", "cauchy", "log_normal", table=_NUMBER_CHECKS)
def _check_positive(given: Mapping[str, Any]) -> None:
    name = next(n for n in ("lambd", "sigma", "std") if n in given)
    if not given[name] > 0:
        raise RuntimeError(f"expected {name} > 0.0, but found {name}={given[name]}")
