"""DTensors over a mesh of this process's devices lie as their placements say, where a program says so.

That is where it makes one (`distribute_tensor`, `from_local`, the factories) and where it moves one (`redistribute`).
Where an op's result lies is XLA's choice. In a graph that is traced only moving says so: a DTensor that is made there
is a tensor of the program that lies somewhere already, and has to stay that tensor, since the program may write to it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from .. import _C
from .local_mesh import Laid, axes_of, index_of, laid_of

if TYPE_CHECKING:
    from torch.distributed.tensor._dtensor_spec import DTensorSpec

# Whether a DTensor that is made now is another one, moved.
_moving: ContextVar[bool] = ContextVar("moving", default=False)


@functools.cache
def have_dtensors_placed() -> None:
    """Change how DTensors are made and moved, once."""
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor import _random as random
    from torch.distributed.tensor._redistribute import Redistribute

    make, forward, backward = DTensor.__new__, Redistribute.forward, Redistribute.backward

    @functools.wraps(make)
    def made(cls: type, local_tensor: Tensor, spec: DTensorSpec, *args: Any, **settings: Any) -> Tensor:
        laid = laid_of(spec.mesh)
        local = local_tensor if laid is None else _placed(local_tensor, spec, laid)
        dtensor: Tensor = make(cls, local, spec, *args, **settings)
        return dtensor

    def moved(ctx: Any, input: Any, mesh: Any, placements: Any, *settings: Any) -> Any:
        with _being_moved(tuple(placements) != input.placements):
            return forward(ctx, input, mesh, placements, *settings)

    def moved_back(ctx: Any, gradient: Any) -> Any:
        with _being_moved(True):
            return backward(ctx, gradient)

    DTensor.__new__ = made  # type: ignore[assignment]
    Redistribute.forward = staticmethod(moved)  # type: ignore[method-assign,assignment]
    Redistribute.backward = staticmethod(moved_back)  # type: ignore[method-assign,assignment]
    if random._rng_tracker is None:
        random._rng_tracker = OneStream()  # type: ignore[assignment]


@contextmanager
def _being_moved(moved: bool) -> Iterator[None]:
    before = _moving.set(moved)
    try:
        yield
    finally:
        _moving.reset(before)


class OneStream:
    """What DTensor asks about random numbers: they are drawn for the whole tensor, so there is nothing to arrange."""

    distribute_region_enabled = False

    @contextmanager
    def _distribute_region(self, spec: DTensorSpec, generator: torch.Generator | None = None) -> Iterator[None]:
        yield


def _placed(tensor: Tensor, spec: DTensorSpec, laid: Laid) -> Tensor:
    """The tensor, lying over the devices as the spec says: another one if it is moved, else itself.

    A view of a part of a storage stays where that is.
    """
    index = index_of(laid)
    if tensor.is_meta or tensor.device.index != index or any(p.is_partial() for p in spec.placements):
        return tensor
    axes = _split(tensor.ndim, spec, axes_of(spec.mesh, laid))
    if _moving.get():
        moved: Tensor = torch.ops.torch_pjrt.placed(tensor.detach(), index, laid.grid, axes)
        return moved.requires_grad_(tensor.requires_grad)
    if type(tensor) in (Tensor, nn.Parameter) and not torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        array = _C.held_array(tensor)
        if array is not None:
            _put(tensor, array, axes, laid)
        else:
            with _disable_current_modes():
                _C.replace_value(tensor, torch.ops.torch_pjrt.placed(tensor.detach(), index, laid.grid, axes))
    return tensor


def _split(ndim: int, spec: DTensorSpec, axes: Sequence[tuple[int, ...]]) -> list[str]:
    """For each of a tensor's dimensions the axes that it lies along, as `placed` takes them."""
    along: list[list[int]] = [[] for _ in range(ndim)]
    for placement, numbers in zip(spec.placements, axes, strict=True):
        dim = getattr(placement, "dim", None)
        if dim is not None:
            along[dim] += numbers
    return [",".join(map(str, numbers)) for numbers in along]


def _put(tensor: Tensor, array: Any, axes: Sequence[str], laid: Laid) -> None:
    import jax

    from ..runtime.meshes import together

    wanted = together(laid.numbers).sharding(laid.grid, axes, array.shape)
    if not array.sharding.is_equivalent_to(wanted, array.ndim):
        with jax.enable_x64(True):
            _C.replace_array(tensor, jax.device_put(array, wanted))
