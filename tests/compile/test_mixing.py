"""Compiled and eager code side by side: graph breaks, modes, autocast, threads, accounting."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from ..conftest import DEVICE
from ..process import output
from .check import same

module = getattr(torch, DEVICE)


def test_a_graph_break_hands_over_without_copies() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        torch._dynamo.graph_break()
        z = y * 2
        torch._dynamo.graph_break()
        return z.sum() + y.mean()

    x = torch.randn(5, 3)
    there = x.to(DEVICE)
    compiled = torch.compile(fn, backend="pjrt")
    same(compiled(there), fn(x))
    module.reset_metrics()
    result = compiled(there)
    counts = module.metrics()
    assert counts["ops_recorded"] == 0
    assert counts["bytes_to_device"] == counts["bytes_to_host"] == 0
    assert not counts["host_syncs"]
    same(result, fn(x))


def test_eager_ops_between_compiled_calls_are_one_trace() -> None:
    compiled = torch.compile(lambda t: t * 2, backend="pjrt")
    x = torch.ones(3, device=DEVICE)
    compiled(x)
    module.synchronize()
    module.reset_metrics()
    y = compiled((compiled(x) + 1).sin())
    assert module.metrics()["traces_run"] == 1
    torch.testing.assert_close(y.cpu(), 2 * torch.full((3,), 3.0).sin())


def test_training_with_a_plain_optimizer_follows_the_cpu() -> None:
    def train(device: str, compiled: bool) -> list[float]:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 3)).to(device)
        step = torch.compile(net, backend="pjrt") if compiled else net
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
        x = torch.linspace(-1, 1, 48).reshape(8, 6).to(device)
        target = (torch.arange(8) % 3).to(device)
        losses = []
        for _ in range(5):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(step(x), target)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    assert train(DEVICE, True) == pytest.approx(train("cpu", False), rel=1e-4)


def test_autocast_outside_and_inside() -> None:
    net = nn.Linear(8, 8)
    there = nn.Linear(8, 8).to(DEVICE)
    there.load_state_dict(net.state_dict())
    x = torch.randn(4, 8)

    def inside(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            return module(x) + 1

    compiled = torch.compile(there, backend="pjrt")
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        got = compiled(x.to(DEVICE))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = net(x)
    assert got.dtype == torch.bfloat16
    same(got, expected, rtol=2e-2, atol=2e-2)
    same(torch.compile(inside, backend="pjrt")(there, x.to(DEVICE)), inside(net, x), rtol=2e-2, atol=2e-2)
    same(compiled(x.to(DEVICE)), net(x))


def test_inference_mode_and_no_grad() -> None:
    net = nn.Linear(4, 4).to(DEVICE)
    compiled = torch.compile(net, backend="pjrt")
    x = torch.ones(2, 4, device=DEVICE)
    with torch.inference_mode():
        y = compiled(x)
        assert y.is_inference()
    with torch.no_grad():
        z = compiled(x)
    assert not z.requires_grad
    assert compiled(x).requires_grad
    same(y, z.cpu())


def test_set_stance_forces_eager() -> None:
    calls = []

    def fn(x: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            calls.append(1)
        return x + 1

    compiled = torch.compile(fn, backend="pjrt")
    x = torch.ones(2, device=DEVICE)
    with torch.compiler.set_stance("force_eager"):
        assert compiled(x).tolist() == [2, 2]
    assert calls == [1]
    assert compiled(x).tolist() == [2, 2]
    assert calls == [1]


def test_strict_mode_waits_for_compiled_graphs_too() -> None:
    compiled = torch.compile(lambda t: t * 3, backend="pjrt")
    with module.eager_mode("strict"):
        assert (compiled(torch.ones(2, device=DEVICE)) + 1).tolist() == [4, 4]


def test_memory_accounting_sees_compiled_results_and_their_end() -> None:
    compiled = torch.compile(lambda t: (t + 1, t * 2), backend="pjrt")
    x = torch.ones(256, device=DEVICE)
    compiled(x)
    module.synchronize()
    before = module.memory_allocated()
    outputs = compiled(x)
    assert module.memory_allocated() == before + 2 * 1024
    del outputs
    assert module.memory_allocated() == before


def test_threads_call_one_compiled_function_at_once() -> None:
    compiled = torch.compile(lambda t, n: (t * n).sum(), backend="pjrt")
    x = torch.ones(100, device=DEVICE)
    compiled(x, torch.tensor(1.0, device=DEVICE))
    results: dict[int, list[float]] = {}

    def work(n: int) -> None:
        results[n] = [compiled(x, torch.tensor(float(n), device=DEVICE)).item() for _ in range(20)]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 5)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert results == {n: [100.0 * n] * 20 for n in range(1, 5)}


def test_an_op_without_a_lowering_runs_between_two_programs_with_a_warning() -> None:
    @torch.library.custom_op("torch_pjrt_tests::double_plus", mutates_args=())
    def double_plus(x: torch.Tensor, n: float) -> torch.Tensor:
        return x * 2 + n

    @double_plus.register_fake
    def _(x: torch.Tensor, n: float) -> torch.Tensor:
        return torch.empty_like(x)

    compiled = torch.compile(lambda t: double_plus(t.sin(), 3.0).cos() + 1, backend="pjrt", fullgraph=True)
    x = torch.randn(4)
    same(compiled(x.to(DEVICE)), (x.sin() * 2 + 3).cos() + 1)
    graph = module.compiler.report().graphs[-1]
    assert graph.segments == 3
    assert any("double_plus" in op for op in graph.eager_ops)


def test_an_op_with_several_results_runs_between_programs_that_branch() -> None:
    @torch.library.custom_op("torch_pjrt_tests::halves", mutates_args=())
    def halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x[:2].clone(), x[2:].clone()

    @halves.register_fake
    def _(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.new_empty(2), x.new_empty(2)

    def fn(x: torch.Tensor) -> torch.Tensor:
        a, b = halves(x * 2)
        c = torch.cond(a.sum() > 0, lambda t: t.sin(), lambda t: t.cos(), (b + 1,))
        return a + b * c

    compiled = torch.compile(fn, backend="pjrt", fullgraph=True)
    for sign in (1, -1):
        x = torch.arange(1.0, 5.0) * sign
        same(compiled(x.to(DEVICE)), fn(x))


def test_an_op_without_a_lowering_in_the_backward_pass() -> None:
    @torch.library.custom_op("torch_pjrt_tests::cube", mutates_args=())
    def cube(x: torch.Tensor) -> torch.Tensor:
        return x**3

    @torch.library.custom_op("torch_pjrt_tests::cube_backward", mutates_args=())
    def cube_backward(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        return 3 * x**2 * g

    cube.register_fake(torch.empty_like)
    cube_backward.register_fake(lambda x, g: torch.empty_like(x))
    cube.register_autograd(
        lambda ctx, g: cube_backward(*ctx.saved_tensors, g),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
    x = torch.randn(4, requires_grad=True)
    there = x.detach().to(DEVICE).requires_grad_()
    compiled = torch.compile(lambda t: cube(t.sin()).tanh(), backend="pjrt", fullgraph=True)
    x.sin().pow(3).tanh().sum().backward()
    compiled(there).sum().backward()
    same(there.grad, x.grad)


def test_a_custom_op_that_writes_to_its_argument() -> None:
    @torch.library.custom_op("torch_pjrt_tests::bump", mutates_args=("x",))
    def bump(x: torch.Tensor) -> None:
        x.add_(1)

    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x * 3
        bump(y)
        bump(x)
        return y + x

    compiled = torch.compile(fn, backend="pjrt", fullgraph=True)
    x = torch.arange(3.0)
    there = x.to(DEVICE)
    same(compiled(there), fn(x))
    same(there, x)


def test_graphs_of_a_second_device_run_there() -> None:
    program = """
        import torch
        x = torch.arange(3.0, device="pjrt:1")
        y = torch.compile(lambda t: t * 2 + torch.rand_like(t) * 0, backend="pjrt")(x)
        from torch_pjrt import _C
        print(y.device, y.tolist(), list(_C.array(y).devices())[0].id)
    """
    assert output(program, JAX_NUM_CPU_DEVICES="2").strip() == "pjrt:1 [0.0, 2.0, 4.0] 1"


def test_the_matmul_precision_in_force_is_part_of_a_program() -> None:
    compiled = torch.compile(lambda t: t @ t, backend="pjrt")
    x = torch.randn(4, 4, device=DEVICE)
    compiled(x)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        compiled(x)
        compiled(x)
    finally:
        torch.set_float32_matmul_precision(before)
    compiled(x)
    assert sum(len(g.programs) for g in module.compiler.report().graphs) == 2


def test_a_lowering_that_fails_names_the_op_and_the_users_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch_pjrt.lowering import registry
    from torch_pjrt.lowering.apply import find

    def broken(*args: object) -> None:
        raise RuntimeError("no")

    monkeypatch.setitem(registry._TABLE, "special_bessel_j0", registry.Lowering(broken))
    find.cache_clear()
    try:
        with pytest.raises(Exception, match=r"(?s)RuntimeError: no.*special_bessel_j0.*test_mixing.py"):
            torch.compile(lambda t: torch.special.bessel_j0(t), backend="pjrt")(torch.ones(2, device=DEVICE))
    finally:
        find.cache_clear()


@torch._dynamo.config.patch(capture_scalar_outputs=True)
@pytest.mark.parametrize("dynamic", [None, True])
def test_a_number_that_is_read_in_the_middle_of_a_graph_is_used_in_it(dynamic: bool | None) -> None:
    def fn(x: torch.Tensor, p: torch.Tensor) -> tuple[torch.Tensor, ...]:
        number = p.item()
        y = (x * number + number).sin() / (x.shape[0] / 2)
        return y.clamp(max=number), x.clone().bernoulli_(number).shape[0] + y, x.clamp(max=number) * 2

    compiled = torch.compile(fn, backend="pjrt", dynamic=dynamic)
    for n, p in ((3, 0.5), (4, 0.25)):
        x, number = torch.arange(float(n)), torch.tensor(p)
        same(compiled(x.to(DEVICE), number.to(DEVICE)), fn(x, number))
