"""COO tensors: made, moved, converted, computed with. Expected values are CPU PyTorch's."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ...conftest import DEVICE
from ..agree import agree, both_raise
from .matrices import COO, coalesced, counting, empty, hybrid, other, uncoalesced
from .taken_apart import refused_alike, sparse_agree

Make = Callable[..., Tensor]
EACH = pytest.mark.parametrize("make", COO.values(), ids=COO.keys())


@EACH
def test_tensors_are_made_moved_copied_and_saved(make: Make) -> None:
    def program(d: str) -> Any:
        x = make(d)
        file = io.BytesIO()
        torch.save(x, file)
        file.seek(0)
        on_host = x.cpu()
        assert on_host.device.type == "cpu" and x.device.type == torch.device(d).type
        copied = torch.sparse_coo_tensor(size=(1,), device=d).copy_(x) if x.dim() == 1 else torch.empty_like(x).copy_(x)
        return [x, on_host.to(d), x.clone(), x.detach(), copied, torch.load(file, weights_only=True), x.double(),
                torch.zeros_like(x), x.to_dense(), x.to_dense().to_sparse(), x.to_dense().to_sparse(1)]  # fmt: skip

    sparse_agree(program)


@EACH
def test_what_a_tensor_says_of_itself(make: Make) -> None:
    def program(d: str) -> Any:
        x = make(d)
        said = [x._nnz(), x.is_coalesced(), x.sparse_dim(), x.dense_dim(), x.numel(), x.is_sparse, x._indices(),
                x._values(), repr(x).replace(f"device='{d}:0', ", "")]  # fmt: skip
        whole = x.coalesce()
        return [*said, whole.is_coalesced(), whole._nnz(), whole.indices(), whole.values()]

    agree(program)


@pytest.mark.parametrize("make", [coalesced, hybrid, empty])
def test_functions_that_keep_zeros(make: Make) -> None:
    def program(d: str) -> Any:
        x = make(d).coalesce() / 8
        names = "abs asin asinh atan atanh ceil deg2rad erf erfinv expm1 floor frac log1p neg relu round sgn sign sin"
        names += " sinh sqrt tan tanh trunc isnan signbit"
        results = [getattr(x, name)() for name in names.split()]
        written = [x.clone().sqrt_(), torch.sin(x, out=torch.empty_like(x)), x.clone().zero_()]
        return [*results, *written, x * 2, x / 2, x // 0.1, x**2, x.nan_to_num(), x.clone().mul_(3), x.isinf()]

    sparse_agree(program)


@EACH
def test_sums_differences_and_products(make: Make) -> None:
    def program(d: str) -> Any:
        x = make(d)
        dense = counting(d, *x.shape)
        return [
            x + x,
            x - x,
            x * x,
            x.clone().add_(x, alpha=2),
            x.clone().mul_(x),
            dense + x,
            dense.clone().add_(x, alpha=3),
            x * dense,
            dense * x,
            x * dense[:1],
            x.sparse_mask(x),
            dense.sparse_mask(x.coalesce()),
        ]

    sparse_agree(program)


def test_entries_of_two_tensors_meet() -> None:
    def program(d: str) -> Any:
        first, second, third = coalesced(d), uncoalesced(d), other(d)
        # Given by its entries: how many a sum of such tensors keeps is each device's own affair.
        fourth = torch.sparse_coo_tensor([[0, 1, 1, 0, 1], [2, 1, 2, 2, 0]], counting("cpu", 5), (2, 3), device=d)
        pairs = [(first, third), (first, second), (second, third), (second, second), (second, fourth)]
        return [[x + y, x * y, x.sparse_mask(y), torch.ops.aten._sparse_mask_projection(x, y)] for x, y in pairs]

    sparse_agree(program)


def test_results_are_coalesced_where_those_of_the_cpu_are() -> None:
    def program(d: str) -> Any:
        x, y, z = coalesced(d), other(d), uncoalesced(d)
        results = [x + y, x * y, x * z, z * y, x.sparse_mask(y), x.sparse_mask(z), -x, x.t(), x * 2, z * 2, z.sin()]
        return [[t.is_coalesced(), t._nnz()] for t in results]

    agree(program)


@EACH
def test_reductions(make: Make) -> None:
    def program(d: str) -> Any:
        x = make(d)
        sums = [x.sum(), torch.sparse.sum(x), *(torch.sparse.sum(x, dim) for dim in (0, 1, (0, 1), -1)), x.sum(0)]
        return [*sums, x.norm(), x.norm(1), x.coalesce().any(), torch.sparse.sum(x, dtype=torch.float64)]

    sparse_agree(program)


@EACH
def test_softmax_over_entries(make: Make) -> None:
    def program(d: str) -> Any:
        x = make(d)
        return [f(x, dim) for f in (torch.sparse.softmax, torch.sparse.log_softmax) for dim in (0, 1)]

    sparse_agree(program)


@EACH
def test_shapes_change(make: Make) -> None:
    def program(d: str) -> Any:
        x = make(d)
        index = torch.tensor([1, 0, 1, 1], device=d)
        return [
            x.unsqueeze(0),
            x.unsqueeze(-1),
            torch.cat([x, x], 0),
            torch.cat([x, x], 1),
            torch.stack([x, x]),
            *(x.index_select(dim, index) for dim in (0, 1)),
            x.index_select(0, -index),
            *(x.narrow_copy(dim, 1, 1) for dim in (0, 1)),
            *(x.select(dim, 1) for dim in (0, 1)),
            x[0],
        ]

    sparse_agree(program)


@pytest.mark.parametrize("make", [coalesced, uncoalesced, empty])
def test_matrix_products(make: Make) -> None:
    def program(d: str) -> Any:
        x = make(d)
        dense, tall = counting(d, 3, 2), counting(d, 4, 2)
        added = torch.addmm(counting(d, 2, 2), x, dense, beta=2, alpha=3)
        return [
            x @ dense,
            torch.mm(x, dense),
            torch.sparse.mm(x, dense),
            tall @ x,
            x @ dense[:, 0],
            added,
            x.t() @ tall[:2],
            torch.sparse.addmm(counting(d, 2), x, dense),
            counting(d, 2, 2).addmm_(x, dense, beta=0),
            torch.bmm(torch.stack([x, x]), torch.stack([dense, -dense])),
            torch.sparse.mm(x, x.t()),
            torch.smm(x, dense),
            torch.hspmm(x, dense),
            torch.mm(x, dense, out=torch.empty(0, device=d)),
        ]

    sparse_agree(program)


DTYPES = [torch.int64, torch.uint8, torch.float64, torch.complex64, torch.bool, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype: torch.dtype) -> None:
    def program(d: str) -> Any:
        x = uncoalesced(d, dtype)
        results = [x, x.coalesce(), x.to_dense(), x.t(), x * x, x.sum(0) if dtype != torch.bool else x]
        if dtype != torch.bool:
            results.append(x @ torch.ones(3, 2, device=d, dtype=dtype))
        return results if dtype in (torch.bool, torch.bfloat16) else [*results, x + x, x * 2]

    sparse_agree(program)


def test_functions_add_up_what_is_not_coalesced() -> None:
    sparse_agree(lambda d: [uncoalesced(d).sin(), uncoalesced(d) // 2, uncoalesced(d) * 2, uncoalesced(d).norm()])


def test_indices_are_checked_where_asked() -> None:
    def made(d: str, **how: bool) -> Tensor:
        return torch.sparse_coo_tensor([[0, 2]], torch.ones(2), (2,), device=d, **how)

    assert "size is inconsistent with indices" in both_raise(lambda d: made(d, check_invariants=True))
    assert "found negative index" in both_raise(lambda d: torch.sparse_coo_tensor([[-1]], [1.0], device=d))


REFUSED = {
    "shapes of a product": lambda d: coalesced(d) @ counting(d, 4, 2),
    "shapes of a sum": lambda d: coalesced(d) + coalesced(d).t(),
    "sparse + dense": lambda d: coalesced(d) + counting(d, 2, 3),
    "densities": lambda d: hybrid(d) + hybrid(d).to_dense().to_sparse(2),
    "dtypes of a product": lambda d: coalesced(d) @ counting(d, 3, 2).double(),
    "values before coalesce": lambda d: uncoalesced(d).values(),
    "an index out of range": lambda d: coalesced(d).index_select(1, torch.tensor([0, 3], device=d)),
    "an index of a wrong dtype": lambda d: coalesced(d).index_select(1, torch.tensor([0.0], device=d)),
    "a comparison": lambda d: coalesced(d) == coalesced(d),
    "softmax of integers": lambda d: torch.sparse.softmax(coalesced(d, torch.int64), 0),
}


@pytest.mark.parametrize("program", REFUSED.values(), ids=REFUSED.keys())
def test_what_the_cpu_refuses_is_refused(program: Callable[[str], Any]) -> None:
    refused_alike(program)


def test_batches_of_nothing() -> None:
    def program(d: str) -> Any:
        pairs = (((0, 2, 3), (0, 3, 4)), ((2, 2, 0), (2, 0, 4)))
        return [torch.bmm(torch.zeros(a, device=d).to_sparse(), torch.ones(b, device=d)) for a, b in pairs]

    agree(program)


def test_a_factor_of_integers_is_one() -> None:
    def program(d: str) -> Any:
        x = torch.tensor([[0, 1], [2, 0]], device=d)
        return torch.addmm(x, x.to_sparse(), x + 1, alpha=2.5)

    agree(program)


def test_softmax_of_no_entries_is_another_tensor() -> None:
    for device in ("cpu", DEVICE):
        x = torch.zeros(2, 3, device=device).to_sparse().coalesce().requires_grad_()
        y = torch.sparse.softmax(x, 0)
        assert y is not x and x.is_leaf
