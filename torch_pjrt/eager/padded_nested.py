"""A batch with padding as a nested tensor that leaves the padding where it is: what `nn.TransformerEncoder` runs on.

In inference PyTorch packs the batch, runs the layers without a mask, and pads the result with zeros. Packed, each batch
would have sizes, and programs, of its own. So here the nested tensor is one over the padded batch itself, with gaps; a
layer runs on the whole batch, with a mask made of the lengths, which reach the program as data. Whatever else is asked
of such a nested tensor gets it packed (`csrc/borrow.cpp`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

aten = torch.ops.aten


def left_aligned(t: Tensor, mask: Tensor) -> bool:
    """Whether the padding of t (batch, length, features), where mask (batch, length) is False, is behind the rest."""
    return bool(_of_cpu(aten._nested_tensor_from_mask_left_aligned.default, torch._C.DispatchKey.CPU, t, mask))


def from_mask(t: Tensor, mask: Tensor, mask_check: bool = True) -> Tensor:
    """The sequences of t as a nested tensor: packed, or unchecked, as the encoder asks for it, over a copy of t."""
    if mask_check:
        return _of_cpu(aten._nested_tensor_from_mask.default, torch._C.DispatchKey.CPU, t, mask)
    lengths = mask.sum(1).cpu()
    if not lengths.any():
        raise RuntimeError("_nested_tensor_from_mask: at least one sequence must have an element")
    # Zeros for padding, as attention multiplies what it masks by zero: a NaN would stay one.
    return _over(t.where(mask.unsqueeze(2), 0).contiguous(), lengths)


def to_padded_tensor(self: Tensor, padding: float, output_size: Sequence[int] | None = None) -> Tensor:
    """Kernel of nested tensors: a batch's padding is filled, other tensors are padded one by one."""
    found = _batch_of(self)
    if found is None:
        return _of_cpu(aten.to_padded_tensor.default, torch._C.DispatchKey.NestedTensorCPU, self, padding, output_size)
    batch, lengths = found
    least = [len(lengths), int(lengths.max()), batch.size(2)]
    wanted = least if output_size is None else list(output_size)
    if any(size < needed for size, needed in zip(wanted, least, strict=True)):
        raise RuntimeError("Value in output_size is less than NestedTensor padded size. Truncation is not supported.")
    inside = _within(lengths.to(self.device), batch.size(1)).unsqueeze(2)
    filled = batch.where(inside, padding)[:, : wanted[1]]
    missing = [0, wanted[2] - filled.size(2), 0, wanted[1] - filled.size(1), 0, wanted[0] - filled.size(0)]
    return torch.nn.functional.pad(filled, missing, value=padding) if any(missing) else filled


def transformer_encoder_layer(src: Tensor, *args: Any) -> Tensor:
    """Kernel of nested tensors: over a batch with padding a layer is the one of batches, with a mask."""
    found = _batch_of(src)
    if found is None:
        return _of_cpu(aten._transformer_encoder_layer_fwd.default, torch._C.DispatchKey.NestedTensorCPU, src, *args)
    if len(args) > _WITHOUT_MASK and args[_WITHOUT_MASK] is not None:
        raise RuntimeError("_transformer_encoder_layer_fwd: a nested tensor takes no mask, its sizes are one")
    batch, lengths = found
    hidden = ~_within(lengths.to(src.device), batch.size(1))
    return _over(aten._transformer_encoder_layer_fwd.default(batch, *args[:_WITHOUT_MASK], hidden, 1), lengths)


def packed(nested: Tensor) -> Tensor:
    """The tensors of a batch with padding one after the other; any other nested tensor as it is."""
    return nested if _batch_of(nested) is None else nested.contiguous()


# Where the mask is among the arguments of a layer that come after `src`.
_WITHOUT_MASK = [a.name for a in aten._transformer_encoder_layer_fwd.default._schema.arguments].index("mask") - 1
KERNELS: dict[str, Callable[..., Any]] = {
    "to_padded_tensor": to_padded_tensor,
    "_transformer_encoder_layer_fwd": transformer_encoder_layer,
}


def _over(batch: Tensor, lengths: Tensor) -> Tensor:
    """The nested tensor of a contiguous batch (sequences, longest, features); lengths on the host."""
    count, longest, features = batch.shape
    sizes = torch.stack([lengths, torch.full_like(lengths, features)], 1)
    strides = torch.tensor([[features, 1]]).repeat(count, 1)
    return torch._nested_view_from_buffer(batch.view(-1), sizes, strides, torch.arange(count) * (longest * features))


def _batch_of(nested: Tensor) -> tuple[Tensor, Tensor] | None:
    """The batch that a nested tensor lies over, and the lengths of its sequences; None if it lies otherwise."""
    sizes, offsets = nested._nested_tensor_size(), nested._nested_tensor_storage_offsets()
    if nested.dim() != 3 or not sizes.numel() or not int(sizes[0, 1]):
        return None
    values = nested.values()  # gaps included
    count, features = len(sizes), int(sizes[0, 1])
    row = values.numel() // count
    rows = bool(
        (nested._nested_tensor_strides() == torch.tensor([features, 1])).all() and (sizes[:, 1] == features).all()
    )
    if not rows or row % features or values.numel() % count or not torch.equal(offsets, torch.arange(count) * row):
        return None
    return values.view(count, row // features, features), sizes[:, 0]


def _within(lengths: Tensor, longest: int) -> Tensor:
    """(sequences, longest): whether a place is one of the sequence's."""
    return torch.arange(longest, device=lengths.device) < lengths.unsqueeze(1)


def _of_cpu(op: OpOverload, key: torch._C.DispatchKey, *args: Any) -> Tensor:
    """What PyTorch's kernel of that key makes of the device's tensors: it only calls other ops."""
    result: Tensor = op.redispatch(torch._C.DispatchKeySet(key), *args)
    return result
