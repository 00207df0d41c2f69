"""Which sizes have a program: the others are padded to the next of them."""

from __future__ import annotations

# Bounds up to this many elements are divided evenly; wider ones grow by 3/2 and 4/3 in turn.
_EVEN = 1024
_PARTS = 7
_SMALLEST = 8


def bucket_of(size: int, upper: int | None = None) -> int:
    """The size that `size` is padded to: the smallest bucket that holds it.

    With an upper bound of at most 1,024 there are 7 evenly spaced buckets (if all sizes are equally likely, the mean
    padded size is 1 + 1/7 of the mean size). Else buckets are 8, 12, 16, 24, 32, 48, ...: from 6 on at most
    half as much again.

    Args:
        size: at least 1.
        upper: the largest size there can be, if it is known.

    Example:
        >>> bucket_of(100, 512), bucket_of(100), bucket_of(5)
        (160, 128, 8)
    """
    if upper is not None and upper <= _EVEN:
        step = -(-upper // _PARTS)
        if step > 8:
            step = -(-step // 8) * 8  # whole vectors
        return max(size, min(upper, -(-size // step) * step))
    octave = _SMALLEST
    while octave < size:
        if size <= octave * 3 // 2:
            octave = octave * 3 // 2
            break
        octave *= 2
    return octave if upper is None else max(size, min(octave, upper))


def previous_bucket(bucket: int, upper: int | None = None) -> int:
    """The largest size that has a smaller bucket; 0 if there is none."""
    low, high = 0, bucket - 1  # bucket_of is monotonic
    while low < high:
        middle = (low + high + 1) // 2
        if bucket_of(middle, upper) < bucket:
            low = middle
        else:
            high = middle - 1
    return low
