"""What CPU PyTorch's kernels refuse and its meta kernels do not is refused at the call, or where it is read."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from ..conftest import DEVICE
from .agree import agree, both_raise


def test_numbers_and_masks_that_do_not_fit_are_refused_at_the_call() -> None:
    mask = torch.tensor([True, False])
    both_raise(lambda d: torch.zeros(2, dtype=torch.int64, device=d).masked_fill(mask.to(d), 1j))
    both_raise(lambda d: torch.zeros(2, device=d).masked_fill(mask.to(d), torch.tensor(1j, device=d)).cpu())
    agree(lambda d: torch.zeros(2, device=d).masked_fill(mask.to(d), torch.tensor(3 + 0j, device=d)))
    both_raise(lambda d: torch.zeros(2, device=d).masked_scatter_(mask.expand(2, 2).to(d), torch.ones(4, device=d)))
    both_raise(lambda d: torch.native_batch_norm(torch.zeros(0, 3, device=d), None, None, None, None, True, 0.1, 1e-5))
    both_raise(lambda d: torch._foreach_sub([torch.ones(2, device=d)], [True]))
    both_raise(lambda d: torch.ones(3, 2, device=d).index_add(0, zero(d), torch.ones(1, 1, device=d)))
    both_raise(lambda d: torch.ones((), device=d).index_add(0, zero(d), torch.ones(1, device=d)))
    both_raise(lambda d: F.conv2d(torch.ones(1, 1, 4, 4, device=d), torch.ones(1, 1, 2, 2, device=d), padding=-1))
    both_raise(lambda d: F.conv2d(torch.ones(1, 1, 4, 4, device=d), torch.ones(1, 1, 2, 2, device=d), dilation=-1))
    both_raise(lambda d: F.conv2d(torch.ones(1, 1, 4, 4, device=d), torch.ones(0, 1, 2, 2, device=d)))
    both_raise(lambda d: torch.take(torch.ones(4, device=d), zero(d).expand(2), out=torch.zeros(1, device=d).expand(2)))
    both_raise(lambda d: torch.searchsorted(torch.tensor(1.0, device=d), 2.0))
    both_raise(lambda d: torch.multinomial(torch.zeros(0, device=d), 3, True))
    both_raise(lambda d: torch.hash_tensor(torch.ones(2, device=d), mode=1))
    both_raise(lambda d: torch.cummax(torch.ones((), device=d), 1))
    both_raise(lambda d: torch.mv(torch.ones((), device=d), torch.ones((), device=d)))
    both_raise(lambda d: torch.geqrf(torch.ones((), device=d)))


def places(n: int, d: str) -> torch.Tensor:
    return torch.arange(n, device=d)


def test_dimensions_that_do_not_fit_are_refused_at_the_call() -> None:
    both_raise(lambda d: torch.ones(3, device=d).index_reduce_(0, places(2, d), torch.ones(3, device=d), "prod"))
    both_raise(lambda d: torch.ones(3, device=d).index_reduce_(0, places(2, d)[None], torch.ones(2, device=d), "prod"))
    both_raise(lambda d: torch.ones(3, device=d).index_reduce_(2, places(2, d), torch.ones(2, device=d), "amax"))
    both_raise(lambda d: torch.ones((), device=d).index_reduce_(0, zero(d), torch.ones(1, device=d), "mean"))
    both_raise(lambda d: torch.ones(3, 4, device=d).index_reduce_(0, zero(d), torch.ones(1, 5, device=d), "amin"))
    both_raise(lambda d: torch.segment_reduce(torch.ones(3, device=d), "max", lengths=torch.tensor(3, device=d)))
    both_raise(lambda d: torch.segment_reduce(torch.ones(3, device=d), "max", lengths=places(0, d)))
    both_raise(lambda d: torch.segment_reduce(torch.ones(3, device=d), "max", offsets=torch.tensor(1, device=d)))
    both_raise(
        lambda d: torch.segment_reduce(torch.ones(2, 3, device=d), "sum", lengths=torch.ones_like(zero(d)[None]))
    )
    both_raise(lambda d: torch.segment_reduce(torch.ones(5, 3, device=d), "sum", lengths=places(2, d) + 2, axis=-1))
    agree(lambda d: torch.segment_reduce(torch.ones(5, 3, device=d), "sum", lengths=places(2, d) + 2, axis=-2))
    agree(lambda d: torch.segment_reduce(torch.ones(5, device=d), "prod", lengths=places(2, d) + 2, axis=-1))
    for shape in ((1, 2, 3), (1, 1, 1, 3)):
        both_raise(lambda d, s=shape: torch.ones(2, 3, device=d).index_put_((places(2, d),), torch.ones(s, device=d)))
    both_raise(lambda d: torch.unique(torch.ones((), device=d), dim=0))
    both_raise(lambda d: torch.unique_consecutive(torch.ones((), device=d), dim=0))
    both_raise(lambda d: torch.unique_consecutive(torch.ones(2, device=d), dim=3))
    both_raise(lambda d: F.max_pool2d(torch.ones(2, 3, device=d), 2))
    both_raise(lambda d: F.unfold(torch.ones((), device=d), 2))
    both_raise(lambda d: torch.addmv(torch.ones((), device=d), torch.ones(0, 9, device=d), torch.ones(0, device=d)))
    both_raise(lambda d: torch.ones((), device=d).index_copy(0, places(0, d), torch.ones((), device=d)))
    both_raise(lambda d: torch.ones((), device=d).index_add(0, places(0, d), torch.ones((), device=d)))
    both_raise(lambda d: torch.histogramdd(torch.ones((), device=d), [torch.ones(3, device=d)] * 2))
    both_raise(lambda d: torch._foreach_norm([torch.ones(0, device=d)], -float("inf")))
    both_raise(lambda d: torch.linalg.vector_norm(torch.ones(0, 5, device=d), float("inf"), 0))
    agree(lambda d: torch.linalg.vector_norm(torch.ones(0, 5, device=d), float("inf"), -1))
    for weight, bias in ((3, 4), (4, 3)):
        both_raise(
            lambda d, w=weight, b=bias: torch.native_group_norm(
                torch.ones(2, 4, 3, device=d), torch.ones(w, device=d), torch.ones(b, device=d), 2, 4, 3, 2, 1e-5
            )
        )
    with pytest.raises(RuntimeError, match="only tensors with up to 64 dims are supported, got 65"):
        torch.ones([1] * 65).to(DEVICE)


F8 = torch.float8_e4m3fn


def scaled(d: str, a: torch.Tensor, b: torch.Tensor, x: torch.Tensor, y: torch.Tensor, **named: object) -> torch.Tensor:
    return torch._scaled_mm(a.to(F8).to(d), b.to(F8).to(d), x.to(d), y.to(d), **named)


def test_a_scaled_product_takes_the_cpus_strides_and_refuses_its_sizes() -> None:
    one, a, b = torch.ones(()), torch.ones(15, 16), torch.ones(16, 31)
    agree(lambda d: scaled(d, a, b, one, one, out_dtype=torch.bfloat16))
    agree(lambda d: scaled(d, a, b, one, one).float())
    agree(lambda d: scaled(d, a.T.contiguous().T, b.T.contiguous().T, torch.ones(15, 1), torch.ones(1, 31)).float())
    agree(lambda d: scaled(d, a[:0], b, one, one).float())
    agree(lambda d: scaled(d, a / 7, b / 7, one, one, out=torch.empty(15, 31, device=d)))  # not by way of float8
    both_raise(lambda d: scaled(d, a, b[1:], one, one))
    both_raise(lambda d: scaled(d, a[:0], b[:0], one, one))
    both_raise(lambda d: scaled(d, a[0], b, one, one))
    both_raise(lambda d: scaled(d, a, b, torch.ones(3), one))
    both_raise(lambda d: scaled(d, a, b, one, one, bias=torch.ones(3, device=d)))
    both_raise(lambda d: torch._scaled_mm(a.to(d), b.to(d), one.to(d), one.to(d)))


def test_results_are_not_written_over_what_is_read() -> None:
    both_raise(lambda d: torch.masked_select(x := torch.ones(6, device=d), x > 0, out=x))
    both_raise(lambda d: torch.masked_select((x := torch.ones(6, device=d))[:5], x[:5] > 0, out=x[1:]))
    both_raise(lambda d: torch.nonzero(x := torch.ones(6, dtype=torch.int64, device=d), out=x))
    both_raise(lambda d: torch.masked_select(x := torch.ones(6, device=d), x > 0, out=zero(d).float().expand(6)))
    # What is written to begins apart from what is read, and grows into it.
    both_raise(lambda d: torch.cat([(x := torch.ones(8, 6, device=d))[4:], x[4:]], out=x[:1]))
    both_raise(lambda d: torch.gather((x := places(6, d))[2:], 0, places(3, d), out=x[:1]))


def test_results_may_grow_into_what_was_read() -> None:
    def counted(d: str) -> torch.Tensor:
        return torch.arange(24.0, device=d)

    agree(lambda d: torch.add((x := counted(d))[12:20], 1, out=x[8:9]))
    agree(lambda d: torch.masked_select((x := counted(d))[10:14], x[10:14] > 1, out=x[8:8]))
    agree(lambda d: torch.index_select((x := counted(d))[12:20], 0, places(2, d), out=x[11:11]))
    agree(lambda d: torch.take((x := counted(d))[12:20], places(2, d), out=x[11:11]))


def test_an_index_of_a_number_is_zero() -> None:
    there = torch.tensor(5.0, device=DEVICE)
    for index in (torch.tensor(4, device=DEVICE), torch.tensor([4], device=DEVICE)):
        for call in (
            lambda i=index: torch.gather(there, 0, i),
            lambda i=index: torch.gather(torch.arange(3.0, device=DEVICE), 0, i),
            lambda i=index: there.index_fill(0, i, 1.0),
            lambda i=index: there.index_copy(0, i, torch.ones(i.shape, device=DEVICE)),
        ):
            with pytest.raises(IndexError, match="index 4 is out of bounds"):
                call().cpu()
    agree(lambda d: [torch.gather(torch.arange(4.0, device=d), 0, torch.tensor(2, device=d))])


def zero(device: str) -> torch.Tensor:
    return torch.tensor([0], device=device)
