"""Products: padding that is summed over is made zero on both sides, since zero times NaN is NaN."""

from __future__ import annotations

from .aligned import NotPaddable
from .arrays import Extent, Padded
from .rules import Call, rule, unpadded


@rule("dot_general", may_differ=["out_sharding"])
def dot_general(call: Call) -> list[Padded]:
    (left_sum, right_sum), (left_batch, right_batch) = call.params["dimension_numbers"]
    left, right = call.operands
    for a, b in zip((*left_sum, *left_batch), (*right_sum, *right_batch), strict=True):
        _pair(left.extents[a], right.extents[b])
    arrays = [call.numbers.fill(x, 0, axes) for x, axes in ((left, left_sum), (right, right_sum))]
    extents = [_settled(left.extents[a], right.extents[b]) for a, b in zip(left_batch, right_batch, strict=True)]
    extents += [e for a, e in enumerate(left.extents) if a not in (*left_sum, *left_batch)]
    extents += [e for a, e in enumerate(right.extents) if a not in (*right_sum, *right_batch)]
    return [Padded(call.bind(*arrays), tuple(extents))]


@rule("conv_general_dilated")
def conv_general_dilated(call: Call) -> list[Padded]:
    """Batches may be padded, also where they are what is summed over (the gradient of a weight); images may not."""
    numbers = call.params["dimension_numbers"]
    image, kernel = call.operands
    unpadded(image.extents, numbers.lhs_spec[2:], "an image or window")
    unpadded(kernel.extents, numbers.rhs_spec[2:], "an image or window")
    batch, feature = numbers.lhs_spec[:2]
    out_feature, in_feature = numbers.rhs_spec[:2]
    if call.params["feature_group_count"] != 1 or call.params["batch_group_count"] != 1:
        unpadded(image.extents, [feature], "a grouped channel")
        unpadded(kernel.extents, [out_feature, in_feature], "a grouped channel")
        if call.params["batch_group_count"] != 1:
            unpadded(image.extents, [batch], "a grouped batch")
    _pair(image.extents[feature], kernel.extents[in_feature])
    made = call.bind(call.numbers.fill(image, 0, [feature]), call.numbers.fill(kernel, 0, [in_feature]))
    extents: list[Extent | None] = [None] * made.ndim
    extents[numbers.out_spec[0]] = image.extents[batch]
    extents[numbers.out_spec[1]] = kernel.extents[out_feature]
    return [Padded(made, tuple(extents))]


def _pair(a: Extent | None, b: Extent | None) -> None:
    if (a is None) != (b is None):
        raise NotPaddable("it pairs a size that varies with one that does not")
    if a is not None and b is not None and None not in (a.atoms, b.atoms) and a.atoms != b.atoms:
        raise NotPaddable("it pairs tensors whose padding lies in different places")


def _settled(a: Extent | None, b: Extent | None) -> Extent | None:
    return b if a is not None and a.atoms is None else a
