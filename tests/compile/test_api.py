"""Every parameter of torch.compile and every function of torch.compiler, run on the device: docs/compile.md's table."""

from __future__ import annotations

import operator
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from ..conftest import DEVICE

module = getattr(torch, DEVICE)


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def ones(n: int = 3) -> torch.Tensor:
    return torch.ones(n, device=DEVICE)


def graphs() -> int:
    return len(module.compiler.report().graphs)


def test_disable_leaves_the_function_alone() -> None:
    assert torch.compile(double, backend="pjrt", disable=True)(ones()).tolist() == [2, 2, 2]
    assert graphs() == 0


def test_as_a_decorator_with_a_name() -> None:
    @torch.compile(backend="pjrt", name="doubling")
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x + x

    assert fn(ones()).tolist() == [2, 2, 2]
    assert graphs() == 1


def test_recompile_limit_ends_in_eager_or_in_an_error() -> None:
    compiled = torch.compile(lambda x, n: x * n, backend="pjrt", dynamic=False, recompile_limit=2)
    assert [compiled(ones(1), n).item() for n in (1, 2, 3, 4)] == [1, 2, 3, 4]
    assert graphs() == 2
    strict = torch.compile(lambda x, n: x + n, backend="pjrt", dynamic=False, recompile_limit=1, fullgraph=True)
    strict(ones(), 1)
    with pytest.raises(torch._dynamo.exc.FailOnRecompileLimitHit):
        strict(ones(), 2)


def test_isolate_recompiles() -> None:
    first = torch.compile(double, backend="pjrt", isolate_recompiles=True)
    second = torch.compile(double, backend="pjrt", isolate_recompiles=True)
    assert first(ones()).tolist() == second(ones()).tolist() == [2, 2, 2]
    assert graphs() == 2


def test_guard_filter_among_the_options() -> None:
    options = {"guard_filter_fn": torch.compiler.keep_tensor_guards_unsafe}
    compiled = torch.compile(double, backend="pjrt", options=options)
    assert compiled(ones()).tolist() == [2, 2, 2]


@pytest.mark.parametrize(
    "keep",
    [
        "skip_guard_on_inbuilt_nn_modules_unsafe", "skip_guard_on_all_nn_modules_unsafe",
        "skip_guard_on_globals_unsafe", "keep_portable_guards_unsafe", "skip_all_guards_unsafe",
    ],
)  # fmt: skip
def test_guard_filters(keep: str) -> None:
    net = nn.Linear(3, 3).to(DEVICE)
    compiled = torch.compile(net, backend="pjrt", options={"guard_filter_fn": getattr(torch.compiler, keep)})
    torch.testing.assert_close(compiled(ones()).cpu(), net(ones()).cpu())


def test_a_polyfill_is_traced_in_the_place_of_a_function() -> None:
    @torch.compiler.substitute_in_graph(operator.indexOf)
    def index_of(a: list[int], b: int, /) -> int:
        return a.index(b)

    compiled = torch.compile(lambda x: x * operator.indexOf([1, 2, 3], 3), backend="pjrt", fullgraph=True)
    assert compiled(ones()).tolist() == [2, 2, 2]


def test_settings_of_the_compiler_as_a_whole() -> None:
    compiled = torch.compile(double, backend="pjrt")
    with torch.compiler.config.patch(dynamic_sources="L['x']"):
        assert [compiled(ones(n)).shape[0] for n in (3, 4, 5)] == [3, 4, 5]
    assert graphs() == 1
    before = torch.compiler.set_enable_guard_collectives(True)
    try:
        assert compiled(ones()).tolist() == [2, 2, 2]
    finally:
        torch.compiler.set_enable_guard_collectives(before)


def test_pytorchs_own_ways_to_keep_what_was_compiled() -> None:
    compiled = torch.compile(double, backend="pjrt", fullgraph=True)
    compiled(ones())
    assert torch.compiler.save_cache_artifacts() is None
    with (
        torch._dynamo.config.patch(enable_aot_compile=True),
        pytest.raises(AssertionError, match="expected OutputCode"),
    ):
        compiled.aot_compile(((ones(),), {}))


def test_reset_forgets_programs() -> None:
    compiled = torch.compile(double, backend="pjrt")
    compiled(ones())
    torch.compiler.reset()
    compiled(ones())
    assert graphs() == 2


def test_the_default_backend_can_be_this_one() -> None:
    torch.compiler.set_default_backend("pjrt")
    try:
        assert torch.compiler.get_default_backend() == "pjrt"
        assert torch.compile(double)(ones()).tolist() == [2, 2, 2]
        assert graphs() == 1
    finally:
        torch.compiler.set_default_backend(None)


@pytest.mark.parametrize(
    "program",
    [lambda: torch.ones(3, device=DEVICE) + 1, lambda: torch.ones(3).to(DEVICE) + 1],
    ids=["makes a tensor there", "moves one there"],
)
def test_a_graph_whose_arguments_are_elsewhere_is_ours_too(program: Callable[[], torch.Tensor]) -> None:
    assert torch.compile(program)().tolist() == [2, 2, 2]
    assert graphs() == 1


def test_allow_in_graph_disable_and_is_compiling() -> None:
    seen = []

    @torch.compiler.disable
    def eager(x: torch.Tensor) -> torch.Tensor:
        seen.append(torch.compiler.is_compiling())
        return x + 1

    @torch.compiler.allow_in_graph
    def opaque(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    def fn(x: torch.Tensor) -> torch.Tensor:
        y = opaque(x)
        if torch.compiler.is_compiling() and torch.compiler.is_dynamo_compiling() and not torch.compiler.is_exporting():
            y = y + 10
        return eager(y) * 2

    assert torch.compile(fn, backend="pjrt")(ones()).tolist() == [28, 28, 28]
    assert seen == [False]


def test_assume_constant_result() -> None:
    @torch.compiler.assume_constant_result
    def constant() -> int:
        return 5

    compiled = torch.compile(lambda x: x * constant(), backend="pjrt", fullgraph=True)
    assert compiled(ones()).tolist() == [5, 5, 5]


def test_wrap_numpy() -> None:
    @torch.compile(backend="pjrt", fullgraph=True)
    @torch.compiler.wrap_numpy
    def fn(x: np.ndarray) -> np.ndarray:
        return np.sum(x * 2, axis=0)

    assert fn(np.ones((2, 3), np.float32)).tolist() == [4, 4, 4]


def test_stances() -> None:
    compiled = torch.compile(double, backend="pjrt", dynamic=False)
    with torch.compiler.set_stance("eager_on_recompile"):
        assert compiled(ones()).tolist() == [2, 2, 2]
    assert graphs() == 0
    compiled(ones())
    with torch.compiler.set_stance("fail_on_recompile"), pytest.raises(RuntimeError):
        compiled(ones(4))


def test_nested_compile_region() -> None:
    @torch.compiler.nested_compile_region
    def block(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).sin()

    compiled = torch.compile(lambda x: block(block(x)), backend="pjrt", fullgraph=True)
    x = torch.randn(3)
    torch.testing.assert_close(compiled(x.to(DEVICE)).cpu(), ((x * 2).sin() * 2).sin())


def test_cudagraph_mark_step_begin_does_nothing() -> None:
    torch.compiler.cudagraph_mark_step_begin()
    assert torch.compile(double, backend="pjrt", mode="reduce-overhead")(ones()).tolist() == [2, 2, 2]


def test_logs_name_our_module(tmp_path: Path) -> None:
    from ..process import python

    program = """
        import torch
        torch.compile(lambda x: x * 2, backend="pjrt")(torch.ones(2, device="pjrt"))
    """
    done = python(program, TORCH_LOGS="+torch_pjrt.compile")
    assert done.returncode == 0, done.stderr
    assert "compiled inference graph" in done.stderr
