"""All tests run on XLA:CPU; each begins in the default eager mode with all counts at zero."""

from __future__ import annotations

import os
from collections.abc import Iterator

os.environ["JAX_PLATFORMS"] = "cpu"

import pytest
import torch

DEVICE = torch._C._get_privateuse1_backend_name()


@pytest.fixture(autouse=True)
def _fresh_device() -> Iterator[None]:
    module = getattr(torch, DEVICE)
    module.set_eager_mode("fused")
    module.reset_metrics()
    yield
    module.set_eager_mode("fused")
