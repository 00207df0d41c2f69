"""Equal graphs share an executable: two instances of a model, two processes by way of TORCH_PJRT_CACHE_DIR."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import jax
import pytest
import torch
from torch import nn

from ..conftest import DEVICE
from ..process import output, python

module = getattr(torch, DEVICE)

# Reads and writes a buffer, draws, holds a constant, indexes; prints the results and where its programs came from.
PROGRAM = """
import torch
torch.manual_seed(0)

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(10, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.head = torch.nn.Linear(8, 4)

    def forward(self, rows):
        x = self.norm(self.table(rows)).tanh()
        x = torch.nn.functional.dropout(x, 0.3) * torch.tensor([1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0], device="pjrt")
        return self.head(x)

model = Model().to("pjrt")
compiled = torch.compile(model, backend="pjrt")
for _ in range(2):
    loss = compiled(torch.tensor([1, 2, 9]).to("pjrt")).square().mean()
    loss.backward()
print(loss.item(), model.norm.running_mean.sum().item(), model.head.weight.grad.sum().item())
print([p.origin for g in torch.pjrt.compiler.report().graphs for p in g.programs])
metrics = torch.pjrt.metrics()
print(metrics["executables_compiled"], metrics["executables_loaded"])
try:
    wrong = compiled(torch.tensor([1, 2, 11]).to("pjrt"))
    torch.pjrt.synchronize()
except IndexError as error:
    print(error)
"""


def origins() -> list[str]:
    return [p.origin for g in module.compiler.report().graphs for p in g.programs]


def made(*calls: Callable[[], Any]) -> int:
    """How many executables a few calls have compiled."""
    before = module.metrics()["executables_compiled"]
    for call in calls:
        call()
    return int(module.metrics()["executables_compiled"] - before)


def run(directory: Path, program: str = PROGRAM, **environment: str) -> list[str]:
    """What the program prints. It is a file: PyTorch names the lines of files only."""
    with NamedTemporaryFile("w", suffix=".py") as file:
        file.write(program)
        file.flush()
        start = f"import runpy; runpy.run_path({file.name!r})"
        return output(start, TORCH_PJRT_CACHE_DIR=str(directory), **environment).splitlines()


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A directory that one process has left behind, and what that process printed."""
    directory = tmp_path_factory.mktemp("cache")
    return directory, run(directory)


def test_a_second_process_loads_what_the_first_compiled(first: tuple[Path, list[str]]) -> None:
    directory, (values, came, counts, finding) = first
    assert came == "['compiled', 'compiled']"
    moved = run(directory, "\n\n\n" + PROGRAM)
    assert moved[0] == values
    assert moved[1] == "['loaded', 'loaded']"
    compiled, loaded = map(int, counts.split())
    assert loaded == 0
    assert moved[2] == f"0 {compiled}"
    # The lines are this process's, three further down.
    before, after = (
        int(re.search(r"embedding.*: index 11 is out of bounds.*\.py:(\d+) in forward", said).group(1))  # type: ignore[union-attr]
        for said in (finding, moved[3])
    )
    assert after == before + 3


def test_a_dumping_process_makes_what_it_has_to_show(first: tuple[Path, list[str]], tmp_path: Path) -> None:
    assert run(first[0], TORCH_PJRT_DUMP=str(tmp_path))[1] == "['compiled', 'compiled']"
    assert len(list(tmp_path.glob("graph_*.stablehlo.mlir"))) == 2


def test_damaged_and_foreign_files_are_warned_of_and_replaced(first: tuple[Path, list[str]], tmp_path: Path) -> None:
    directory = Path(shutil.copytree(first[0], tmp_path / "cache"))
    files = sorted(directory.glob("*.program"))
    for i, file in enumerate(files):
        data = file.read_bytes()
        file.write_bytes([data[: len(data) // 2], b"import os", data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]][i % 3])
    done = python(PROGRAM, TORCH_PJRT_CACHE_DIR=str(directory), PYTHONWARNINGS="always")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("CacheWarning") == len(files)
    assert done.stdout.splitlines()[:2] == first[1][:2]
    assert run(directory)[1] == "['loaded', 'loaded']"


def test_a_directory_that_cannot_be_used_stops_nothing(first: tuple[Path, list[str]], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    done = python(PROGRAM, TORCH_PJRT_CACHE_DIR=str(tmp_path / "file" / "below"))
    assert done.returncode == 0, done.stderr
    assert "cannot be used" in done.stderr
    assert done.stdout.splitlines()[:2] == first[1][:2]


def test_two_instances_of_a_model_compile_once() -> None:
    x = torch.randn(3, 4).to(DEVICE)
    # The second pair of equal functions is other code to Dynamo, so another graph with the same content.
    functions = [lambda net, t: net(t).relu(), lambda net, t: net(t).relu()]
    for number, function in enumerate([*functions, *functions]):
        net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 2)).to(DEVICE)
        graphs = len(origins())

        def call(run: Callable[..., torch.Tensor], net: nn.Module = net) -> torch.Tensor:
            torch.manual_seed(1)
            return run(net, x)

        compiled = torch.compile(function, backend="pjrt")
        got = call(compiled)
        assert made(partial(call, compiled)) == 0
        got.sum().backward()
        torch.testing.assert_close(got.cpu(), call(function).cpu())
        assert origins()[graphs:] == [["compiled"] * 2, ["shared"] * 2, [], []][number]
    assert "2 compiled in" in str(module.compiler.report())
    assert "2 shared in" in str(module.compiler.report())


def test_reset_begins_anew() -> None:
    x = torch.ones(3, device=DEVICE)
    for backend in ("pjrt", None):
        torch.compile(lambda t: t.sin() + 1, **({"backend": backend} if backend else {}))(x)
        torch.compiler.reset()
        torch.compile(lambda t: t.sin() + 1, **({"backend": backend} if backend else {}))(x)
        torch.compiler.reset()
    assert origins() == ["compiled"] * 4


def _function(x: torch.Tensor) -> torch.Tensor:
    return (x @ x.mT * 1.5).sin()


def _with_another_number(x: torch.Tensor) -> torch.Tensor:
    return (x @ x.mT * 2.5).sin()


def _default_float64(call: Callable[[], None]) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        call()
    finally:
        torch.set_default_dtype(torch.float32)


def _high(call: Callable[[], None]) -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        call()
    finally:
        torch.set_float32_matmul_precision(before)


def _high_in_jax(call: Callable[[], None]) -> None:
    with jax.default_matmul_precision("float32"):
        call()


def _autocast(call: Callable[[], None]) -> None:
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        call()


SAME = torch.arange(12.0).reshape(3, 4)


@pytest.mark.parametrize(
    ("function", "argument", "settings", "around", "shares"),
    [
        pytest.param(_function, SAME, {}, None, True, id="equal"),
        pytest.param(_function, SAME + 1, {"dynamic": True}, None, True, id="symbolic sizes of the same value"),
        pytest.param(_with_another_number, SAME, {}, None, False, id="another number"),
        pytest.param(_function, SAME.double(), {}, None, False, id="another dtype"),
        pytest.param(_function, torch.ones(3, 5), {}, None, False, id="another size"),
        pytest.param(_function, torch.ones(4, 3).mT, {}, None, False, id="other strides"),
        pytest.param(_function, SAME, {"options": {"xla_cpu_enable_fast_math": True}}, None, False, id="an option"),
        pytest.param(_function, SAME, {}, _high, False, id="another precision"),
        pytest.param(_function, SAME, {}, _high_in_jax, False, id="another precision of JAX's"),
        pytest.param(_function, SAME, {}, _default_float64, False, id="another default dtype"),
        pytest.param(_function, SAME, {}, _autocast, False, id="autocast"),
    ],
)
def test_what_a_program_depends_on_keeps_graphs_apart(
    function: Callable[..., torch.Tensor],
    argument: torch.Tensor,
    settings: dict[str, Any],
    around: Callable[[Callable[[], None]], None] | None,
    shares: bool,
) -> None:
    torch.compile(_function, backend="pjrt")(SAME.to(DEVICE))
    given = torch.empty_strided(argument.shape, argument.stride(), dtype=argument.dtype, device=DEVICE)
    given.copy_(argument)

    def call() -> None:
        # Another code object: Dynamo would otherwise know the function again.
        compiled = torch.compile(lambda x: function(x), backend="pjrt", **settings)
        got = compiled(given).cpu()
        if around is None:
            torch.testing.assert_close(got, function(argument))

    (around or (lambda c: c()))(call)
    assert origins() == ["compiled", "shared" if shares else "compiled"]


def test_graphs_that_hold_different_constants_share_and_keep_their_own() -> None:
    x = torch.ones(3, device=DEVICE)
    for fn, expected in (
        (lambda t: t * torch.tensor([1.0, 2.0, 3.0], device=DEVICE), [1, 2, 3]),
        (lambda t: t * torch.tensor([4.0, 5.0, 6.0], device=DEVICE), [4, 5, 6]),
        (lambda t: t * torch.tensor([7.0, 8.0, 9.0], device=DEVICE), [7, 8, 9]),
    ):
        assert torch.compile(fn, backend="pjrt")(x).tolist() == expected
    assert origins() == ["compiled", "shared", "shared"]


def test_graphs_that_write_different_things_are_kept_apart() -> None:
    def first(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        total = a + b
        a.copy_(total)
        return total * 2

    def second(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        total = a + b
        b.copy_(total)
        return total * 2

    def neither(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        total = a + b
        return total * 2

    for fn in (first, second, neither):
        a, b = torch.ones(3, device=DEVICE), torch.full((3,), 2.0, device=DEVICE)
        here, there = torch.ones(3), torch.full((3,), 2.0)
        assert torch.equal(torch.compile(fn, backend="pjrt")(a, b).cpu(), fn(here, there))
        assert torch.equal(a.cpu(), here)
        assert torch.equal(b.cpu(), there)
    assert origins() == ["compiled"] * 3


def test_a_write_through_a_view_is_another_program_than_one_of_the_whole() -> None:
    def double(x: torch.Tensor) -> None:
        x.mul_(2)

    whole = torch.arange(4.0).to(DEVICE)
    part = torch.arange(8.0).to(DEVICE)
    torch.compile(lambda x: double(x), backend="pjrt")(whole)
    torch.compile(lambda x: double(x), backend="pjrt")(part[2:6])
    assert whole.tolist() == [0, 2, 4, 6]
    assert part.tolist() == [0, 1, 4, 6, 8, 10, 6, 7]
    assert origins() == ["compiled"] * 2


def test_random_ops_draw_for_themselves_when_they_share() -> None:
    x = torch.ones(64, device=DEVICE)
    torch.manual_seed(3)
    one = torch.compile(lambda t: torch.nn.functional.dropout(t, 0.5), backend="pjrt")(x)
    two = torch.compile(lambda t: torch.nn.functional.dropout(t, 0.5), backend="pjrt")(x)
    assert origins() == ["compiled", "shared"]
    assert not torch.equal(one, two)
    torch.manual_seed(3)
    for got in (one, two):
        assert torch.equal(got, torch.nn.functional.dropout(x, 0.5))


def test_a_shared_check_names_the_line_of_the_graph_that_ran() -> None:
    table = torch.arange(6.0).to(DEVICE)
    one = torch.compile(lambda i: table[i], backend="pjrt")
    two = torch.compile(lambda i: table[i] * 1, backend="pjrt")
    three = torch.compile(
        lambda i: table[i],
        backend="pjrt",
    )
    wrong = torch.tensor([7]).to(DEVICE)
    lines = []
    for compiled in (one, two, three):
        with pytest.raises(IndexError, match="index 7") as caught:
            compiled(wrong).cpu()
        lines.append(int(re.search(r"test_cache\.py:(\d+)", str(caught.value)).group(1)))  # type: ignore[union-attr]
    assert origins()[-1] == "shared"
    assert lines == [lines[0], lines[0] + 1, lines[0] + 3]


def test_pytorchs_own_cache_artifacts_are_none() -> None:
    torch.compile(lambda x: x.sin(), backend="pjrt")(torch.ones(3, device=DEVICE))
    assert torch.compiler.save_cache_artifacts() is None


def test_threads_that_want_the_same_graph_compile_it_once() -> None:
    x = torch.ones(8, 8, device=DEVICE)
    graphs = [torch.compile(lambda t: (t @ t).cos().sum(), backend="pjrt") for _ in range(4)]
    results: list[float] = []
    started = threading.Barrier(4)

    def work(graph: Callable[[torch.Tensor], torch.Tensor]) -> None:
        started.wait()
        results.append(graph(x).item())

    threads = [threading.Thread(target=work, args=(g,)) for g in graphs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert len(set(results)) == 1
    assert origins().count("compiled") == 1
