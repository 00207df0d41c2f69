"""Refusals of norms, convolutions, pools and attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .table import refuse_for


@refuse_for("native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update")
def _check_normalized(given: Mapping[str, Any]) -> None:
    sizes = given["input"].shape
    if 0 in sizes:
        raise RuntimeError(f"input tensor must have at least one element, but got input_sizes = {list(sizes)}")


@refuse_for("native_group_norm")
def _check_group_norm(given: Mapping[str, Any]) -> None:
    for name in ("weight", "bias"):
        t = given[name]
        if t is not None and (t.dim() != 1 or t.numel() != given["C"]):
            raise RuntimeError(
                f"Expected {name} to be a vector of size equal to the number of channels in input, but got {name} of "
                f"shape {list(t.shape)} and input of shape {list(given['input'].shape)}"
            )


@refuse_for("im2col", "grid_sampler_2d", "grid_sampler_3d")
def _check_image(given: Mapping[str, Any]) -> None:
    self = given.get("self", given.get("input"))
    if self.dim() == 0:
        raise IndexError("Dimension specified as 0 but tensor has no dimensions")


@refuse_for("max_pool2d_with_indices", "max_pool2d_with_indices_backward")
def _check_max_pool(given: Mapping[str, Any]) -> None:
    if given["self"].dim() not in (3, 4):
        raise RuntimeError("non-empty 3D or 4D (batch mode) tensor expected for input")


@refuse_for("convolution", "_convolution", "convolution_overrideable")
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


@refuse_for("_adaptive_avg_pool2d", "_adaptive_avg_pool3d")
def _check_pooled(given: Mapping[str, Any]) -> None:
    sizes = given["self"].shape
    for d in range(1, len(given["output_size"]) + 1):
        if len(sizes) >= d and sizes[-d] == 0:
            raise RuntimeError(
                "Expected input to have non-zero size for non-batch dimensions, but input has sizes "
                f"{list(sizes)} with dimension {len(sizes) - d} being empty"
            )


@refuse_for("_flash_attention_forward", "_flash_attention_forward_no_dropout_inplace")
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
