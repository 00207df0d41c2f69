"""A little of everything that sparse tensors do; `make sparse` runs the rest. Expected values are CPU PyTorch's."""

from __future__ import annotations

import io
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ...conftest import DEVICE
from ..agree import agree, both_raise
from .matrices import coalesced, counting, other, striped, uncoalesced
from .taken_apart import sparse_agree


def test_tensors_are_made_moved_saved_and_printed() -> None:
    def program(d: str) -> Any:
        x = uncoalesced(d)
        file = io.BytesIO()
        torch.save(x, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=True)
        text = repr(x).replace(f"device='{d}:0', ", "")
        return [text, x._nnz(), x.is_coalesced(), x, x.cpu().to(d), x.clone(), loaded, x.to_dense().to_sparse()]

    sparse_agree(program)


def test_entries_are_added_multiplied_and_masked() -> None:
    def program(d: str) -> Any:
        x, y = uncoalesced(d), other(d)
        return [
            x + y,
            x * y,
            x * 2,
            -y,
            y.sin(),
            x.sparse_mask(y),
            counting(d, 2, 3) + x,
            y * counting(d, 2, 3),
            x.sum(),
        ]

    sparse_agree(program)


def test_products_of_every_kind() -> None:
    def program(d: str) -> Any:
        x, dense = coalesced(d), counting(d, 3, 2)
        rows = x.to_sparse_csr()
        blocks = striped(d).to_sparse_bsr((2, 2))
        sampled = torch.sparse.sampled_addmm(rows, counting(d, 2, 2), counting(d, 2, 3), beta=2)
        return [x @ dense, rows @ dense, blocks @ counting(d, 6, 2), rows, blocks, sampled, torch.sparse.mm(x, x.t()),
                rows.to_sparse_csc()]  # fmt: skip

    sparse_agree(program)


def test_what_the_cpu_refuses_is_refused() -> None:
    for program in (
        lambda d: coalesced(d) @ counting(d, 4, 2),
        lambda d: coalesced(d) + counting(d, 2, 3),
        lambda d: coalesced(d) == coalesced(d),
        lambda d: uncoalesced(d).values(),
        lambda d: torch.sparse_csr_tensor([0, 2, 1], [0, 1], [1.0, 2.0], (2, 2), device=d, check_invariants=True),
    ):
        both_raise(program)


def test_what_has_no_kernel_here_runs_on_the_cpu_and_is_counted() -> None:
    def program(d: str) -> Tensor:
        start = torch.sparse_coo_tensor([[0], [1]], [5.0], (2, 2), device=d)
        return torch.sspaddmm(start, coalesced(d), counting(d, 3, 2), beta=2)

    sparse_agree(program)
    assert getattr(torch, DEVICE).metrics()["fallbacks"] == {"aten::sspaddmm.out": 1}


def test_embeddings_with_sparse_gradients_train() -> None:
    def program(d: str) -> Any:
        table = nn.Embedding(6, 3, sparse=True, padding_idx=0).to(d)
        optimizer = torch.optim.SparseAdam(list(table.parameters()), lr=0.1)
        table(torch.tensor([[1, 2, 2], [0, 5, 1]], device=d)).square().sum().backward()
        optimizer.step()
        return [table.weight, table.weight.grad]

    sparse_agree(program)


def test_a_graph_layer_learns_its_weights_and_its_adjacency() -> None:
    def program(d: str) -> Any:
        torch.manual_seed(0)
        edges = torch.rand(4).to(d).requires_grad_()
        linear = nn.Linear(3, 2).to(d)
        optimizer = torch.optim.SGD([edges, *linear.parameters()], lr=0.1)
        for _ in range(2):
            adjacency = torch.sparse_coo_tensor([[0, 1, 2, 2], [1, 2, 0, 1]], edges, (3, 3), device=d)
            loss = torch.sparse.mm(adjacency, linear(counting(d, 3, 3))).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return [loss, edges, linear.weight]

    agree(program, rtol=1e-4, atol=1e-5)
    assert getattr(torch, DEVICE).metrics()["fallbacks"] == {}


def test_every_kernel_of_ours_is_registered_and_import_torch_imports_none() -> None:
    from torch_pjrt.eager.sparse.kernels import KERNELS
    from torch_pjrt.eager.sparse.names import OURS

    assert {(f"aten::{name}", key) for key, names in OURS.items() for name in names} == set(KERNELS)
    loaded = "import sys, torch; print(sorted({'jax', 'torch_pjrt.eager.sparse.kernels'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_tensors_on_two_devices_are_refused() -> None:
    x, y = coalesced(DEVICE), coalesced("cpu")
    dense = counting("cpu", 3, 2)
    for program in (
        lambda: x + y,
        lambda: torch.smm(x, dense),
        lambda: torch.sspaddmm(x, x.t(), dense),
        lambda: torch.mm(x, dense.to(DEVICE), out=torch.empty(2, 2)),
        lambda: x.to_sparse_csr() @ dense,
    ):
        with pytest.raises(RuntimeError, match=r"same device|two devices"):
            program()
    assert (x * torch.tensor(2.0)).to_dense().cpu().equal(y.to_dense() * 2)
