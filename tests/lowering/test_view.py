"""Views over a storage's dense array: `read` and `write` against CPU PyTorch's own strided tensors."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import jax
import jax.numpy as jnp
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torch_pjrt.lowering.view import Layout, ViewPlan, plan, read, write

from .check import to_cpu, to_jax

View = Callable[[torch.Tensor], torch.Tensor]
# Every case is a program of its own, run once: time goes into compiling.
QUICKLY = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def layout(t: torch.Tensor) -> Layout:
    return Layout(t.dtype, tuple(t.shape), tuple(t.stride()), t.storage_offset())


def base_of(*sizes: int, order: tuple[int, ...] | None = None, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A dense tensor of distinct values where the dtype has them; `order`: dimensions, outermost in memory first."""
    order = order or tuple(range(len(sizes)))
    t = torch.arange(1, prod(sizes) + 1).reshape([sizes[d] for d in order])
    t = (t % 3 == 0) if dtype == torch.bool else (t + 0.5j * t).to(dtype) if dtype.is_complex else t.to(dtype)
    return t.permute([order.index(d) for d in range(len(sizes))])


def check(base: torch.Tensor, view: torch.Tensor, *, writable: bool = True) -> ViewPlan:
    """Hold read and write, with starts at compile time and at run time, against the CPU tensors."""
    found = plan(layout(base), layout(view))
    value = base_of(*view.shape, dtype=torch.int64).flip(list(range(view.ndim))).to(view.dtype) + torch.ones(
        (), dtype=view.dtype
    )
    after = base.clone()
    assert after.stride() == base.stride()
    if writable:
        seen = torch.empty(0, dtype=view.dtype)
        seen.set_(after.untyped_storage(), view.storage_offset(), view.shape, view.stride())
        seen.copy_(value)
    with jax.enable_x64(True):

        def run(x: jax.Array, v: jax.Array, starts: list[jax.Array]) -> list[list[jax.Array]]:
            return [[read(x, found.structure, s), write(x, found.structure, s, v)] for s in (found.starts, starts)]

        starts = [jnp.int32(s) for s in found.starts]
        results = jax.jit(run, compiler_options=QUICKLY)(to_jax(base), to_jax(value), starts)
        for got_view, got_base in results:
            torch.testing.assert_close(to_cpu(got_view), view.contiguous(), rtol=0, atol=0, equal_nan=True)
            if writable:
                torch.testing.assert_close(to_cpu(got_base), after, rtol=0, atol=0, equal_nan=True, check_stride=False)
    return found


def primitives(base: torch.Tensor, view: torch.Tensor) -> list[str]:
    """The names of the primitives that reading the view takes."""
    found = plan(layout(base), layout(view))
    jaxpr = jax.make_jaxpr(lambda x: read(x, found.structure, found.starts))(to_jax(base))
    return [e.primitive.name for e in jaxpr.eqns]


FORMS: dict[str, tuple[tuple[int, ...], View, list[str]]] = {
    "select": ((4, 5, 6), lambda x: x[2], ["slice", "reshape"]),
    "element": ((4, 5, 6), lambda x: x[2, 3, 4], ["slice", "reshape"]),
    "narrow": ((4, 6), lambda x: x[:, 1:3], ["slice"]),
    "narrow of two": ((4, 6), lambda x: x[1:3, 2:5], ["slice"]),
    "transpose": ((4, 6), lambda x: x.t(), ["transpose"]),
    "permute": ((2, 3, 4, 5), lambda x: x.permute(0, 2, 3, 1), ["transpose"]),
    "view": ((4, 6), lambda x: x.view(2, 3, 4), ["reshape"]),
    "flatten": ((2, 3, 4), lambda x: x.flatten(1), ["reshape"]),
    "unsqueeze": ((4, 6), lambda x: x[:, None], ["reshape"]),
    "step": ((4, 6), lambda x: x[:, ::2], ["slice"]),
    "step of the first": ((9, 2), lambda x: x[1::3], ["slice"]),
    "expand": ((4, 1), lambda x: x.expand(4, 3), ["reshape", "broadcast_in_dim"]),
    "expand of a new dimension": ((4,), lambda x: x.expand(3, 4), ["broadcast_in_dim"]),
    "chunk": ((6, 4), lambda x: x.chunk(3)[1], ["slice"]),
    "split of the last": ((4, 9), lambda x: x.split(3, 1)[2], ["slice"]),
    "heads": ((2, 5, 12), lambda x: x.view(2, 5, 3, 4).transpose(1, 2), ["reshape", "transpose"]),
    "diagonal": ((5, 5), lambda x: x.diagonal(), ["reshape", "slice"]),
    "batch of diagonals": ((3, 4, 4), lambda x: x.diagonal(dim1=1, dim2=2), ["reshape", "slice"]),
    "parameter in a flat buffer": ((100,), lambda x: x[7:31].view(4, 6), ["slice", "reshape"]),
    "columns of a flat buffer": ((24,), lambda x: x.view(4, 6)[:, 2:4], ["reshape", "slice"]),
    "non-overlapping windows": ((12,), lambda x: x.unfold(0, 3, 3), ["reshape"]),
}


@pytest.mark.parametrize("name", FORMS)
def test_common_views_are_the_primitives_one_would_write(name: str) -> None:
    sizes, view, expected = FORMS[name]
    base = base_of(*sizes)
    check(base, view(base), writable="expand" not in name)
    assert primitives(base, view(base)) == expected


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x,
        lambda x: x.view(6, 1, 4),
        lambda x: torch.as_strided(x, (6, 1, 4), (4, 99, 1)),
    ],
)
def test_a_view_of_everything_is_the_identity(view: View) -> None:
    base = base_of(6, 1, 4)
    assert check(base, view(base)).structure.identity
    assert primitives(base, view(base)) == []


def test_the_transpose_of_a_square_is_not_the_identity() -> None:
    base = base_of(3, 3)
    assert not check(base, base.t()).structure.identity


SHIFTED: list[tuple[tuple[int, ...], list[View]]] = [
    ((10, 3), [lambda x: x[0:2], lambda x: x[3:5], lambda x: x[8:10]]),
    ((10, 3), [lambda x: x[0], lambda x: x[9], lambda x: x[5]]),
    ((4, 9), [lambda x: x[:, 1:4], lambda x: x[:, 6:9]]),
    ((10, 4), [lambda x: x[0:3, ::2], lambda x: x[7:10, 1::2]]),
    ((40,), [lambda x: x[0:6].view(2, 3), lambda x: x[34:].view(2, 3), lambda x: x[11:17].view(2, 3)]),
    ((40,), [lambda x: x.view(8, 5)[1:3, 1:3], lambda x: x.view(8, 5)[6:8, 3:5]]),
    ((12,), [lambda x: x[0:10].unfold(0, 2, 1), lambda x: x[2:12].unfold(0, 2, 1)]),
]


@pytest.mark.parametrize(("sizes", "views"), SHIFTED)
def test_shifted_views_share_a_structure_and_differ_in_starts(sizes: tuple[int, ...], views: list[View]) -> None:
    base = base_of(*sizes)
    plans = [check(base, view(base), writable=len(views[0](base)) != 9) for view in views]
    assert len({p.structure for p in plans}) == 1
    assert len({p.starts for p in plans}) == len(views)


def test_starts_at_run_time_serve_every_batch_from_one_executable() -> None:
    base = base_of(12, 3)
    found = plan(layout(base), layout(base[0:4]))
    compiled = jax.jit(lambda x, starts: read(x, found.structure, starts))
    x = to_jax(base)
    for i in range(0, 12, 4):
        starts = plan(layout(base), layout(base[i : i + 4])).starts
        assert torch.equal(to_cpu(compiled(x, [jnp.int32(s) for s in starts])), base[i : i + 4])
    assert compiled._cache_size() == 1


AWKWARD: list[tuple[tuple[int, ...], View, bool]] = [
    ((8,), lambda x: x.unfold(0, 3, 1), False),
    ((2, 6), lambda x: x.unfold(1, 4, 2), False),
    ((4, 6), lambda x: x.view(-1)[5:9], True),
    ((4, 6), lambda x: torch.as_strided(x, (3, 2), (7, 3), 2), True),
    ((8,), lambda x: torch.as_strided(x, (3, 2), (3, 1)), True),
    ((20,), lambda x: torch.as_strided(x, (2, 2), (3, 2), 4), True),
    ((30,), lambda x: torch.as_strided(x, (2, 2, 3), (12, 4, 1), 8), True),
    ((5, 2, 5), lambda x: x.diagonal(dim1=0, dim2=2), True),
    ((3, 5), lambda x: x.diagonal(1), True),
    ((5, 3), lambda x: x.diagonal(-1), True),
    ((5,), lambda x: torch.as_strided(x, (3, 2), (0, 2), 1), False),
    ((1,), lambda x: x[0], True),
    ((), lambda x: x.view(1, 1), True),
    ((), lambda x: x.expand(3), False),
    ((4, 6), lambda x: x[4:], True),
    ((0, 3), lambda x: x.t(), True),
    ((3, 0), lambda x: x.view(0), True),
    ((4, 5), lambda x: x[:, ::2][:, 1:], True),
    ((4, 6), lambda x: x.view(4, 2, 3)[:, 1, ::2].t(), True),
]


@pytest.mark.parametrize("case", range(len(AWKWARD)))
def test_awkward_views_read_and_write_as_on_cpu(case: int) -> None:
    sizes, view, writable = AWKWARD[case]
    base = base_of(*sizes)
    check(base, view(base), writable=writable)


@pytest.mark.parametrize("order", [(0, 2, 3, 1), (3, 2, 1, 0), (1, 0, 3, 2)])
@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[1],
        lambda x: x[:, 1:3],
        lambda x: x[..., ::2],
        lambda x: x.permute(2, 0, 3, 1),
        lambda x: x[:, :1].expand(2, 3, 4, 5),
        lambda x: x.contiguous(memory_format=torch.channels_last),
    ],
)
def test_bases_in_any_order_of_dimensions_read_and_write_as_on_cpu(order: tuple[int, ...], view: View) -> None:
    base = base_of(2, 3, 4, 5, order=order)
    seen = view(base)
    if seen.untyped_storage().data_ptr() != base.untyped_storage().data_ptr():
        assert check(seen, seen).structure.identity
    else:
        check(base, seen, writable=0 not in seen.stride())


DTYPES = [torch.bool, torch.uint8, torch.int16, torch.bfloat16, torch.int32, torch.float32, torch.int64, torch.float64]


@pytest.mark.parametrize("source", [*DTYPES, torch.complex64, torch.complex128])
@pytest.mark.parametrize("target", [torch.uint8, torch.int16, torch.float32, torch.int64, torch.complex64])
def test_view_dtype_reads_and_writes_the_bits(source: torch.dtype, target: torch.dtype) -> None:
    base = base_of(3, 16, dtype=source)
    check(base, base.view(target)[..., 1:])


@pytest.mark.parametrize("sizes", [(16,), ()])
def test_view_dtype_of_few_dimensions_reads_and_writes_the_bits(sizes: tuple[int, ...]) -> None:
    base = base_of(*sizes, dtype=torch.float32)
    check(base, base.view(torch.int32))
    if sizes:
        check(base, base.view(torch.float64))


def test_a_bool_view_of_bytes_leaves_the_other_bytes_alone() -> None:
    base = torch.tensor([2, 0, 7, 0], dtype=torch.uint8)
    check(base, base.view(torch.bool)[1:3])
    check(base, base.view(torch.bool))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_real_and_complex_views_read_and_write_as_on_cpu(order: tuple[int, ...]) -> None:
    base = base_of(3, 4, order=order, dtype=torch.complex64)
    check(base, torch.view_as_real(base))
    check(base, base.imag)
    check(base, base.real[1:])
    pairs = base_of(3, 4, 2)
    check(pairs, torch.view_as_complex(pairs))
    check(pairs, torch.view_as_complex(pairs)[:, 1])


def test_a_view_of_wider_items_than_fit_leaves_the_last_bytes_alone() -> None:
    base = base_of(11, dtype=torch.uint8)
    check(base, base[:8].view(torch.float32))
    pieces = base_of(3, 3, dtype=torch.int16)
    check(pieces, pieces.view(-1)[2:8].view(torch.int32))


@pytest.mark.parametrize("view", [Layout(torch.float32, (3,), (2,), 2), Layout(torch.float32, (1,), (1,), 6)])
def test_a_view_that_reaches_outside_its_base_is_an_error(view: Layout) -> None:
    with pytest.raises(ValueError, match=r"needs elements up to 6 of a base that has 6"):
        plan(Layout(torch.float32, (2, 3), (3, 1)), view)


@pytest.mark.parametrize("strides", [(4, 1), (1, 1), (0, 1)])
def test_a_base_with_gaps_or_overlaps_is_an_error(strides: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="must be dense"):
        plan(Layout(torch.float32, (2, 3), strides), Layout(torch.float32, (1,), (1,)))


def step(draw: st.DrawFn, x: torch.Tensor) -> torch.Tensor:
    """One random view of `x`."""
    pick = draw(st.integers(0, 11))
    if x.ndim == 0:
        return x.expand(2) if pick == 0 else x[None]
    d = draw(st.integers(0, x.ndim - 1))
    n = x.shape[d]
    match pick:
        case 0:
            start = draw(st.integers(0, n))
            return x.narrow(d, start, draw(st.integers(0, n - start)))
        case 1:
            return x.movedim(d, 0)[draw(st.integers(0, n)) :: draw(st.integers(1, 3))].movedim(0, d)
        case 2:
            return x.transpose(d, draw(st.integers(0, x.ndim - 1)))
        case 3:
            return x.permute(draw(st.permutations(range(x.ndim))))
        case 4 if n > 0:
            return x.select(d, draw(st.integers(0, n - 1)))
        case 5:
            return x.unsqueeze(d)
        case 6:
            return x.squeeze(d) if n != 1 else x.expand([2 if e == d else -1 for e in range(x.ndim)])
        case 7 if n > 0:
            return x.unfold(d, draw(st.integers(1, n)), draw(st.integers(1, 3)))
        case 8 if x.ndim > 1:
            return x.diagonal(draw(st.integers(-1, 1)), d, (d + 1) % x.ndim)
        case 9 if n > 0:
            chunks = x.chunk(draw(st.integers(1, 3)), d)
            return chunks[draw(st.integers(0, len(chunks) - 1))]
        case 10 if n % 2 == 0:
            return x.unflatten(d, draw(st.sampled_from([(2, n // 2), (n // 2, 2)])))
        case 11 if x.is_contiguous():
            return x.view(-1)
    return x


@st.composite
def based_views(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor, bool]:
    """(a base, a view of it by a random chain of view operations, whether writing to it is well defined)"""
    sizes = draw(st.lists(st.sampled_from([4, 6, 5, 3, 2, 1]), max_size=4))
    order = tuple(draw(st.permutations(range(len(sizes)))))
    dtype = draw(st.sampled_from([torch.float32, torch.bool, torch.int16, torch.complex64]))
    base = base_of(*sizes, order=order, dtype=dtype)
    view = base
    if dtype.is_complex and draw(st.booleans()):
        view = torch.view_as_real(view)
    for _ in range(draw(st.integers(1, 5))):
        view = step(draw, view)
        if view.ndim > 5:
            break
    index = torch.arange(max(1, base.numel() * (1 + dtype.is_complex)))
    touched = index.as_strided(view.shape, view.stride(), view.storage_offset()) if view.numel() else index
    return base, view, touched.unique().numel() == touched.numel()


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(based_views())
def test_random_chains_of_views_read_and_write_as_on_cpu(case: tuple[torch.Tensor, torch.Tensor, bool]) -> None:
    base, view, writable = case
    check(base, view, writable=writable)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.data())
def test_random_strides_read_as_on_cpu(data: st.DataObject) -> None:
    base = base_of(*data.draw(st.sampled_from([(24,), (4, 6), (2, 3, 4), (5, 5)])))
    ndim = data.draw(st.integers(1, 3))
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=ndim, max_size=ndim))
    strides = data.draw(st.lists(st.integers(0, 13), min_size=ndim, max_size=ndim))
    while (span := sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))) >= base.numel():
        sizes[sizes.index(max(sizes))] -= 1
    view = base.as_strided(sizes, strides, data.draw(st.integers(0, base.numel() - 1 - span)))
    index = torch.arange(base.numel()).as_strided(sizes, strides, view.storage_offset())
    check(base, view, writable=index.unique().numel() == index.numel())
