"""Meshes of a process with four devices (`test_local_mesh.py` starts one)."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

NAME = torch._C._get_privateuse1_backend_name()


@pytest.fixture(scope="module")
def mesh() -> DeviceMesh:
    return init_device_mesh(NAME, (4,), mesh_dim_names=("tp",))


@pytest.fixture(scope="module")
def plane() -> DeviceMesh:
    return init_device_mesh(NAME, (2, 2), mesh_dim_names=("dp", "tp"))
