"""The benchmark models as a PyTorch user writes them. `batches` and `SHAPES` need numpy only: JAX uses them too."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from torch import nn

MODELS = ("mlp", "resnet", "gpt", "bert")

LEARNING_RATE = 1e-3
WEIGHT_DECAY = 1e-2  # torch.optim.AdamW's own default; optax's is 1e-4, so it is named everywhere

Batch = tuple[npt.NDArray[np.generic], npt.NDArray[np.int64]]


def build(model: str) -> nn.Module:
    """The PyTorch model of that name, in training mode, with weights that depend on the name only."""
    import torch

    from .bert import BERT
    from .gpt import GPT
    from .mlp import MLP
    from .resnet import ResNet18

    factories: dict[str, Callable[[], nn.Module]] = {"mlp": MLP, "resnet": ResNet18, "gpt": GPT, "bert": BERT}
    torch.manual_seed(0)
    return factories[model]().train()


def batches(model: str, count: int = 4) -> list[Batch]:
    """`count` host batches (inputs, int64 labels), e.g. mlp: float32[256, 784], int64[256]."""
    rng = np.random.default_rng(0)
    return [_batch(model, rng) for _ in range(count)]


def _batch(model: str, rng: np.random.Generator) -> Batch:
    if model == "mlp":
        return rng.standard_normal((256, 784), np.float32), rng.integers(0, 10, 256)
    if model == "resnet":
        return rng.standard_normal((32, 3, 32, 32), np.float32), rng.integers(0, 10, 32)
    if model == "gpt":
        tokens = rng.integers(0, 65, (8, 257))
        return np.ascontiguousarray(tokens[:, :-1]), np.ascontiguousarray(tokens[:, 1:])
    if model == "bert":
        return rng.integers(0, 30522, (4, 32)), rng.integers(0, 30522, (4, 32))  # a step is about a second on 2 cores
    raise ValueError(f"no model is called {model!r}; there are {', '.join(MODELS)}")
