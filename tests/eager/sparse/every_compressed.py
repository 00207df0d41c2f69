"""CSR, CSC, BSR and BSC tensors: made, moved, converted, computed with. Expected values are CPU PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ..agree import agree, both_raise
from .matrices import COMPRESSED, coalesced, counting, other, striped
from .taken_apart import refused_alike, sparse_agree

Make = Callable[[str], Tensor]
EACH = pytest.mark.parametrize("make", COMPRESSED.values(), ids=COMPRESSED.keys())
CSR, CSC, BSR = COMPRESSED["csr"], COMPRESSED["csc"], COMPRESSED["bsr"]


@EACH
def test_tensors_are_made_moved_and_copied(make: Make) -> None:
    def program(d: str) -> Any:
        x = make(d)
        assert x.cpu().device.type == "cpu"
        said = [x._nnz(), x.sparse_dim(), x.dense_dim(), x.numel(), str(x.layout)]
        return [*said, x, x.cpu().to(d), x.clone(), x.clone().copy_(x), x.to_dense(), x.to_sparse(), x.t(), x.double()]

    sparse_agree(program)


@EACH
def test_printed_as_on_the_cpu(make: Make) -> None:
    agree(lambda d: repr(make(d)).replace(f"device='{d}:0', ", ""))


@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc])
def test_layouts_become_one_another(layout: torch.layout) -> None:
    def program(d: str) -> Any:
        blocks = (2, 2) if layout in (torch.sparse_bsr, torch.sparse_bsc) else None
        wanted = {"layout": layout, "blocksize": blocks}
        dense = striped(d)
        given = [dense, dense.to_sparse(), dense.to_sparse_csr(), dense.to_sparse_csc()]
        if blocks:
            given += [dense.to_sparse_bsr(blocks), dense.to_sparse_bsc(blocks)]
        made = [x.to_sparse(**wanted) for x in given]
        deep = torch.stack([dense, -dense], -1).to_sparse(layout=layout, blocksize=blocks, dense_dim=1)
        return [*made, deep, deep.to_dense(), torch.stack([dense, dense]).to_sparse(**wanted).to_dense()]

    sparse_agree(program)


def test_constructors_infer_sizes_and_check_invariants() -> None:
    def made(d: str, begins: list[int], columns: list[int], *size: Any) -> Tensor:
        return torch.sparse_csr_tensor(begins, columns, [1.0, 2.0], *size, device=d, check_invariants=True)

    sparse_agree(lambda d: [made(d, [0, 2, 2], [0, 1]), made(d, [0, 1, 2], [2, 0], (2, 3))])
    for begins, columns in (([0, 2, 1], [0, 1]), ([0, 1, 2], [0, 9]), ([0, 2, 2], [1, 0]), ([1, 2, 2], [0, 1])):
        with pytest.raises(RuntimeError) as expected:
            made("cpu", begins, columns, (2, 2))
        assert both_raise(lambda d, b=begins, c=columns: made(d, b, c, (2, 2))) == str(expected.value)


@EACH
def test_functions_of_the_values(make: Make) -> None:
    def program(d: str) -> Any:
        x = make(d)
        written = [x.clone().abs_(), x.clone().mul_(3), x.clone().zero_()]
        return [-x, x.sin(), x.sqrt(), x.relu(), x * 2, x.isnan(), x.sum(), x.angle(), *written, torch.zeros_like(x)]

    sparse_agree(program)


def test_sums_and_products_of_entries() -> None:
    def program(d: str) -> Any:
        x, y, dense = CSR(d), other(d).to_sparse_csr(), counting(d, 2, 3)
        blocks = BSR(d)
        sums = [
            x + y,
            torch.add(x, y, alpha=2),
            x.clone().add_(x),
            dense + x,
            x + dense,
            dense.clone().add_(x, alpha=3),
        ]
        return [*sums, x * y, x * dense, x.sparse_mask(y), dense.sparse_mask(x), blocks + blocks, dense + CSC(d), x[0]]

    sparse_agree(program)


@pytest.mark.parametrize("make", [CSR, CSC, BSR, COMPRESSED["empty csr"]], ids=["csr", "csc", "bsr", "empty csr"])
def test_products_with_dense_matrices(make: Make) -> None:
    def program(d: str) -> Any:
        x = make(d)
        n, m = x.shape
        dense = counting(d, m, 2)
        return [x @ dense, x @ dense[:, 0], counting(d, 3, n) @ x if x.layout != torch.sparse_bsr else n,
                torch.addmm(counting(d, n, 2), x, dense, beta=2, alpha=3),
                torch.mm(x, dense, out=torch.empty(n, 2, device=d)),
                torch.addmv(counting(d, n), x, dense[:, 0], beta=0.5)]  # fmt: skip

    sparse_agree(program)


def test_products_of_two_compressed_matrices() -> None:
    def program(d: str) -> Any:
        x, y = CSR(d), other(d).t().to_sparse_csr()
        results = [x @ y, x @ y.to_sparse_csc(), torch.addmm(x @ y, x, y, beta=2, alpha=3)]
        return [[str(t.layout), t.to_dense()] for t in results]

    agree(program)


def test_a_product_at_given_entries() -> None:
    def program(d: str) -> Any:
        x, left, right = CSR(d), counting(d, 2, 4), counting(d, 4, 3)
        return [torch.sparse.sampled_addmm(x, left, right, beta=beta, alpha=3) for beta in (0, 1, 2)]

    sparse_agree(program)


@pytest.mark.parametrize("reduce", ["sum", "mean", "amax", "amin"])
def test_products_reduced_by_row(reduce: str) -> None:
    def program(d: str) -> Any:
        x = torch.sparse_csr_tensor([0, 1, 3, 3], [2, 0, 2], [1.0, 2.0, -3.0], (3, 3), device=d).requires_grad_()
        y = counting(d, 3, 2).requires_grad_()
        result = torch.sparse.mm(x, y, reduce)
        (result * counting(d, 3, 2)).sum().backward()
        return [result, x.grad, y.grad]

    sparse_agree(program)


def test_half_precision_products_are_added_in_float32() -> None:
    def program(d: str) -> Any:
        x = CSR(d).to(torch.bfloat16).requires_grad_()
        y = counting(d, 3, 40).to(torch.bfloat16)
        result = torch.sparse.mm(x, y, "sum")
        result.backward(torch.full_like(result, 1.5))
        return [result, x.grad]

    sparse_agree(program)


def test_masked_reductions_of_rows() -> None:
    def program(d: str) -> Any:
        x = CSR(d)
        mask = torch.sparse_csr_tensor(x.crow_indices(), x.col_indices(), torch.ones_like(x.values()).bool(), x.shape)
        return [f(x, dim=1, keepdim=True, mask=mask).to_dense() for f in (torch.masked.amax, torch.masked.amin)]

    agree(program)


def test_reductions_of_entries_along_a_dimension() -> None:
    def program(d: str) -> Any:
        x, integers = CSR(d), coalesced(d, torch.int32).to_sparse_csr()
        ops = [torch.ops.aten._sparse_csr_sum, torch.ops.aten._sparse_csr_prod]
        return [op(t, dim, True) for op in ops for t in (x, integers) for dim in ([0], [1], [0, 1], [-1])]

    sparse_agree(program)


def test_indices_of_32_bits_stay_so() -> None:
    def program(d: str) -> Any:
        begins, columns = (torch.tensor(i, dtype=torch.int32, device=d) for i in ([0, 1, 3], [2, 0, 2]))
        x = torch.sparse_csr_tensor(begins, columns, torch.tensor([1.0, 2, 3], device=d), (2, 3))
        results = [x, x * 2, x @ counting(d, 3, 2), x.to_sparse_csc(), x + x]
        return [results, [str(t.crow_indices().dtype) for t in (x, x * 2, x + x)]]

    sparse_agree(program)


REFUSED = {
    "csc + csc": lambda d: CSC(d) + CSC(d),
    "bsc @ dense": lambda d: COMPRESSED["bsc"](d) @ counting(d, 6, 2),
    "bsr @ bsr": lambda d: BSR(d) @ BSR(d).t(),
    "bsr to csr": lambda d: BSR(d).to_sparse_csr(),
    "shapes": lambda d: CSR(d) @ counting(d, 4, 2),
    "an unknown reduction": lambda d: torch.sparse.mm(CSR(d), counting(d, 3, 2), "prod"),
    "blocks that do not divide": lambda d: striped(d).to_sparse_bsr((3, 3)),
    "a subtraction": lambda d: CSR(d) - CSR(d),
}


@pytest.mark.parametrize("program", REFUSED.values(), ids=REFUSED.keys())
def test_what_the_cpu_refuses_is_refused(program: Callable[[str], Any]) -> None:
    refused_alike(program)


def test_triangular_systems_run_on_the_cpu() -> None:
    def program(d: str) -> Any:
        matrix = torch.tensor([[2.0, 1.0], [0.0, 4.0]], device=d).to_sparse_csr()
        return torch.triangular_solve(counting(d, 2, 1), matrix).solution

    agree(program)


def test_blocks_that_do_not_divide_a_large_matrix_are_refused() -> None:
    message = both_raise(lambda d: torch.ones(10, 10, device=d).to_sparse_csr().to_sparse_bsr((3, 3)))
    assert "divisible" in message


def test_products_of_nothing() -> None:
    def program(d: str) -> Any:
        wide, tall = (torch.zeros(shape, device=d).to_sparse_bsr((2, 2)) for shape in ((0, 4), (4, 0)))
        return [wide @ torch.ones(4, 2, device=d), tall @ torch.ones(0, 2, device=d)]

    agree(program)


def test_a_dense_matrix_times_a_compressed_one_lies_in_rows() -> None:
    agree(lambda d: (counting(d, 4, 2) @ CSR(d)).view(-1))
