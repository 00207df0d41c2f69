"""One program for many sizes: it runs at a bucket's size, the real sizes are run-time numbers, masks keep them apart.

A function is traced at the bucket's size and at a few others. What differs between the traces is what depends on sizes
(`aligned`), as an expression of them (`fit`). The trace at the bucket's size is then evaluated equation by equation
(`evaluate`): each value knows how much of it is real (`arrays`), and each primitive's rule keeps that true and puts in
the identity element where padding would be counted (`rules`).
"""

from .aligned import Aligned, NotPaddable, align
from .buckets import bucket_of
from .evaluate import evaluate

__all__ = ["Aligned", "NotPaddable", "align", "bucket_of", "evaluate"]
