"""Builds torch_pjrt._C against the torch that is installed; everything else is in pyproject.toml."""

from __future__ import annotations

import os
import sys
from glob import glob

from setuptools import setup

# A core of an earlier build, which may not load any more, is not needed to build a new one.
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

try:
    import torch
    from torch.utils.cpp_extension import BuildExtension, CppExtension
except ImportError as error:
    raise SystemExit(
        "torch-pjrt is built against the torch it will run with, and none is installed here. Install torch "
        ">=2.11,<2.15 with setuptools and ninja first, then: pip install --no-build-isolation torch-pjrt"
    ) from error


class Build(BuildExtension):
    """BuildExtension with object files in one place, so that ninja recompiles only what changed.

    pip gives every (editable) build a fresh temporary folder otherwise, and each would compile everything.
    """

    def finalize_options(self) -> None:
        super().finalize_options()
        self.build_temp = f"build/{sys.implementation.cache_tag}-torch-{torch.__version__}"
        self.force = True  # setuptools would keep a library built for another torch; ninja knows what is up to date


setup(
    ext_modules=[
        CppExtension(
            "torch_pjrt._C",
            sources=sorted(glob("torch_pjrt/csrc/*.cpp")),
            depends=sorted(glob("torch_pjrt/csrc/*.h")),
            # C++20: torch's own headers use it from 2.13 on. Hidden: no symbol of ours may meet another extension's.
            extra_compile_args=["-O2", "-std=c++20", "-fvisibility=hidden", "-Wall", "-g0"],
        )
    ],
    cmdclass={"build_ext": Build.with_options(use_ninja=True)},
)
