"""mode=, options=, fullgraph=, the backend's names, the dump and the report."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ..conftest import DEVICE
from ..process import output

module = getattr(torch, DEVICE)


def test_import_torch_does_not_import_dynamo_or_jax() -> None:
    program = "import sys, torch; print([m for m in ('torch._dynamo', 'jax') if m in sys.modules])"
    assert output(program).strip() == "[]"


def test_the_backend_goes_by_its_own_name_and_the_devices() -> None:
    program = """
        import torch
        print([name in torch.compiler.list_backends() for name in ("pjrt", "tpu")])
        x = torch.arange(3.0, device="tpu")
        print([torch.compile(lambda t: t + 1, backend=name)(x).tolist() for name in ("pjrt", "tpu")])
    """
    assert output(program, TORCH_PJRT_DEVICE_NAME="tpu") == "[True, True]\n[[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]]\n"


def test_compile_without_a_backend_takes_this_one_on_the_device() -> None:
    for mode in (None, "reduce-overhead"):
        compiled = torch.compile(lambda t: t.sin() + 1, mode=mode)
        torch.testing.assert_close(compiled(torch.ones(3, device=DEVICE)).cpu(), torch.ones(3).sin() + 1)
    assert [g.kind for g in module.compiler.report().graphs] == ["inference"] * 2


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"])
def test_pytorchs_modes_are_accepted(mode: str) -> None:
    compiled = torch.compile(lambda t: t * 2, backend="pjrt", mode=mode)
    assert compiled(torch.ones(2, device=DEVICE)).tolist() == [2, 2]


def test_an_unknown_mode_or_option_names_the_nearest() -> None:
    x = torch.ones(2, device=DEVICE)
    with pytest.raises(Exception, match=r"mode 'max-autotun': expected one of .*did you mean max-autotune"):
        torch.compile(lambda t: t * 2, backend="pjrt", mode="max-autotun")(x)
    with pytest.raises(Exception, match=r"xla_cpu_enable_fast_mth.*did you mean xla_cpu_enable_fast_math"):
        torch.compile(lambda t: t * 2, backend="pjrt", options={"xla_cpu_enable_fast_mth": True})(x)
    with pytest.raises(Exception, match=r"xla_cpu_enable_fast_math='maybe': .*not a valid bool"):
        torch.compile(lambda t: t * 2, backend="pjrt", options={"xla_cpu_enable_fast_math": "maybe"})(x)
    with pytest.raises(Exception, match="activation_memory_budget=2: expected a number from 0 to 1"):
        torch.compile(lambda t: t * 2, backend="pjrt", options={"activation_memory_budget": 2})(x)


def test_an_xla_option_reaches_xla() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return (x * x).exp().sum()

    x = torch.ones(64, 64, device=DEVICE)
    compiled = torch.compile(fn, backend="pjrt", options={"xla_backend_optimization_level": 0})
    torch.testing.assert_close(compiled(x).cpu(), fn(x.cpu()))


def test_a_smaller_activation_budget_saves_less_and_gives_the_same_gradients() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            x = torch.tanh(x @ w)
        return x.sum()

    saved, gradients = [], []
    for budget in (1.0, 0.0):
        torch._dynamo.reset()
        module.compiler.reset()
        torch.manual_seed(0)
        x, w = torch.randn(32, 16).to(DEVICE), (torch.randn(16, 16) * 0.3).to(DEVICE).requires_grad_()
        torch.compile(fn, backend="pjrt", options={"activation_memory_budget": budget})(x, w).backward()
        forward = module.compiler.report().graphs[0]
        saved.append(forward.programs[0].output_bytes)
        gradients.append(w.grad.cpu())
    assert saved[1] < saved[0]
    torch.testing.assert_close(gradients[1], gradients[0])


def test_fullgraph_refuses_a_graph_break() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x + 1

    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(fn, backend="pjrt", fullgraph=True)(torch.ones(2, device=DEVICE))


def test_the_dump_holds_fx_stablehlo_and_hlo_with_the_users_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_PJRT_DUMP", str(tmp_path))

    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x).sum()

    x = torch.ones(3, device=DEVICE, requires_grad=True)
    torch.compile(fn, backend="pjrt")(x).backward()
    for kind in ("forward", "backward"):
        found = {p.name.split(".", 1)[1]: p.read_text() for p in tmp_path.glob(f"graph_*_{kind}.*")}
        assert set(found) == {"fx.txt", "stablehlo.mlir", "hlo.txt"}
        op = "aten::sin" if kind == "forward" else "aten::cos"
        assert op in found["fx.txt"]
        assert "test_options.py" in found["fx.txt"]
        assert "stablehlo" in found["stablehlo.mlir"]
        assert "test_options.py" in found["stablehlo.mlir"]
        assert "HloModule" in found["hlo.txt"]


def test_the_report_counts_programs_flops_memory_breaks_and_recompiles() -> None:
    def fn(x: torch.Tensor, k: int) -> torch.Tensor:
        y = x @ x
        print("", end="")
        return y + k

    compiled = torch.compile(fn, backend="pjrt", dynamic=False)
    x = torch.ones(16, 16, device=DEVICE)
    compiled(x, 1)
    compiled(torch.ones(8, 8, device=DEVICE), 1)
    report = module.compiler.report()
    program = report.graphs[0].programs[0]
    assert program.flops == pytest.approx(2 * 16**3, rel=0.1)
    assert program.argument_bytes == program.output_bytes == 16 * 16 * 4
    where, reason = report.graph_breaks[0]
    assert "test_options.py" in where
    assert "print" in reason or "builtin" in reason
    function, guard = report.recompiles[0]
    assert "test_options.py" in function
    assert "size mismatch" in guard
    text = str(report)
    assert "graph break at" in text
    assert "recompile of" in text
    assert "FLOPs" in text
