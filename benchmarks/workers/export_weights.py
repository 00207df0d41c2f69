"""Write a PyTorch model's initial state_dict as .npz, for every backend to begin with: `export_weights.py gpt OUT`."""

from __future__ import annotations

import sys

import numpy as np

from ..models import build


def main(model: str, target: str) -> None:
    np.savez(target, **{name: value.numpy() for name, value in build(model).state_dict().items()})


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
