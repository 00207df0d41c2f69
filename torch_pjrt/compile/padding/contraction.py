"""Products: padding that is summed over is made zero on both sides, since zero times NaN is NaN."""

from __future__ import annotations

from collections.abc import Sequence

from .arrays import Extent, Padded, met_along
from .rules import Call, rule, unpadded


@rule("dot_general", may_differ=["out_sharding"])
def dot_general(call: Call) -> list[Padded]:
    (left_sum, right_sum), (left_batch, right_batch) = call.params["dimension_numbers"]
    left, right = call.operands
    left, right = _settled(left, right, (*left_sum, *left_batch), (*right_sum, *right_batch))
    arrays = [call.numbers.fill(x, 0, axes) for x, axes in ((left, left_sum), (right, right_sum))]
    extents = [left.extents[a] for a in left_batch]
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
    image, kernel = _settled(image, kernel, [feature], [in_feature])
    made = call.bind(call.numbers.fill(image, 0, [feature]), call.numbers.fill(kernel, 0, [in_feature]))
    extents: list[Extent | None] = [None] * made.ndim
    extents[numbers.out_spec[0]] = image.extents[batch]
    extents[numbers.out_spec[1]] = kernel.extents[out_feature]
    return [Padded(made, tuple(extents))]


def _settled(a: Padded, b: Padded, axes: Sequence[int], others: Sequence[int]) -> tuple[Padded, Padded]:
    """Both, with the same extents along axes that go together: what is the same everywhere is masked like the other."""
    mine, its = list(a.extents), list(b.extents)
    for i, j in zip(axes, others, strict=True):
        mine[i] = its[j] = met_along([mine[i], its[j]])
    return Padded(a.array, tuple(mine), a.zero), Padded(b.array, tuple(its), b.zero)
