"""Gradients to, from and through sparse tensors, and models trained with them. Expected values are CPU PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ..agree import agree
from .matrices import coalesced, counting, hybrid, other, uncoalesced
from .taken_apart import sparse_agree

PROGRAMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mm": lambda x, y: torch.sparse.mm(x, y),
    "@": lambda x, y: (x @ y).sin(),
    "addmm": lambda x, y: torch.sparse.addmm(y[:2], x, y, beta=2, alpha=3),
    "to_dense": lambda x, y: x.to_dense() @ y,
    "coalesce": lambda x, y: x.coalesce().values().square(),
    "sum": lambda x, y: torch.sparse.sum(x, 0).to_dense() * y[:, 0],
    "sum of all": lambda x, y: torch.sparse.sum(x) * y,
    "softmax": lambda x, y: torch.sparse.softmax(x, 1).to_dense() @ y,
    "log_softmax": lambda x, y: torch.sparse.log_softmax(x, 0).coalesce().values().sin(),
    "functions": lambda x, y: torch.sparse.sum(-x.coalesce().abs() * 2 + x.coalesce()) * y,
    "dense + sparse": lambda x, y: (y.t() + x) * 2,
    "sparse * sparse": lambda x, y: torch.sparse.sum((x * x).coalesce(), 1).to_dense(),
    "transpose": lambda x, y: torch.sparse.mm(x.t(), y[:2]),
    "sparse @ sparse": lambda x, y: torch.sparse.mm(x.coalesce(), x.coalesce().t()).to_dense(),
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS.keys())
@pytest.mark.parametrize("make", [coalesced, uncoalesced])
def test_gradients_of(make: Callable[[str], Tensor], program: Callable[[Tensor, Tensor], Tensor]) -> None:
    def both(d: str) -> Any:
        x, y = make(d).requires_grad_(), counting(d, 3, 2).requires_grad_()
        result = program(x, y)
        (result * (1 + torch.arange(result.numel(), device=d).reshape(result.shape))).sum().backward()
        assert x.grad is not None
        return [result, x.grad.to_dense(), y.grad]

    sparse_agree(both)


def test_gradients_reach_the_values_and_dense_tensors() -> None:
    def program(d: str) -> Any:
        values = counting(d, 4).requires_grad_()
        x = torch.sparse_coo_tensor([[1, 0, 1, 1], [2, 2, 0, 2]], values, (2, 3), device=d)
        dense = counting(d, 3, 3).requires_grad_()
        picked = dense[:2].sparse_mask(other(d))
        result = (
            torch.sparse.mm(x, dense).square().sum() + torch.sparse.sum(picked.coalesce()) + dense.to_sparse().sum()
        )
        result.backward()
        return [result, values.grad, dense.grad]

    agree(program)


def test_gradients_of_hybrid_tensors() -> None:
    def program(d: str) -> Any:
        x = hybrid(d).requires_grad_()
        (torch.sparse.sum(x, 1).to_dense().square().sum() + torch.sparse.sum(x, 0).sin().sum()).backward()
        return x.grad

    sparse_agree(program)


def test_gradients_of_compressed_products() -> None:
    def program(d: str) -> Any:
        x, y = coalesced(d).to_sparse_csr().requires_grad_(), counting(d, 3, 2).requires_grad_()
        left = counting(d, 2, 3).requires_grad_()
        sampled = torch.sparse.sampled_addmm(x, left, counting(d, 3, 3))
        ((x @ y).sin().sum() + sampled.to_dense().square().sum()).backward()
        return [x.grad.to_dense(), y.grad, left.grad]

    agree(program, rtol=1e-4, atol=1e-4)


def test_gradcheck_of_a_sparse_product() -> None:
    def program(d: str) -> bool:
        x = coalesced(d, torch.float64).requires_grad_()
        y = counting(d, 3, 2).double().requires_grad_()
        return torch.autograd.gradcheck(torch.sparse.mm, (x, y), masked=True)

    agree(program)


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "SparseAdam": lambda p: torch.optim.SparseAdam(list(p), lr=0.1),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_embeddings_with_sparse_gradients_train(optimizer: Callable[[Any], torch.optim.Optimizer]) -> None:
    def program(d: str) -> Any:
        table, bag = (
            nn.Embedding(6, 3, sparse=True, padding_idx=0).to(d),
            nn.EmbeddingBag(5, 3, mode="sum", sparse=True).to(d),
        )
        stepping = optimizer([*table.parameters(), *bag.parameters()])
        for words in ([[1, 2, 2], [0, 5, 1]], [[3, 3, 1], [0, 0, 4]]):
            stepping.zero_grad()
            (
                table(torch.tensor(words, device=d)).square().sum() + bag(torch.tensor(words, device=d) % 5).sin().sum()
            ).backward()
            assert table.weight.grad is not None and table.weight.grad.is_sparse
            stepping.step()
        return [table.weight, bag.weight, table.weight.grad]

    sparse_agree(program)


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_a_graph_network_trains_on_batches_of_sparse_adjacencies(layout: torch.layout) -> None:
    def program(d: str) -> Any:
        torch.manual_seed(0)
        graphs = [(torch.rand(8, 8) < 0.3).float().to_sparse(), (torch.rand(8, 8) < 0.3).float().to_sparse()]
        features, targets = torch.randn(8, 4), torch.arange(8) % 3
        first, second = nn.Linear(4, 5).to(d), nn.Linear(5, 3).to(d)
        stepping = torch.optim.Adam([*first.parameters(), *second.parameters()], lr=0.05)
        losses = []
        for _ in range(2):
            for graph in torch.utils.data.DataLoader(graphs, batch_size=None):
                adjacency = graph.to_sparse(layout=layout) if layout != torch.sparse_coo else graph
                adjacency = adjacency.to(d)
                hidden = torch.relu(adjacency @ first(features.to(d)))
                loss = nn.functional.cross_entropy(adjacency @ second(hidden), targets.to(d))
                stepping.zero_grad()
                loss.backward()
                stepping.step()
                losses.append(loss.detach())
        return [losses, first.weight, second.weight]

    agree(program, rtol=1e-4, atol=1e-5)
