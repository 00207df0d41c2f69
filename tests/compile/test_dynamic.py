"""Sizes that change: Dynamo's graph is kept, each new size is a program of its own, and the values are the size's."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.decorators import mark_unbacked
from torch.fx.experimental.dynamic_spec import IntVar, ShapesSpec, ShapeVar, TensorSpec

from ..conftest import DEVICE
from ..process import output
from .check import same

module = getattr(torch, DEVICE)


class Attention(nn.Module):
    """One causal block with everything in it that a padded size would get wrong: softmax, means, norms, masks."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.qkv = nn.Linear(8, 24)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 11)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        q, k, v = self.qkv(self.norm(x)).view(*ids.shape, 3, 2, 4).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + y.transpose(1, 2).reshape(x.shape)
        return self.head(x) - x.mean((1, 2), keepdim=True)


@pytest.mark.parametrize("dynamic", [None, True])
def test_every_length_matches_the_cpu_forward_and_backward(dynamic: bool | None) -> None:
    torch.manual_seed(0)
    net = Attention()
    there = Attention().to(DEVICE)
    there.load_state_dict(net.state_dict())
    compiled = torch.compile(there, backend="pjrt", dynamic=dynamic, fullgraph=True)
    for length in (5, 7, 3, 7, 1, 12):
        ids = torch.arange(2 * length).reshape(2, length) % 11
        loss = nn.functional.cross_entropy(net(ids).flatten(0, 1), ids.flatten())
        got = nn.functional.cross_entropy(compiled(ids.to(DEVICE)).flatten(0, 1), ids.flatten().to(DEVICE))
        net.zero_grad()
        there.zero_grad()
        loss.backward()
        got.backward()
        same(got, loss, rtol=1e-4, atol=1e-5)
        for p, q in zip(there.parameters(), net.parameters(), strict=True):
            same(p.grad, q.grad, rtol=1e-4, atol=1e-5)


def test_a_first_size_has_its_own_program_and_the_others_share_those_of_buckets() -> None:
    compiled = torch.compile(lambda x: torch.softmax(x, 0) * x.shape[0], backend="pjrt", dynamic=True)
    for n in (4, 9, 5, 9, 4, 11, 7, 12, 8, 6):
        x = torch.randn(n)
        same(compiled(x.to(DEVICE)), torch.softmax(x, 0) * n)
    (graph,) = module.compiler.report().graphs
    assert [(p.sizes, p.padded) for p in graph.programs] == [((4,), False), ((12,), True), ((8,), True)]


def test_mark_dynamic_with_bounds() -> None:
    compiled = torch.compile(lambda x: x.cumsum(0) * x.shape[0], backend="pjrt", fullgraph=True)
    for n in (4, 6, 10):
        x = torch.randn(n)
        there = x.to(DEVICE)
        torch._dynamo.mark_dynamic(there, 0, min=2, max=64)
        same(compiled(there), x.cumsum(0) * n)
    assert len(module.compiler.report().graphs) == 1


def test_mark_unbacked_serves_all_lengths_with_the_programs_of_buckets() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        torch._check(x.shape[0] != 7, lambda: "seven is out")
        return x.softmax(0) * x.shape[0]

    compiled = torch.compile(fn, backend="pjrt", fullgraph=True)
    for n in (4, 9, 5, 12, 1, 0, 6):
        x = torch.randn(n, 2)
        there = x.to(DEVICE).requires_grad_()
        mark_unbacked(there, 0)
        got = compiled(there)
        same(got, fn(x))
        got.square().sum().backward()
        here = x.requires_grad_()
        fn(here).square().sum().backward()
        same(there.grad, here.grad, rtol=1e-4, atol=1e-5)
    assert all(padded and count == 3 for _, count, padded in programs())
    there = torch.randn(7, 2, device=DEVICE, requires_grad=True)
    mark_unbacked(there, 0)
    with pytest.raises(RuntimeError, match="seven is out"):
        compiled(there)


def test_shapes_spec_names_the_sizes_that_vary_and_their_bounds() -> None:
    n, m = ShapeVar("n", min=2, max=64), ShapeVar("m")
    spec = ShapesSpec({"x": TensorSpec([n, 3]), "y": TensorSpec([m, 3]), "k": IntVar("k")}, assumptions=[n * 2 == m])

    def fn(x: torch.Tensor, y: torch.Tensor, k: int) -> torch.Tensor:
        return torch.cat([x, y]).cumsum(0) * k

    compiled = torch.compile(fn, backend="pjrt", fullgraph=True, shapes_spec=spec)
    for length, k in ((4, 2), (9, 3), (33, 7), (14, 2)):
        x, y = torch.randn(length, 3), torch.randn(2 * length, 3)
        same(compiled(x.to(DEVICE), y.to(DEVICE), k), fn(x, y, k), rtol=1e-4, atol=1e-5)
    assert len(programs()) == 1


def test_sizes_among_arguments_and_results() -> None:
    def fn(x: torch.Tensor, n: int) -> tuple[torch.Tensor, int, int]:
        return x.repeat(n).reshape(n, -1), x.shape[0] * n, n + 1

    compiled = torch.compile(fn, backend="pjrt", dynamic=True)
    for length, n in ((3, 2), (4, 5), (6, 3)):
        x = torch.randn(length)
        same(compiled(x.to(DEVICE), n), fn(x, n))


def test_a_growing_cache_that_is_written_to() -> None:
    cache, there = torch.zeros(8, 3), torch.zeros(8, 3, device=DEVICE)

    def append(cache: torch.Tensor, x: torch.Tensor, at: int) -> torch.Tensor:
        cache[at : at + x.shape[0]] = x
        return cache[: at + x.shape[0]].sum(0)

    compiled = torch.compile(append, backend="pjrt", dynamic=True)
    at = 0
    for n in (2, 1, 3):
        x = torch.randn(n, 3)
        same(compiled(there, x.to(DEVICE), at), append(cache, x, at))
        same(there, cache)
        at += n


@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True)
def test_shapes_that_depend_on_data() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        kept = (x * 2)[x > 0]
        return kept.sum() + kept.shape[0], x.nonzero() + 1

    compiled = torch.compile(fn, backend="pjrt", fullgraph=True)
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(9)
        same(compiled(x.to(DEVICE)), fn(x))


def test_a_float_argument_that_changes() -> None:
    compiled = torch.compile(lambda x, a: x * a + a, backend="pjrt")
    x = torch.randn(3)
    for a in (0.5, 0.25, -2.0, 1e-3):
        same(compiled(x.to(DEVICE), a), x * a + a)


def bounded(x: torch.Tensor, dim: int, largest: int, smallest: int = 2) -> torch.Tensor:
    there = x.to(DEVICE)
    if x.shape[dim] > 1:
        torch._dynamo.mark_dynamic(there, dim, min=smallest, max=largest)
    return there


def programs() -> list[tuple[str, int, bool]]:
    return [(g.kind, len(g.programs), g.not_padded is None) for g in module.compiler.report().graphs]


def test_bounds_give_a_few_programs_for_all_lengths_and_gradients() -> None:
    torch.manual_seed(0)
    net = Attention()
    there = copy.deepcopy(net).to(DEVICE)

    def loss(net: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(net(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())

    compiled = torch.compile(lambda ids: loss(there, ids), backend="pjrt", fullgraph=True)
    for length in range(60, 2, -3):
        ids = torch.randint(11, (2, length))
        net.zero_grad()
        there.zero_grad()
        expected, got = loss(net, ids), compiled(bounded(ids, 1, 60, 3))
        expected.backward()
        got.backward()
        same(got, expected, rtol=1e-4, atol=1e-5)
        for p, q in zip(there.parameters(), net.parameters(), strict=True):
            same(p.grad, q.grad, rtol=1e-4, atol=1e-5)
    assert programs() == [("forward", 4, True), ("backward", 4, True)]  # up to 16, 32, 48, 60


def test_dropout_masks_are_those_of_eager_at_every_length() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3, batch_first=True).to(DEVICE)
    compiled = torch.compile(layer, backend="pjrt", fullgraph=True)
    for length in (5, 9, 6, 11):
        x = torch.randn(3, length, 8)
        outputs, gradients = [], []
        for fn in (layer, compiled):
            layer.zero_grad()
            torch.manual_seed(length)
            out = fn(bounded(x, 1, 40))
            out.square().sum().backward()
            outputs.append(out)
            gradients.append([p.grad.cpu() for p in layer.parameters()])
        same(outputs[1], outputs[0].cpu(), rtol=1e-4, atol=1e-5)
        for a, b in zip(*gradients, strict=True):
            same(b, a, rtol=1e-3, atol=1e-4)
    assert all(padded and count == 2 for _, count, padded in programs())


def test_results_of_padded_programs_are_ordinary_tensors() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.cumsum(1), x.transpose(0, 1) + 1, x[:, -1], x.flatten(), x[:, 1:]

    compiled = torch.compile(fn, backend="pjrt", fullgraph=True)
    for length in (9, 12, 7):
        x = torch.randn(3, length)
        for got, expected in zip(compiled(bounded(x, 1, 30, 3)), fn(x), strict=True):
            same(got, expected)
            assert got.stride() == expected.stride()
            same(got.reshape(-1) * 2, expected.reshape(-1) * 2)


def test_arguments_that_are_views_and_a_batch_that_varies_with_the_length() -> None:
    compiled = torch.compile(
        lambda x, y: (x.softmax(-1) @ y).mean((0, 1)), backend="pjrt", fullgraph=True, dynamic=True
    )
    for batch, length in ((2, 5), (3, 7), (5, 6), (9, 11), (4, 5), (7, 9)):
        x, y = torch.randn(length, batch, length), torch.randn(length + 2, batch, 4)
        expected = (x.transpose(0, 1).softmax(-1) @ y[2:].transpose(0, 1)).mean((0, 1))
        same(compiled(x.to(DEVICE).transpose(0, 1), y.to(DEVICE)[2:].transpose(0, 1)), expected, rtol=1e-4, atol=1e-5)
    (graph,) = module.compiler.report().graphs
    assert graph.not_padded is None
    assert len(graph.programs) < 6


def test_an_index_out_of_range_names_the_real_size() -> None:
    compiled = torch.compile(lambda x, i: x[i], backend="pjrt", fullgraph=True)
    for length in (9, 7):
        x = torch.randn(length)
        same(compiled(bounded(x, 0, 30), torch.tensor([0, -length], device=DEVICE)), x[[0, -length]])
        with pytest.raises(IndexError, match=f"{length} is out of bounds for dimension 0 with size {length}"):
            compiled(bounded(x, 0, 30), torch.tensor([0, length], device=DEVICE)).cpu()
    assert programs() == [("inference", 1, True)]


def test_what_cannot_be_padded_has_a_program_for_each_size_and_the_report_says_why() -> None:
    compiled = torch.compile(lambda x: torch.linalg.det(x @ x.mT), backend="pjrt", fullgraph=True, dynamic=True)
    for n in (3, 4, 5):
        x = torch.randn(n, 6)
        same(compiled(x.to(DEVICE)), torch.linalg.det(x @ x.mT), rtol=1e-3, atol=1e-3)
    (graph,) = module.compiler.report().graphs
    assert len(graph.programs) == 3
    assert "size that varies" in str(module.compiler.report())


def test_batches_of_images_that_vary_and_the_buffers_they_write_to() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    there = copy.deepcopy(net).to(DEVICE)
    compiled = torch.compile(there, backend="pjrt", fullgraph=True)
    for batch in (9, 12, 7, 30):
        x = torch.randn(batch, 3, 4, 4) + 1
        net.zero_grad()
        there.zero_grad()
        got, expected = compiled(bounded(x, 0, 64)), net(x)
        same(got, expected, rtol=1e-4, atol=1e-5)
        got.square().mean().backward()
        expected.square().mean().backward()
        for a, b in zip([*there.buffers()], [*net.buffers()], strict=True):
            same(a, b)
        for p, q in zip(there.parameters(), net.parameters(), strict=True):
            same(p.grad, q.grad, rtol=1e-3, atol=1e-5)
    assert programs() == [("forward", 2, True), ("backward", 2, True)]


def test_equal_graphs_share_the_programs_of_buckets_and_another_process_loads_them(tmp_path: Path) -> None:
    program = """
    import torch

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Softmax(0)).to("DEVICE")
    for fn in (lambda x: net(x), lambda x: net(x)):
        compiled = torch.compile(fn, backend="pjrt")
        for n in (9, 12, 10):
            x = torch.ones(n, 3, device="DEVICE")
            torch._dynamo.mark_dynamic(x, 0, min=2, max=40)
            compiled(x).sum().backward()
    assert abs(float(compiled(x).sum()) - 4) < 1e-5
    records = [p for g in torch.DEVICE.compiler.report().graphs for p in g.programs]
    print([(p.origin, p.padded) for p in records])
    """.replace("DEVICE", DEVICE)
    told = [output(program, TORCH_PJRT_CACHE_DIR=str(tmp_path)).strip() for _ in range(2)]
    for text, origin in zip(told, ("compiled", "loaded"), strict=True):
        assert text == str([(origin, True)] * 2 + [("shared", True)] * 2)


def test_backward_passes_may_come_later_and_in_another_order() -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4), nn.Softmax(-2), nn.Flatten(0, 1), nn.Linear(4, 2))
    there = copy.deepcopy(net).to(DEVICE)
    compiled = torch.compile(there, backend="pjrt", fullgraph=True)
    inputs = [torch.randn(3, length, 4) for length in (10, 22, 15, 12, 12)]
    got = [compiled(bounded(x, 1, 40)) for x in inputs]
    expected = [net(x) for x in inputs]
    for i in (2, 0, 4, 1, 3):
        net.zero_grad()
        there.zero_grad()
        got[i].square().sum().backward()
        expected[i].square().sum().backward()
        for p, q in zip(there.parameters(), net.parameters(), strict=True):
            same(p.grad, q.grad, rtol=1e-4, atol=1e-5)
    assert programs() == [("forward", 3, True), ("backward", 3, True)]  # up to 12, 18, 24


def test_what_decreases_with_a_size_is_right() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rest = torch.cat([x.exp(), x.new_zeros(4, 64 - x.shape[1])], 1).softmax(1)
        return w[x.shape[1] :].sum() + x.sum(), rest, (x + w[: x.shape[1]]).sum(1), w[: x.shape[1]].mean(0)

    compiled, w = torch.compile(fn, backend="pjrt", fullgraph=True), torch.randn(64)
    for length in (9, 12, 10):
        x = torch.randn(4, length)
        for got, expected in zip(compiled(bounded(x, 1, 60), w.to(DEVICE)), fn(x, w), strict=True):
            same(got, expected, rtol=1e-4, atol=1e-5)


def test_many_numbers_that_vary_are_told_apart() -> None:
    def fn(x: torch.Tensor, i: int, j: int, k: int) -> tuple[torch.Tensor, ...]:
        return x * i, x * j, x * k, x * x.shape[0]

    compiled = torch.compile(fn, backend="pjrt", dynamic=True)
    for length, *numbers in ((9, 3, 4, 5), (11, 10, 12, 11), (7, 9, 8, 10), (10, 5, 6, 7)):
        x = torch.randn(length)
        for got, expected in zip(compiled(x.to(DEVICE), *numbers), fn(x, *numbers), strict=True):
            same(got, expected)


def test_a_view_that_is_written_to_beside_a_size_that_varies() -> None:
    def fn(x: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
        buffer.add_(x.sum(1))
        return x * 2

    base, there = torch.zeros(3, 4), torch.zeros(3, 4, device=DEVICE)
    compiled = torch.compile(fn, backend="pjrt", fullgraph=True)
    for length in (9, 12, 7):
        x = torch.randn(4, length)
        same(compiled(bounded(x, 1, 40), there[1]), fn(x, base[1]))
        same(there, base)


def test_a_backward_pass_that_leaves_the_device_gets_real_sizes() -> None:
    @torch.library.custom_op("torch_pjrt_tests::halved", mutates_args=())
    def halved(x: torch.Tensor) -> torch.Tensor:
        return x / 2

    halved.register_fake(torch.empty_like)

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            y = x.exp()
            ctx.save_for_backward(y)
            return y.sum(1)

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad[:, None] * halved(ctx.saved_tensors[0])

    compiled = torch.compile(Function.apply, backend="pjrt")
    for length in (9, 12, 7):
        x = torch.randn(4, length)
        there = x.to(DEVICE).requires_grad_()
        torch._dynamo.mark_dynamic(there, 1, min=3, max=40)
        compiled(there).sum().backward()
        same(there.grad, x.exp() / 2)


def test_a_part_of_a_graph_that_is_given_multiples_of_a_size_only() -> None:
    @torch.library.custom_op("torch_pjrt_tests::thirded", mutates_args=())
    def thirded(x: torch.Tensor) -> torch.Tensor:
        return x / 3

    thirded.register_fake(torch.empty_like)

    def fn(x: torch.Tensor) -> torch.Tensor:
        return thirded(torch.cat([x.exp().flatten(), x.new_ones(3)])) * 2

    compiled = torch.compile(fn, backend="pjrt", fullgraph=True, dynamic=True)
    for length in (9, 12, 7):
        x = torch.randn(length, 4)
        same(compiled(x.to(DEVICE)), fn(x))


def test_a_program_for_padding_that_is_zero_is_not_one_for_padding_that_is_not() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return ((1 / x).t() @ w).mean()

    compiled = torch.compile(fn, backend="pjrt", dynamic=True)

    def call(n: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        x = torch.rand(n, 3) + 0.5
        there = x.to(DEVICE).requires_grad_()
        here = x.requires_grad_()
        return fn(here, torch.ones(n, 2)) + compiled(there, torch.ones(n, 2, device=DEVICE)).cpu(), here, there

    calls = [call(n) for n in (10, 11)]
    for total, here, there in [calls[1], calls[0], call(9)]:
        total.backward()
        same(there.grad, here.grad, rtol=1e-4, atol=1e-5)
