"""Branches and loops inside compiled programs: values and gradients are those of PyTorch on the CPU, run eagerly."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._higher_order_ops import associative_scan, scan, while_loop
from torch._higher_order_ops import map as hop_map
from torch.utils.checkpoint import checkpoint

from ..conftest import DEVICE
from .check import check, same

module = getattr(torch, DEVICE)
Tensor = torch.Tensor


def one_program() -> None:
    """Assert that no graph compiled so far was split."""
    graphs = module.compiler.report().graphs
    assert graphs
    assert all(g.segments == 1 and not g.eager_ops for g in graphs), [g.eager_ops for g in graphs]


def weight() -> Tensor:
    return torch.linspace(-1, 1, 16).reshape(4, 4).requires_grad_()


def rows() -> Tensor:
    return torch.linspace(-2, 3, 12).reshape(3, 4).requires_grad_()


def branches(x: Tensor, w: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda t: (t @ w).sin(), lambda t: (t * 2) @ w, (x,))


@pytest.mark.parametrize("sign", [1, -1])
def test_cond_takes_the_branch_that_data_asks_for(sign: int) -> None:
    check(branches, (rows().detach() * sign).requires_grad_(), weight())
    one_program()


def test_cond_on_a_size_evaluates_one_branch() -> None:
    def fn(x: Tensor) -> Tensor:
        return torch.cond(x.shape[0] > 4, lambda t: t.sin(), lambda t: t.cos(), (x,))

    compiled = check(fn, torch.randn(3, 2), dynamic=True)
    x = torch.randn(6, 2)
    same(compiled(x.to(DEVICE)), fn(x))


def test_cond_with_a_tree_of_results_and_a_constant() -> None:
    def fn(x: Tensor) -> dict[str, Any]:
        return torch.cond(
            x[0, 0] > 0,
            lambda t: {"a": t.sin(), "b": (t.sum(), t.to(torch.float64))},
            lambda t: {"a": t * torch.tensor([1.0, 2.0, 3.0, 4.0], device=t.device), "b": (t.max(), t.double() + 1)},
            (x,),
        )

    check(fn, rows())
    check(fn, (-rows()).detach())
    one_program()


def test_a_cond_within_a_cond() -> None:
    def fn(x: Tensor) -> Tensor:
        def inner(t: Tensor) -> Tensor:
            return torch.cond(t.max() > 2, lambda u: u * 3, lambda u: u + 1, (t,))

        return torch.cond(x.sum() > 0, inner, lambda t: -t, (x,))

    for x in (rows(), rows().detach() * 0.1 + 1, -rows().detach()):
        check(fn, x)
    one_program()


def while_below(x: Tensor) -> tuple[Tensor, Tensor]:
    return while_loop(
        lambda n, t: (t.abs().max() < 100) & (n < 50),
        lambda n, t: (n + 1, t * 1.5),
        (torch.zeros((), dtype=torch.int64, device=x.device), x),
    )


def test_while_loop_runs_as_often_as_data_asks_for() -> None:
    for x in (torch.ones(3), torch.full((3,), 90.0), torch.full((3,), 200.0)):
        check(while_below, x)
    one_program()


def test_while_loop_with_closures() -> None:
    def fn(x: Tensor, w: Tensor, n: Tensor) -> Tensor:
        return while_loop(lambda i, t: i < n, lambda i, t: (i + 1, (t @ w).tanh()), (n * 0, x))[1]

    check(fn, rows().detach(), weight().detach(), torch.tensor(5))
    one_program()


def test_a_while_loop_with_gradients_is_as_in_eager() -> None:
    """PyTorch stacks each turn's values, a size that depends on data: the loop itself stays outside the programs."""
    check(lambda x: while_below(x)[1], torch.ones(3, requires_grad=True))


def recurrence(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return scan(lambda c, t: ((c @ w + t).tanh(), (c * t).sin()), torch.zeros(4, device=x.device), x)


def test_scan_and_its_gradient() -> None:
    check(recurrence, rows(), weight())
    one_program()


def test_scan_with_trees_along_another_dimension_backwards() -> None:
    def fn(x: Tensor, y: Tensor) -> Any:
        def step(carry: dict[str, Tensor], row: tuple[Tensor, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
            a = carry["a"] * 0.5 + row[0]
            return {"a": a, "n": carry["n"] + 1}, a * row[1]

        init = {"a": torch.ones(3, device=x.device), "n": torch.zeros((), dtype=torch.int64, device=x.device)}
        return scan(step, init, (x, y), dim=1, reverse=True)

    check(fn, rows().detach(), torch.randn(3, 4))
    one_program()


def test_scan_of_one_row() -> None:
    check(recurrence, rows().detach()[:1].requires_grad_(), weight())


def test_a_cond_in_a_scan() -> None:
    def fn(x: Tensor) -> Any:
        def step(c: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
            d = torch.cond(t.sum() > 0, lambda u, v: u + v, lambda u, v: u * v, (c, t))
            return d, d.cos()

        return scan(step, torch.ones(4, device=x.device), x)

    check(fn, rows().detach())
    one_program()


def test_a_scan_in_half_precision_keeps_its_dtypes() -> None:
    def fn(x: Tensor) -> Any:
        return scan(lambda c, t: (c + t, c.float()), torch.zeros(4, dtype=x.dtype, device=x.device), x)

    check(fn, rows().detach().bfloat16())
    one_program()


def test_map_and_its_gradient() -> None:
    check(lambda x, w: hop_map(lambda t, v: ((t @ v).sin(), t.sum()), x, w), rows(), weight())
    one_program()


@pytest.mark.parametrize("mode", ["generic", "pointwise"])
def test_associative_scan(mode: str) -> None:
    def fn(x: Tensor, y: Tensor) -> Any:
        def combine(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            return a[0] * b[0], a[1] * b[0] + b[1]

        where = mode if x.device.type == DEVICE else "generic"
        return associative_scan(combine, (x, y), 0, combine_mode=where)

    check(fn, rows().detach(), torch.randn(3, 4))
    one_program()


def test_associative_scan_has_a_gradient() -> None:
    def fn(x: Tensor) -> Tensor:
        where = "pointwise" if x.device.type == DEVICE else "generic"
        return associative_scan(lambda a, b: a * b, x, 0, combine_mode=where)

    check(fn, rows())


def test_sizes_that_change() -> None:
    compiled = torch.compile(recurrence, backend="pjrt", fullgraph=True, dynamic=True)
    w = weight()
    for n in (3, 5, 11, 7):
        x, there = (torch.linspace(-1, 1, 4 * n).reshape(n, 4).to(d).requires_grad_() for d in ("cpu", DEVICE))
        v = w.detach().to(DEVICE).requires_grad_()
        w.grad = None
        expected, got = recurrence(x, w), compiled(there, v)
        same(got, expected)
        sum(t.sum() for t in expected).backward()
        sum(t.sum() for t in got).backward()
        same((there.grad, v.grad), (x.grad, w.grad))


def test_checkpoint_recomputes_with_the_same_dropout() -> None:
    def fn(x: Tensor) -> Tensor:
        return checkpoint(lambda t: torch.nn.functional.dropout(t.exp(), 0.5), x, use_reentrant=False)

    x = torch.zeros(1000, device=DEVICE, requires_grad=True)
    y = torch.compile(fn, backend="pjrt", fullgraph=True)(x)
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad.cpu(), y.detach().cpu())
    one_program()


def test_each_turn_of_a_scan_draws_anew_and_its_gradient_is_for_what_it_drew() -> None:
    def fn(x: Tensor) -> Tensor:
        def step(c: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
            return c + 1, torch.nn.functional.dropout(t, 0.5) + 0 * c

        return scan(step, torch.zeros(500, device=x.device), x)[1]

    compiled = torch.compile(fn, backend="pjrt", fullgraph=True)
    x = torch.ones(3, 500, device=DEVICE, requires_grad=True)
    torch.manual_seed(3)
    y = compiled(x)
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad.cpu(), y.detach().cpu())
    first, second, third = y.detach().cpu()
    assert not torch.equal(first, second)
    assert not torch.equal(second, third)
    assert 0.4 < (y != 0).float().mean().item() < 0.6
    again = compiled(x)
    assert not torch.equal(again, y)
    torch.manual_seed(3)
    assert torch.equal(compiled(x), y)
    one_program()


def test_each_turn_of_a_while_loop_draws_anew() -> None:
    def fn(x: Tensor) -> Tensor:
        def turn(n: Tensor, was: Tensor, now: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            return n + 1, now.clone(), torch.rand_like(now)

        return while_loop(lambda n, was, now: n < 3, turn, (torch.zeros((), device=x.device), x, x + 0))[1:]

    was, now = (t.cpu() for t in torch.compile(fn, backend="pjrt", fullgraph=True)(torch.ones(400, device=DEVICE)))
    assert not torch.equal(was, now)
    assert abs(torch.corrcoef(torch.stack([was, now]))[0, 1].item()) < 0.2
    assert abs(was.mean().item() - 0.5) < 0.1
    one_program()


def test_a_branch_that_draws_works_without_gradients_and_is_refused_with_them() -> None:
    def fn(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda t: torch.nn.functional.dropout(t, 0.5), lambda t: t * 2, (x,))

    compiled = torch.compile(fn, backend="pjrt", fullgraph=True)
    x = torch.ones(1000, device=DEVICE)
    y = compiled(x)
    assert 300 < (y == 2).sum().item() < 700
    assert not torch.equal(compiled(x), y)
    one_program()
    with pytest.raises(Exception, match=r"(?s)cond would draw the random numbers.*test_control_flow.py"):
        compiled(x.requires_grad_())


def test_an_index_out_of_range_in_a_body_raises_with_the_users_line() -> None:
    def fn(x: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        return scan(lambda c, i: (c + x.index_select(0, i[None])[0], c * 1), torch.zeros(4, device=x.device), at)

    compiled = torch.compile(fn, backend="pjrt", fullgraph=True)
    x = rows().detach()
    good, bad = torch.tensor([0, 2, 1]), torch.tensor([0, 7, 1])
    same(compiled(x.to(DEVICE), good.to(DEVICE)), fn(x, good))
    with pytest.raises(IndexError, match=r"index 7 is out of bounds.*test_control_flow.py"):
        compiled(x.to(DEVICE), bad.to(DEVICE))[0].cpu()


def test_only_the_branch_taken_is_checked() -> None:
    def fn(x: Tensor, i: Tensor) -> Tensor:
        return torch.cond(i.sum() < 3, lambda j: x[j] * 2, lambda j: x[j - 3], (i,))

    compiled = torch.compile(fn, backend="pjrt", fullgraph=True)
    x = torch.arange(3.0)
    for i in ([0, 1], [3, 5]):
        same(compiled(x.to(DEVICE), torch.tensor(i, device=DEVICE)), fn(x, torch.tensor(i)))
    with pytest.raises(IndexError, match="index 4 is out of bounds"):
        compiled(x.to(DEVICE), torch.tensor([3, 7], device=DEVICE)).cpu()


def test_a_while_loop_keeps_what_an_early_turn_has_found() -> None:
    def fn(x: Tensor, i: Tensor) -> Tensor:
        return while_loop(
            lambda n, c: n < 4, lambda n, c: (n + 1, c + x.index_select(0, (i - n)[None])[0]), (i * 0, x[0] + 0)
        )[1]

    compiled = torch.compile(fn, backend="pjrt", fullgraph=True)
    x = torch.arange(4.0)
    same(compiled(x.to(DEVICE), torch.tensor(3, device=DEVICE)), fn(x, torch.tensor(3)))
    with pytest.raises(IndexError, match="index 4 is out of bounds"):
        compiled(x.to(DEVICE), torch.tensor(4, device=DEVICE)).cpu()


def test_a_body_that_fails_to_lower_names_its_own_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch_pjrt.lowering import registry
    from torch_pjrt.lowering.apply import find

    def broken(*args: object) -> None:
        raise RuntimeError("no")

    def body(c: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        return torch.special.bessel_j0(c), t * 2

    monkeypatch.setitem(registry._TABLE, "special_bessel_j0", registry.Lowering(broken))
    find.cache_clear()
    try:
        fn = torch.compile(lambda t: scan(body, t[0], t), backend="pjrt")
        with pytest.raises(
            Exception, match=r"(?s)RuntimeError: no.*special_bessel_j0.*test_control_flow.py:\d+ in body"
        ):
            fn(torch.ones(2, 2, device=DEVICE))
    finally:
        find.cache_clear()


def test_a_body_with_an_op_without_a_lowering_runs_outside_the_programs() -> None:
    @torch.library.custom_op("torch_pjrt_tests::in_a_branch", mutates_args=())
    def strange(x: Tensor) -> Tensor:
        return x * 2 + 1

    strange.register_fake(torch.empty_like)
    check(lambda x: torch.cond(x.sum() > 0, lambda t: strange(t), lambda t: t.cos(), (x * 2,)) + 1, rows().detach())
    assert any("cond" in op for op in module.compiler.report().graphs[-1].eager_ops)


def test_bodies_are_part_of_what_two_graphs_must_have_in_common() -> None:
    def twice(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda t: t * 2, lambda t: t + 2, (x,))

    def thrice(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda t: t * 3, lambda t: t + 3, (x,))

    def double(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda y: y * 2, lambda y: y + 2, (x,))

    x = torch.ones(3)
    for fn, origin in ((twice, "compiled"), (thrice, "compiled"), (double, "shared")):
        same(torch.compile(fn, backend="pjrt", fullgraph=True)(x.to(DEVICE)), fn(x))
        assert module.compiler.report().graphs[-1].programs[-1].origin == origin


def test_autocast_around_and_inference_mode() -> None:
    def fn(x: Tensor, w: Tensor) -> Tensor:
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            return branches(x, w)

    x, w = rows().detach(), weight().detach()
    got = torch.compile(fn, backend="pjrt", fullgraph=True)(x.to(DEVICE), w.to(DEVICE))
    same(got, fn(x, w), rtol=2e-2, atol=2e-2)
    with torch.inference_mode():
        same(torch.compile(recurrence, backend="pjrt")(x.to(DEVICE), w.to(DEVICE)), recurrence(x, w))


def test_a_body_that_writes_to_its_operand_is_pytorchs_error() -> None:
    def step(c: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        t.add_(1)
        return c + t, t * 2

    compiled = torch.compile(lambda x: scan(step, x[0] * 1, x), backend="pjrt", fullgraph=True)
    with pytest.raises(Exception, match="mutat"):
        compiled(torch.ones(2, 3, device=DEVICE))
