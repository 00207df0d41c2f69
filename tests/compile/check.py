"""Hold a compiled function on the device against the same function on the CPU, run by eager PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from ..conftest import DEVICE


def on_device(x: Any) -> Any:
    """A copy of a tensor on the device with its strides; anything else as it is."""
    if not isinstance(x, torch.Tensor):
        return x
    moved = torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device=DEVICE) if x.numel() else x.to(DEVICE)
    with torch.no_grad():
        moved.copy_(x)
    return moved.requires_grad_(x.requires_grad)


def check(fn: Callable[..., Any], *args: Any, calls: int = 2, **settings: Any) -> Callable[..., Any]:
    """Assert that `fn`, compiled and called on the device, returns and writes what it does on the CPU.

    Arguments that require gradients get them from the sum of all floating outputs, and the gradients are compared too.
    Returns the compiled function.
    """
    compiled = torch.compile(fn, backend="pjrt", fullgraph=True, **settings)
    theirs = tree_map(
        lambda x: x.detach().clone().requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x, args
    )
    ours = tree_map(on_device, args)
    for _ in range(calls):
        expected, got = fn(*theirs), compiled(*ours)
        same(got, expected)
        _backward(expected)
        _backward(got)
        same(_gradients(ours), _gradients(theirs))
        same(ours, theirs)
    return compiled


def check_module(
    module: nn.Module, *args: Any, rtol: float | None = None, atol: float | None = None, **settings: Any
) -> nn.Module:
    """Assert that a module's outputs, gradients and buffers on the device, compiled, are the CPU's. Returns it."""
    module.zero_grad()
    there = copy.deepcopy(module).to(DEVICE)
    for part in there.modules():
        if hasattr(part, "tie_weights"):
            part.tie_weights()  # nn.Module.to unties weights on a device that PyTorch does not know
    compiled = torch.compile(there, backend="pjrt", **settings)
    for _ in range(2):
        expected = module(*args)
        got = compiled(*tree_map(on_device, args))
        same(got, expected, rtol, atol)
        _backward(expected)
        _backward(got)
    wanted = dict(module.named_parameters())
    for name, parameter in there.named_parameters():
        assert (parameter.grad is None) == (wanted[name].grad is None), name
        if parameter.grad is not None:
            torch.testing.assert_close(
                parameter.grad.cpu(), wanted[name].grad, rtol=rtol, atol=atol, msg=lambda m, n=name: f"{n}: {m}"
            )
    buffers = dict(module.named_buffers())
    for name, buffer in there.named_buffers():
        torch.testing.assert_close(buffer.cpu(), buffers[name], rtol=rtol, atol=atol, msg=lambda m, n=name: f"{n}: {m}")
    return there


def check_architecture(
    net: nn.Module, given: dict[str, Any], result: Callable[[Any], torch.Tensor], fullgraph: bool = True
) -> None:
    """Assert that a large model's output and the gradients of its mean square are the CPU's.

    Args:
        given: its arguments by name, on the CPU.
        result: the tensor of its output that is looked at.
    """
    there = copy.deepcopy(net).to(DEVICE)
    compiled = torch.compile(there, backend="pjrt", fullgraph=fullgraph)
    expected = result(net(**given))
    got = result(compiled(**tree_map(on_device, given)))
    same(got, expected, rtol=1e-3, atol=1e-4)
    expected.square().mean().backward()
    got.square().mean().backward()
    same_gradients(there, net)
    for (path, a), b in zip(there.named_buffers(), net.buffers(), strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-3, atol=1e-4, msg=lambda m, path=path: f"{path}: {m}")


def same_gradients(there: nn.Module, net: nn.Module) -> None:
    """Assert that the gradients of a model on the device are those of its twin on the CPU."""
    for (path, p), q in zip(there.named_parameters(), net.parameters(), strict=True):
        if q.grad is None:  # AOTAutograd gives zeros to what only an unused output depends on
            assert p.grad is None or not p.grad.any(), path
        else:
            atol = 1e-3 * float(q.grad.abs().max()) + 1e-6
            torch.testing.assert_close(
                p.grad.cpu(), q.grad, rtol=1e-2, atol=atol, msg=lambda m, path=path: f"{path}: {m}"
            )


def same(got: Any, expected: Any, rtol: float | None = None, atol: float | None = None) -> None:
    """Assert equal structure, tensors close and of the same dtype, shape and strides, on the device each."""
    ours, theirs = tree_leaves(got), tree_leaves(expected)
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        if not isinstance(b, torch.Tensor):
            assert a == b
            continue
        torch.testing.assert_close(
            a.detach().cpu().resolve_conj(), b.detach().resolve_conj(), rtol=rtol, atol=atol, equal_nan=True
        )


def _backward(outputs: Any) -> None:
    differentiable = [
        t for t in tree_leaves(outputs) if isinstance(t, torch.Tensor) and t.requires_grad and t.grad_fn is not None
    ]
    if differentiable:
        total = sum((t.real if t.is_complex() else t).sum() for t in differentiable)
        total.backward()


def _gradients(args: Any) -> list[Any]:
    return [x.grad for x in tree_leaves(args) if isinstance(x, torch.Tensor) and x.is_leaf]
