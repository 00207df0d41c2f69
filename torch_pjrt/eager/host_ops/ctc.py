"""CTC loss: lengths that the caller gave as Python numbers become run-time data, so that new ones compile nothing."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .table import host_op

aten = torch.ops.aten


@host_op("aten::_ctc_loss")
def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[Tensor, Tensor]:
    """log_probs (T, N, C), targets (N, S) or all in a row; see torch.nn.functional.ctc_loss."""
    steps, batch, classes = log_probs.shape
    if not 0 <= blank < classes:
        raise RuntimeError("blank must be in label range")
    if len(input_lengths) != batch:
        raise RuntimeError("input_lengths must be of size batch_size")
    if len(target_lengths) != batch:
        raise RuntimeError("target_lengths must be of size batch_size")
    if any(n < 0 for n in input_lengths) or any(n < 0 for n in target_lengths):
        raise RuntimeError("Expected input_lengths and target_lengths to have value at least 0")
    if any(n > steps for n in input_lengths):
        raise RuntimeError(f"Expected input_lengths to have value at most {steps}, but got {max(input_lengths)}")
    if targets.dim() == 2 and any(n > targets.size(1) for n in target_lengths):
        raise RuntimeError(
            f"Expected tensor to have size at least {max(target_lengths)} at dimension 1, but got size "
            f"{targets.size(1)} for argument #2 'targets'"
        )
    if targets.dim() == 1 and sum(target_lengths) != targets.numel():
        raise RuntimeError(
            f"Expected targets to have the sum of target_lengths, {sum(target_lengths)}, as its size, but got "
            f"{targets.numel()}"
        )
    inputs, lengths = _on_device(input_lengths, log_probs), _on_device(target_lengths, log_probs)
    rows = _padded(targets, lengths, max(target_lengths, default=0))
    return aten._ctc_loss.Tensor(log_probs, rows, inputs, lengths, blank, zero_infinity)


@host_op("aten::_ctc_loss_backward")
def ctc_loss_backward(
    grad: Tensor,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    neg_log_likelihood: Tensor,
    log_alpha: Tensor,
    blank: int,
    zero_infinity: bool = False,
) -> Tensor:
    inputs, lengths = _on_device(input_lengths, log_probs), _on_device(target_lengths, log_probs)
    rows = _padded(targets, lengths, max(target_lengths, default=0))
    return aten._ctc_loss_backward.Tensor(
        grad, log_probs, rows, inputs, lengths, neg_log_likelihood, log_alpha, blank, zero_infinity
    )


def _on_device(lengths: Sequence[int], like: Tensor) -> Tensor:
    return torch.tensor(list(lengths), dtype=torch.int64).to(like.device)


def _padded(targets: Tensor, lengths: Tensor, longest: int) -> Tensor:
    """Targets that lie in a row, as rows of the longest one's width; what lies behind a row's end does not matter."""
    if targets.dim() == 2:
        return targets
    starts = lengths.cumsum(0) - lengths
    places = starts.unsqueeze(1) + torch.arange(longest, device=targets.device)
    return targets[places.clamp(max=max(targets.numel() - 1, 0))] if targets.numel() else places
