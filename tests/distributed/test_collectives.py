"""Every collective gives device tensors what gloo gives CPU tensors."""

from __future__ import annotations

import pytest

from .ranks import succeed


@pytest.mark.parametrize("size", [2, 3])
def test_every_collective_gives_what_gloo_gives(size: int) -> None:
    succeed("collectives", size=size)
