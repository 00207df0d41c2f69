"""What random programs found: each case as the least program that showed it, held against CPU PyTorch."""

from __future__ import annotations

import pytest
import torch

from .programs import Program, Raised, differences, run

DEVICE = torch._C._get_privateuse1_backend_name()
MODES = ["strict", "async", "fused"]


def ones(shape: str, dtype: str = "float32") -> str:
    return f"torch.ones({shape}, dtype=torch.{dtype}, device=device)"


REFUSED = {
    "cat of numbers": f"torch.cat([{ones('()')}, {ones('()')}])",
    "cat of numbers into out": f"torch.cat([{ones('()')}] * 2, out={ones('2')})",
    "subtracting a bool": f"torch.sub({ones('3')}, {ones('3', 'bool')}, alpha=2, out={ones('3')})",
    "an alpha that is a bool": f"torch.add({ones('3')}, {ones('3')}, alpha=True)",
    "assigning another dtype through an index": f"{ones('3')}[torch.tensor([0], device=device)] = {ones('1', 'int32')}",
    "a source of another dtype": f"{ones('3')}.index_add_(0, torch.tensor([0], device=device), {ones('1', 'int32')})",
    "a product of two dtypes": f"{ones('2, 2')} @ {ones('2, 2', 'float64')}",
    "selecting by floats": f"{ones('3')}.index_select(0, {ones('2')})",
    "a float result in an integer tensor": f"{ones('3', 'int64')}.mul_(2.5)",
    "a sort over no dimension": f"{ones('3')}.sort(9)",
    "the maximum of nothing": f"{ones('0')}.max(0)",
    "the variance of integers": f"{ones('3', 'int64')}.var(0)",
    "adding to itself, one further": "x[1:].add_(x[:-1])",
    "copying to itself, one further": "x[1:].copy_(x[:-1])",
    "copying to itself, transposed": "x.view(2, 2).copy_(x.view(2, 2).t())",
    "out= one further": "torch.sin(x[1:], out=x[:3])",
    "assigning to itself through an index": "x[1:][torch.tensor([0, 1, 2], device=device)] = x[:-1]",
    "concatenating into an input": "torch.cat([x[:2], x[1:3]], out=x)",
    "adding to an expanded tensor": "x[:1].expand(3).add_(1)",
    "copying to an expanded tensor": "x[:1].expand(3).copy_(x.new_ones(3))",
    "copying from the host to an expanded tensor": "x[:1].expand(3).copy_(torch.ones(3))",
    "drawing into an expanded tensor": "x[:1].expand(3).uniform_()",
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("line", REFUSED.values(), ids=REFUSED)
def test_what_the_cpu_refuses_the_device_refuses_and_leaves_as_it_was(line: str, mode: str) -> None:
    program = Program((f"x = {ones('4')}", line), frozenset({torch.float32}))
    assert any(isinstance(seen, Raised) for seen in run(program, "cpu"))
    with getattr(torch, DEVICE).eager_mode(mode):
        assert differences(program, DEVICE) == []


SAME = {
    "nonzero of False": "t = (x[0] > 2).nonzero()",
    "nonzero of True": "t = (x[0] < 2).nonzero()",
    "filling an expanded tensor": "x[:1].expand(3).fill_(7)",
    "adding a tensor to itself": "x.add_(x)",
    "adding columns apart": "x.view(2, 2)[:, 0].add_(x.view(2, 2)[:, 1])",
    "one tensor twice in a list": "torch._foreach_add_([x, x], 1)",
    "a view and its base in a list": "torch._foreach_mul_([x, x[1:]], 3)",
    "a list that reads what it wrote": "y = torch.full_like(x, 5.0); torch._foreach_add_([x, y], [y, x])",
    "a mask and a number of another dtype": "x[x > 0] = torch.tensor(2)",
    "unsqueeze in place": "x.unsqueeze_(0).transpose_(0, 1)",
    "an integer tensor times an integer": f"t = {ones('3', 'int64')}; t.mul_(2)",
    "a comparison in place": "x.eq_(1)",
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("line", SAME.values(), ids=SAME)
def test_what_the_cpu_allows_the_device_does_likewise(line: str, mode: str) -> None:
    program = Program((f"x = {ones('4')}", line), frozenset({torch.float32}))
    assert not any(isinstance(seen, Raised) for seen in run(program, "cpu"))
    with getattr(torch, DEVICE).eager_mode(mode):
        assert differences(program, DEVICE) == []


def test_an_out_tensor_that_is_resized_takes_the_strides_of_the_result() -> None:
    strides = []
    for device in ("cpu", DEVICE):
        x = torch.ones(4, 3, device=device).t()
        sine, total, product = (torch.empty(0, device=device) for _ in range(3))
        torch.sin(x, out=sine)
        torch.add(x, 1, out=total)
        torch.mm(x, x.t(), out=product)
        strides.append((sine.stride(), total.stride(), product.stride()))
    assert strides[0] == strides[1]


def test_entries_are_repeated_as_often_as_a_tensor_says() -> None:
    for repeats in ([1, 2, 0, 1], [0, 0, 0, 0], []):
        for size in (None, sum(repeats)):
            results = [
                torch.repeat_interleave(torch.tensor(repeats, dtype=torch.int64, device=d), output_size=size)
                for d in ("cpu", DEVICE)
            ]
            assert torch.equal(results[0], results[1].cpu()) and results[0].dtype == results[1].dtype
    x = torch.arange(8.0).reshape(4, 2)
    times = torch.tensor([1, 2, 0, 1])
    assert torch.equal(
        torch.repeat_interleave(x.to(DEVICE), times.to(DEVICE), dim=0).cpu(), torch.repeat_interleave(x, times, dim=0)
    )
