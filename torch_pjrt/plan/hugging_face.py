"""A step made from a Hugging Face configuration: the architecture, without weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .entry import Entry, Made
from .tape import PlanError

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "sgd": torch.optim.SGD,
    "adafactor": torch.optim.Adafactor,
}
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a step of a language model does.

    Attributes:
        train: forward, backward and optimizer; else the forward pass alone.
        sequence: tokens of one example.
        dtype: of parameters and activations.
        optimizer: one of `OPTIMIZERS`.
        layers: how many layers, instead of the configuration's; None: the configuration's.
    """

    train: bool = True
    sequence: int = 2048
    dtype: torch.dtype = torch.bfloat16
    optimizer: str = "adamw"
    layers: int | None = None


def hugging_face_entry(file: str, recipe: Recipe) -> Entry:
    """The entry of a `config.json` of a causal language model.

    Raises PlanError if there is no such file, it is no configuration, or transformers is missing.
    """
    config = _read(file, recipe)

    def make(batch: int, remat: bool) -> Made:
        return _make(config, recipe, batch, remat)

    return Entry(f"hf:{file}", make, takes_batch=True, takes_remat=recipe.train)


def _read(file: str, recipe: Recipe) -> Any:
    path = Path(file)
    if path.is_dir():
        path = path / "config.json"
    if not path.is_file():
        raise PlanError(f"hf:{file}: no such file; give the model's config.json (nothing is downloaded)")
    try:
        said = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise PlanError(f"hf:{file} is no JSON: {error}") from None
    kind = said.pop("model_type", None) if isinstance(said, dict) else None
    if kind is None:
        raise PlanError(f"hf:{file} has no model_type; it is no configuration of a model")
    try:
        from transformers import AutoConfig
    except ImportError:
        raise PlanError("hf: needs transformers: pip install 'torch-pjrt[plan]'") from None
    said.pop("quantization_config", None)
    try:
        config = AutoConfig.for_model(kind, **said)
    except ValueError as error:
        raise PlanError(f"hf:{file}: {error}") from None
    config.use_cache = False
    if recipe.layers is not None:
        config.num_hidden_layers = recipe.layers
        if getattr(config, "layer_types", None):
            config.layer_types = config.layer_types[: recipe.layers]
    return config


def _make(config: Any, recipe: Recipe, batch: int, remat: bool) -> Made:
    from transformers import AutoModelForCausalLM

    device = torch._C._get_privateuse1_backend_name()
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=recipe.dtype, attn_implementation="sdpa")
    ids = torch.zeros(batch, recipe.sequence, dtype=torch.int64, device=device)
    if not recipe.train:
        model.eval()

        @torch.no_grad()
        def infer(ids: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = model(input_ids=ids).logits
            return logits

        return infer, [ids]
    model.train()
    if remat:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    optimizer = OPTIMIZERS[recipe.optimizer](model.parameters(), lr=1e-4)

    def train(ids: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return train, [ids]
