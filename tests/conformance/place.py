"""Put a sample's tensors on the device as they lie on the CPU: views, aliases, conj and neg bits included."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

DEVICE = torch._C._get_privateuse1_backend_name()


def place(tree: Any) -> Any:
    """A copy of a tree of arguments on the device; what is no tensor, device, generator or module stays what it is."""
    seen: dict[int, Any] = {}
    wholes: dict[int, Tensor] = {}

    def one(x: Any) -> Any:
        if id(x) not in seen:
            seen[id(x)] = _moved(x, wholes)
        return seen[id(x)]

    return tree_map(one, tree)


def duplicate(tree: Any) -> Any:
    """The same on the CPU: tensors that the CPU run may change, the originals kept as they are for the device's run."""
    clones: dict[int, Any] = {}
    for x in tensors(tree):
        if not plain(x):  # deepcopy wants a storage
            clones[id(x)] = x.detach().clone().requires_grad_(x.requires_grad)
        elif x.is_conj() or x.is_neg():  # deepcopy forgets the bits
            clones[id(x)] = _with_bits(x.detach()).requires_grad_(x.requires_grad)
        elif not x.is_leaf:
            clones[id(x)] = copy.deepcopy(x.detach()).requires_grad_(x.requires_grad)
    return copy.deepcopy(tree, clones)


def _with_bits(x: Tensor) -> Tensor:
    """A copy with the lazy bits that x has."""
    if x.is_neg():
        return _with_bits(x._neg_view())._neg_view()
    return x.conj().clone().conj() if x.is_conj() else x.clone()


def tensors(tree: Any) -> list[Tensor]:
    """The tensors of a tree, in order."""
    return [x for x in tree_flatten(tree)[0] if isinstance(x, Tensor)]


def map_tensors(function: Callable[[Tensor], Any], tree: Any) -> Any:
    """The tree with `function` applied to its tensors."""
    leaves, spec = tree_flatten(tree)
    return tree_unflatten([function(x) if isinstance(x, Tensor) else x for x in leaves], spec)


def plain(x: Any) -> bool:
    """Whether x is a strided tensor and no subclass."""
    return isinstance(x, Tensor) and x.layout == torch.strided and type(x) in (Tensor, torch.nn.Parameter)


def _moved(x: Any, wholes: dict[int, Tensor]) -> Any:
    if isinstance(x, torch.device):
        return torch.device(DEVICE) if x.type == "cpu" else x
    if isinstance(x, str) and x == "cpu":
        return DEVICE
    if isinstance(x, torch.Generator):
        return torch.Generator(DEVICE).manual_seed(x.initial_seed())
    if isinstance(x, torch.nn.Module):
        return copy.deepcopy(x).to(DEVICE)
    if not isinstance(x, Tensor) or getattr(x, "stays_on_host", False):
        return x
    if not plain(x):
        return x.detach().to(DEVICE).requires_grad_(x.requires_grad)
    moved = _strided(x.detach(), wholes)
    return moved.requires_grad_() if x.requires_grad else moved


def _strided(x: Tensor, wholes: dict[int, Tensor]) -> Tensor:
    conj, neg = x.is_conj(), x.is_neg()
    x = x.conj() if conj else x
    x = torch._neg_view(x) if neg else x
    storage = x.untyped_storage()
    key, count = storage.data_ptr(), storage.nbytes() // x.element_size()
    if x.numel() * x.element_size() == storage.nbytes() and key not in wholes and _dense(x):
        moved = x.to(DEVICE)
        wholes[key] = moved.as_strided((count,), (1,), 0)  # of the views of it that may follow
    else:
        if key not in wholes or wholes[key].dtype != x.dtype:
            wholes[key] = x.as_strided((count,), (1,), 0).to(DEVICE)
        moved = wholes[key].as_strided(x.shape, x.stride(), x.storage_offset())
    moved = torch._neg_view(moved) if neg else moved
    return moved.conj() if conj else moved


def _dense(x: Tensor) -> bool:
    expected = 1
    for stride, size in sorted((s, n) for n, s in zip(x.shape, x.stride(), strict=True) if n != 1):
        if stride != expected:
            return False
        expected *= size
    return x.numel() > 0
