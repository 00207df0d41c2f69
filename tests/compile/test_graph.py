"""Calling conventions: what goes into a compiled graph, what comes out, what it writes to."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ..conftest import DEVICE
from .check import check, check_module, on_device, same

module = getattr(torch, DEVICE)


def test_a_function_of_two_tensors_gives_the_cpus_values_and_gradients() -> None:
    x, y = torch.randn(3, 4, requires_grad=True), torch.randn(4, requires_grad=True)
    check(lambda x, y: (x * y).sin().sum(1), x, y)
    kinds = [g.kind for g in module.compiler.report().graphs]
    assert kinds == ["forward", "backward"]


def test_inference_is_one_program_and_one_executable_for_all_calls() -> None:
    with torch.no_grad():
        check(lambda x: torch.softmax(x @ x.T, -1).relu() + 1, torch.randn(5, 5), calls=3)
    (graph,) = module.compiler.report().graphs
    assert graph.kind == "inference"
    assert len(graph.programs) == 1


def test_an_argument_that_is_written_to_is_updated_in_place_and_its_memory_donated() -> None:
    def step(cache: torch.Tensor, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        cache.index_copy_(0, i, x)
        cache.mul_(2)
        return cache.sum(0)

    cache = torch.zeros(4, 3)
    check(step, cache, torch.randn(1, 3), torch.tensor([2]))
    (graph,) = module.compiler.report().graphs
    (program,) = graph.programs
    assert program.donated_bytes == 4 * 3 * 4


def test_a_write_to_an_argument_is_seen_by_every_alias_of_it() -> None:
    base = torch.zeros(4, 3, device=DEVICE)
    row = base[1]
    compiled = torch.compile(lambda x: x.add_(1), backend="pjrt")
    compiled(base)
    assert row.tolist() == [1, 1, 1]
    compiled(row)
    assert base.tolist() == [[1, 1, 1], [2, 2, 2], [1, 1, 1], [1, 1, 1]]
    assert base._version == 2


def test_a_write_does_not_reach_a_clone_that_shared_the_value() -> None:
    x = torch.arange(4.0, device=DEVICE)
    kept = x.clone()
    array = torch_array(x)
    torch.compile(lambda t: t.mul_(3), backend="pjrt")(x)
    assert kept.tolist() == [0, 1, 2, 3]
    assert x.tolist() == [0, 3, 6, 9]
    assert array.tolist() == [0, 1, 2, 3]


def torch_array(x: torch.Tensor):
    from torch_pjrt import _C

    return _C.array(x)


def test_a_write_comes_after_the_recorded_reads_of_the_old_value() -> None:
    compiled = torch.compile(lambda t: t.mul_(3), backend="pjrt")
    x = torch.ones(3, device=DEVICE)
    module.synchronize()
    before = x + 1  # recorded, not run
    compiled(x)
    assert before.tolist() == [2, 2, 2]
    assert x.tolist() == [3, 3, 3]


def test_memory_that_was_never_written_reads_as_in_eager() -> None:
    x = torch.empty(3, device=DEVICE)
    torch.compile(lambda t: t.add_(1), backend="pjrt")(x)
    assert x.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.t(), lambda x: x[1:], lambda x: x[:, 2], lambda x: x[::2, 1:], lambda x: x.expand(2, 4, 6),
        lambda x: x.reshape(2, 12), lambda x: x.as_strided((2, 2), (3, 2), 1), lambda x: x.unfold(1, 3, 2),
        lambda x: x[2],
    ],
)  # fmt: skip
def test_arguments_may_be_any_view_and_writes_go_through_it(view) -> None:
    on_cpu = torch.randn(4, 6)
    there = on_cpu.to(DEVICE)
    compiled = torch.compile(lambda t: t * 2 + 1, backend="pjrt")
    same(compiled(view(there)), view(on_cpu) * 2 + 1)
    if view(on_cpu).is_contiguous() or view(on_cpu).dim() < 3:
        torch.compile(lambda t: t.mul_(2), backend="pjrt")(view(there))
        view(on_cpu).mul_(2)
        same(there, on_cpu)


def test_a_window_that_slides_over_its_base_is_compiled_once() -> None:
    base = torch.arange(20.0, device=DEVICE)
    compiled = torch.compile(lambda t: t.sum() * 2, backend="pjrt")
    for i in range(5):
        assert compiled(base[i : i + 4]).item() == 2 * (4 * i + 6)
    (graph,) = module.compiler.report().graphs
    assert len(graph.programs) == 1


@pytest.mark.parametrize(
    "output", [lambda x: x.view(-1), lambda x: x.t(), lambda x: x[1], lambda x: x, lambda x: x[:, ::2]]
)
def test_outputs_that_are_views_of_arguments_share_their_storage(output) -> None:
    x = torch.randn(4, 6, device=DEVICE)
    compiled = torch.compile(lambda t: (output(t), t + 1), backend="pjrt")
    view, _ = compiled(x)
    same(view, output(x).cpu())
    view.mul_(2)
    same(view, output(x).cpu())


def test_outputs_that_are_views_of_each_other_share_a_storage() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.exp()
        return y.view(2, 2), y, y[1:], y

    compiled = torch.compile(fn, backend="pjrt")
    x = torch.randn(4)
    same(compiled(x.to(DEVICE)), fn(x))
    a, b, c, d = compiled(x.to(DEVICE))
    b.zero_()
    assert a.sum().item() == c.sum().item() == d.sum().item() == 0


@pytest.mark.parametrize("dtype", [torch.complex64, torch.int64, torch.int8, torch.bool, torch.bfloat16, torch.float64])
def test_dtypes(dtype: torch.dtype) -> None:
    x = torch.tensor([[0, 1, 2], [3, 1, 0]]).to(dtype)
    check(lambda x: (x, x + x, x.sum(), x == x.t().t()), x)


def test_complex_gradients_and_conjugate_arguments() -> None:
    x = torch.randn(3, dtype=torch.complex64, requires_grad=True)
    check(lambda x: (x * x.conj()).real + x.abs(), x)
    y = torch.randn(3, dtype=torch.complex64)
    compiled = torch.compile(lambda t: t * (1 + 2j), backend="pjrt")
    same(compiled(y.to(DEVICE).conj()), y.conj() * (1 + 2j))


def test_numbers_and_none_among_the_outputs() -> None:
    def fn(x: torch.Tensor, n: int) -> dict[str, object]:
        return {"sum": x.sum(), "n": n + 1, "nothing": None, "size": x.shape[0], "name": "x"}

    check(fn, torch.ones(3), 4)


def test_an_empty_argument_and_an_empty_result() -> None:
    check(lambda x: (x * 2, x.sum(), x.new_empty(0, 3) + 1), torch.empty(0, 4))


def test_channels_last_arguments_and_results() -> None:
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last).requires_grad_()
    compiled = check(lambda t: (t * 2).relu(), x)
    assert compiled(on_device(x)).is_contiguous(memory_format=torch.channels_last)
    check_module(nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last), x, rtol=1e-4, atol=1e-5)


def test_batch_norm_updates_its_statistics_in_place() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    there = check_module(net, torch.randn(2, 3, 5, 5), rtol=1e-4, atol=1e-5)
    assert there[1].num_batches_tracked.item() == 2
    check_module(net.eval(), torch.randn(2, 3, 5, 5))


def test_tied_weights_get_the_gradient_of_both_uses() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(7, 4)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return nn.functional.linear(self.embed(ids).tanh(), self.embed.weight)

    check_module(Tied(), torch.tensor([[1, 2, 6], [0, 2, 2]]))


def test_tensors_made_and_held_by_the_function() -> None:
    table = torch.tensor([1.0, 2.0, 4.0])

    def fn(x: torch.Tensor) -> torch.Tensor:
        return (
            x * torch.tensor([1.0, -1.0, 3.0], device=x.device) + table.to(x.device) + torch.arange(3, device=x.device)
        )

    check(fn, torch.randn(2, 3))


def test_cpu_scalars_and_tensors_mix_in() -> None:
    x = torch.randn(3)
    scale = torch.tensor(2.5)
    compiled = torch.compile(lambda t, s: (t * s, s + 1, t.cpu()), backend="pjrt")
    product, more, copied = compiled(x.to(DEVICE), scale)
    assert (product.device.type, more.device.type, copied.device.type) == (DEVICE, "cpu", "cpu")
    same((product, more, copied), (x * scale, scale + 1, x))


def test_as_strided_counts_in_the_memory_of_its_argument() -> None:
    check(lambda x: (x.t().as_strided((2, 3), (1, 2)), (x * 2).t().as_strided((2, 2), (2, 3), 1)), torch.randn(4, 3))


def test_as_strided_counts_in_the_memory_around_its_argument() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.as_strided((2, 3), (2, 1)) + 1, x.as_strided((2, 3), (2, 1), 7) + 1, x[1:].as_strided((4,), (3,)) + 1

    compiled = torch.compile(fn, backend="pjrt", fullgraph=True)
    base = torch.arange(60.0).reshape(6, 10)
    there = base.to(DEVICE)
    for part in (slice(2, 5), slice(4, 7)):  # one program: where the argument starts is run-time data
        same(compiled(there[:, part]), fn(base[:, part]))
    same(compiled(there.t()[:, 1:]), fn(base.t()[:, 1:]))
    same(compiled(there[1:4]), fn(base[1:4]))
    assert len(module.compiler.report().graphs[0].programs) == 1

    def negated(x: torch.Tensor) -> torch.Tensor:
        x.as_strided((2, 2), (10, 1)).neg_()
        return x.sum()

    same(torch.compile(negated, backend="pjrt", fullgraph=True)(there[1:, 3:6]), negated(base[1:, 3:6]))
    same(there, base)
    below = torch.compile(lambda x: x.as_strided((2, 10), (10, 1)) + 1, backend="pjrt", fullgraph=True)
    same(below(there[3:4]), base[3:5] + 1)
    with pytest.raises(RuntimeError, match=r"as_strided: sizes \[2, 10\].* outside of the storage, which has 60"):
        below(there[5:6]).cpu()


def test_a_write_to_a_part_of_an_argument_leaves_the_rest() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        x[1:, ::2] = 7
        x.view(-1)[3] += 1
        x.diagonal().neg_()
        return x.sum()

    check(fn, torch.randn(4, 5))


def test_a_result_that_is_also_an_arguments_new_content_is_a_value_of_its_own() -> None:
    compiled = torch.compile(lambda t: t.add_(1).clone(), backend="pjrt")
    x = torch.zeros(2, device=DEVICE)
    first = compiled(x)
    second = compiled(x)
    assert (first.tolist(), second.tolist(), x.tolist()) == ([1, 1], [2, 2], [2, 2])


def test_retain_graph_runs_the_backward_pass_twice() -> None:
    x = torch.randn(3, device=DEVICE, requires_grad=True)
    y = torch.compile(lambda t: (t * t).sum(), backend="pjrt")(x)
    y.backward(retain_graph=True)
    y.backward()
    torch.testing.assert_close(x.grad.cpu(), 4 * x.detach().cpu())


def test_a_program_called_with_a_tensor_of_another_device_says_which() -> None:
    from torch_pjrt import _C

    functions = {name: lambda *a: None for name in ("compile", "copy", "dispatched", "explain")}
    graph = _C.Graph(0, [1], [], 0, functions, None)
    with pytest.raises(RuntimeError, match=r"argument 0 of a compiled graph: expected a tensor on .*, got one on cpu"):
        graph([torch.ones(2)])
    with pytest.raises(RuntimeError, match="takes 1 arguments and was called with 2"):
        graph([1, 2])
