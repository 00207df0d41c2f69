"""The same models in pure JAX, as a JAX user writes them, from the PyTorch models' weights (`state_dict` names)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from jax import Array

Params = dict[str, Array]
State = dict[str, Array]
Weights = dict[str, npt.NDArray[np.generic]]


class Model(NamedTuple):
    """A model as functions.

    Attributes:
        init: PyTorch's `state_dict` as numpy arrays -> (parameters, state that isn't trained).
        apply: (parameters, state, inputs) -> (logits, new state).
    """

    init: Callable[[Weights], tuple[Params, State]]
    apply: Callable[[Params, State, Array], tuple[Array, State]]


def build(model: str) -> Model:
    """The JAX model of that name."""
    from . import gpt, mlp, resnet

    return {"mlp": mlp.MODEL, "resnet": resnet.MODEL, "gpt": gpt.MODEL}[model]
