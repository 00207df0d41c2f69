"""Arrays of other libraries: jax.Array, and whatever speaks DLPack.

What is copied, and what is not:

* device tensor → jax.Array (`to_jax`, `jnp.asarray`): never, on any platform, where the tensor is no view (has the
  shape that it was made with) and no clone shares its memory still; of a view a copy is computed.
* jax.Array → device tensor (`from_jax`): never, if the array is on that device.
* device tensor → DLPack (`np.from_dlpack`, `torch.from_dlpack`, `jax.dlpack.from_dlpack`, CuPy): never, where PJRT's
  plugin exports its memory: cpu, cuda and rocm do. The consumer sees the tensor as it is now. What it writes may or may
  not be seen by the tensor, and later writes to the tensor are not seen by the consumer: take it for a snapshot.
* numpy array, CPU tensor or DLPack capsule of the host → device tensor, and back by `.cpu()` and `.numpy(force=True)`:
  always.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from .. import _C

if TYPE_CHECKING:
    import jax


def to_jax(tensor: torch.Tensor) -> jax.Array:
    """The content of a device tensor as a jax.Array of the same shape, dtype and device.

    The array is immutable: later writes to the tensor do not change it.

    Raises:
        RuntimeError: the tensor is on another device, or requires grad.

    Example:
        >>> jnp.sin(torch.pjrt.to_jax(x))
    """
    if tensor.requires_grad:
        raise RuntimeError("JAX does not see PyTorch's autograd graph: use to_jax(tensor.detach())")
    # JAX may share its memory with arrays that no reference count tells of: it is never donated from here on.
    return _C.exported_array(tensor.detach().resolve_conj().resolve_neg())


def from_jax(array: jax.Array) -> torch.Tensor:
    """A device tensor with the content of a jax.Array; writes to the tensor do not change the array.

    Raises:
        TypeError: it is no jax.Array, or of a dtype that PyTorch lacks.
        ValueError: it is not on one device of the platform that runs PyTorch's device; `jax.device_put` moves it.

    Example:
        >>> torch.pjrt.from_jax(jnp.arange(3))
        tensor([0, 1, 2], device='pjrt:0', dtype=torch.int32)
    """
    import jax

    from ..lowering.dtypes import to_torch
    from ..runtime.client import devices

    if not isinstance(array, jax.Array):
        raise TypeError(f"from_jax: expected a jax.Array, got {type(array).__name__}")
    placed = array.devices()
    ours = devices()
    if len(placed) > 1 or next(iter(placed)) not in ours:
        lies = "lies over" if len(placed) > 1 else "is on"
        raise ValueError(
            f"from_jax: the array {lies} {sorted(map(str, placed))}, expected it on one of {[str(d) for d in ours]}: "
            "move it there with jax.device_put"
        )
    return _C.tensor_of_array(array, to_torch(array.dtype), ours.index(next(iter(placed))), True)


def install(name: str) -> None:
    """Make tensors of the device speak DLPack as the PJRT device that they are on, and JAX's own protocol."""
    export, device = torch.Tensor.__dlpack__, torch.Tensor.__dlpack_device__

    @functools.wraps(export)
    def __dlpack__(self: torch.Tensor, **how: Any) -> Any:
        if self.device.type != name or torch.overrides.has_torch_function_unary(self):
            return export(self, **how)
        if self.requires_grad:
            raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
        if self.is_conj():
            raise BufferError("Can't export tensors with the conjugate bit set")
        if how.get("stream") == -1:  # PyTorch's way to say that nothing need be waited for
            how["stream"] = None
        return _C.exported_array(self.resolve_neg()).__dlpack__(**how)

    @functools.wraps(device)
    def __dlpack_device__(self: torch.Tensor) -> Any:
        if self.device.type != name or torch.overrides.has_torch_function_unary(self):
            return device(self)
        return _C.array(torch.empty(1, device=self.device).zero_()).__dlpack_device__()

    torch.Tensor.__dlpack__ = __dlpack__  # type: ignore[method-assign]
    torch.Tensor.__dlpack_device__ = __dlpack_device__  # type: ignore[method-assign]
    torch.Tensor.__jax_array__ = property(functools.partial(_jax_protocol, name))  # type: ignore[attr-defined]


def _jax_protocol(name: str, tensor: torch.Tensor) -> Any:
    if tensor.device.type != name:
        raise AttributeError("'Tensor' object has no attribute '__jax_array__'")
    return functools.partial(to_jax, tensor)
