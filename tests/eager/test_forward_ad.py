"""Forward-mode AD: tangents, and the memoryless zeros that stand for those of what does not vary."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..conftest import DEVICE


def test_memoryless_zeros_are_zeros_wherever_they_are_read() -> None:
    zeros = torch._efficientzerotensor((2, 3), device=DEVICE)
    assert zeros._is_zerotensor()
    assert (zeros * torch.ones(3, device=DEVICE))._is_zerotensor()
    assert torch.equal((zeros + 1).cpu(), torch.ones(2, 3))
    assert torch.equal(zeros.T.clone().cpu(), torch.zeros(3, 2))


def test_tangents_flow_through_an_operand_that_does_not_vary() -> None:
    def tangent(device: str) -> Tensor:
        x, t = torch.linspace(0.1, 1, 6, device=device).reshape(2, 3), torch.ones(2, 3, device=device)
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, t)
            result = torch.cat([torch.lerp(dual, torch.full_like(x, 2), 0.25), torch.nn.functional.dropout(dual, 1.0)])
            found = forward_ad.unpack_dual(result).tangent
        assert found is not None
        return found.cpu()

    torch.testing.assert_close(tangent(DEVICE), tangent("cpu"))
