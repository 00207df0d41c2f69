"""Every test starts with nothing compiled."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from ..conftest import DEVICE


@pytest.fixture(autouse=True)
def _nothing_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    getattr(torch, DEVICE).compiler.reset()
    yield
    torch._dynamo.reset()
