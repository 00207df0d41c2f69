"""torch-pjrt: one native PyTorch device backend for every chip with a PJRT plugin.

Nothing here needs to be imported: `import torch` finds the backend by its entry point (group `torch.backends`).
"""

__version__ = "0.1.0"


def _autoload() -> None:
    """Register the device with PyTorch: names, kernels and hooks. JAX starts on the device's first use."""
    from .device import register

    register()


def __getattr__(name: str) -> object:
    """`torch_pjrt.plan`, which few programs need and which imports much."""
    if name == "plan":
        import importlib

        return importlib.import_module(".plan", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


import torch  # noqa: E402  (importing torch may call _autoload, which must exist by then)

_autoload()
del torch
