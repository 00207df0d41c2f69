"""Between tensors and the arrays that programs take and make."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .. import _C

if TYPE_CHECKING:
    from jax import Array


def device_name() -> str:
    """What the device is called."""
    name: str = torch._C._get_privateuse1_backend_name()
    return name


def array_of(tensor: Tensor) -> Array:
    """The content of a device tensor as the array that a program takes."""
    name = device_name()
    if tensor.device.type != name:
        raise RuntimeError(
            f"expected a tensor on {name}, got one on {tensor.device}: the {name} backend is for the device's own "
            f"tensors. init_process_group('cpu:gloo,{name}:{name}') has one for each"
        )
    plain = tensor.detach()
    if plain.is_conj() or plain.is_neg():
        plain = plain.resolve_conj().resolve_neg()
    array: Array = _C.array(plain)
    return array


def bind(tensor: Tensor, array: Array) -> None:
    """Make the array, of the tensor's shape and dtype, its content."""
    if not prod(array.shape):
        return
    if not tensor.is_conj() and not tensor.is_neg() and _C.bind_array(tensor, array):
        return
    content = _C.tensor_of_array(array, tensor.dtype, tensor.device.index, False)
    with torch.no_grad():
        tensor.detach().copy_(content.view(tensor.shape))
