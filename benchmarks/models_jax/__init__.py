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
Train = Callable[[Params, State, Array], tuple[Array, State]]
Infer = Callable[[Params, State, Array], Array]


class Model(NamedTuple):
    """A model as functions.

    Attributes:
        init: PyTorch's `state_dict` as numpy arrays -> (parameters, state that isn't trained).
        train: (parameters, state, inputs) -> (logits, new state), as in training mode.
        infer: (parameters, state, inputs) -> logits, as in evaluation mode.
    """

    init: Callable[[Weights], tuple[Params, State]]
    train: Train
    infer: Infer


def stateless(apply: Callable[[Params, Array], Array]) -> tuple[Train, Infer]:
    """`train` and `infer` of a model that is the same in both modes."""
    return lambda params, state, x: (apply(params, x), state), lambda params, state, x: apply(params, x)


def build(model: str) -> Model:
    """The JAX model of that name."""
    from . import bert, gpt, mlp, resnet

    return {"mlp": mlp.MODEL, "resnet": resnet.MODEL, "gpt": gpt.MODEL, "bert": bert.MODEL}[model]
