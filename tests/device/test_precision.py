"""The precision of float32 products: what is set is what the program given to XLA says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from ..conftest import DEVICE

module = getattr(torch, DEVICE)
IN_XLA = {"highest": "HIGHEST", "high": "HIGH", "medium": "DEFAULT"}


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    # What other tests may have left set cannot be read by the older name; and importing PyTorch's own test tools, as
    # the conformance tests do, forbids all setting of flags outside this block.
    with torch.backends.__allow_nonbracketed_mutation():  # type: ignore[no-untyped-call]
        torch.backends.fp32_precision = "none"
        torch.set_float32_matmul_precision("highest")
        before = torch.get_float32_matmul_precision()
        yield
        torch.backends.fp32_precision = "none"
        torch.set_float32_matmul_precision(before)


@pytest.fixture
def dumped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCH_PJRT_DUMP", str(tmp_path))
    return tmp_path


def precisions(folder: Path, operation: str) -> set[str]:
    """The precision attributes of an operation in the StableHLO of all programs compiled so far; clears them."""
    found: set[str] = set()
    for file in folder.rglob("*"):
        if file.is_file():
            for line in file.read_text().splitlines():
                if f"stablehlo.{operation}" in line:
                    found |= set(re.findall(r"DEFAULT|HIGHEST|HIGH", line)) or {"DEFAULT"}
            file.unlink()
    return found


# A shape of its own for each program, so that none was compiled by another test.
SIZES = iter(range(3, 100))


def dot() -> None:
    n = next(SIZES)
    (torch.ones(n, n, device=DEVICE) @ torch.ones(n, n + 1, device=DEVICE)).cpu()


def convolution() -> None:
    n = next(SIZES)
    functional.conv2d(torch.ones(1, 2, n, n, device=DEVICE), torch.ones(3, 2, 2, 2, device=DEVICE)).cpu()


@pytest.mark.parametrize("precision", IN_XLA)
def test_set_float32_matmul_precision_chooses_that_of_dots_and_convolutions(precision: str, dumped: Path) -> None:
    torch.set_float32_matmul_precision(precision)
    dot()
    assert precisions(dumped, "dot_general") == {IN_XLA[precision]}
    convolution()
    assert precisions(dumped, "convolution") == {IN_XLA[precision]}


@pytest.mark.parametrize(("said", "meant"), [("ieee", "HIGHEST"), ("tf32", "HIGH"), ("bf16", "DEFAULT")])
def test_the_setting_of_all_backends_counts_in_a_fresh_process(said: str, meant: str, tmp_path: Path) -> None:
    from ..process import output

    output(
        f"""
        import torch
        torch.backends.fp32_precision = "{said}"
        (torch.ones(3, 3, device="{DEVICE}") @ torch.ones(3, 3, device="{DEVICE}")).cpu()
        """,
        TORCH_PJRT_DUMP=str(tmp_path),
    )
    assert precisions(tmp_path, "dot_general") == {meant}


def test_a_block_has_its_own_precision_and_the_one_before_comes_back(dumped: Path) -> None:
    torch.set_float32_matmul_precision("high")
    n = next(SIZES)
    a, b = torch.ones(n, n, device=DEVICE), torch.ones(n, 2 * n, device=DEVICE)
    module.synchronize()
    precisions(dumped, "dot_general")
    before = a @ b  # recorded, not yet run
    with module.matmul_precision("medium"):
        assert torch.get_float32_matmul_precision() == "medium"
        assert precisions(dumped, "dot_general") == {"HIGH"}
        inside = a @ b
    assert precisions(dumped, "dot_general") == {"DEFAULT"}
    assert torch.get_float32_matmul_precision() == "high"
    after = a @ b
    compiled = module.metrics()["executables_compiled"]
    after.cpu()
    assert module.metrics()["executables_compiled"] == compiled  # the one of `before`
    assert torch.equal(before.cpu(), inside.cpu())


def test_a_block_leaves_pytorchs_table_as_it_was() -> None:
    def table() -> list[str]:
        return [torch._C._get_fp32_precision_getter(*row) for row in (("mkldnn", "matmul"), ("cuda", "matmul"))]

    before = table()
    with pytest.raises(ZeroDivisionError), module.matmul_precision("medium"):
        raise ZeroDivisionError
    assert table() == before


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(ValueError, match="expected one of highest, high, medium"), module.matmul_precision("low"):
        pass
