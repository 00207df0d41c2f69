"""Import torchvision where its C++ ops cannot be loaded: its wheel for CUDA beside a PyTorch without."""

from __future__ import annotations

import importlib

import torch

# Ops that torchvision describes to PyTorch whether it could load them or not. No test here calls one.
_DESCRIBED = ("nms", "qnms")


def import_torchvision() -> None:
    """Import it; if PyTorch does not know the ops that it describes, declare them without a kernel and try again.

    timm imports torchvision for its data pipeline, which these tests do not use.
    """
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::nms does not exist" not in str(error):
            raise
        for name in _DESCRIBED:
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        importlib.import_module("torchvision")
