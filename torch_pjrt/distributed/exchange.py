"""Collectives made of direct exchanges between members, where those of XLA:CPU are slower.

XLA:CPU has gloo's rings: an all-reduce is 2 (n - 1) messages one after the other, and each has to wake a thread on the
other side. An exchange is one message to each other member, all at once: quicker wherever waking is what takes time, as
long as the parts are small. gloo's reduce-scatter, as XLA calls it, moves what an all-reduce moves and copies thrice.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array, lax

from ..lowering.target import target
from ..runtime.members import AXIS
from ..runtime.platform import platform

# Bytes of a member's array up to which everyone sends all of it to everyone. Measured: an all-reduce of 1 KiB between 4
# members on 2 busy cores takes 3 instead of 13 ms.
_SMALL = 32 << 10
# Bytes that a short message has, whatever is in it. gloo ends the process where a message is longer than the other side
# expects, before the watch can say that the ranks' shapes or dtypes differ.
_SHORT = 4 << 10


def small(x: Array) -> bool:
    """Whether to send the whole array to every member."""
    return _on_cpu() and x.size * x.dtype.itemsize <= _SMALL


def pair(members: int) -> bool:
    """Whether there are two, who swap."""
    return _on_cpu() and members == 2


def in_steps() -> bool:
    """Whether `parts_for_me` is the better reduce-scatter."""
    return _on_cpu()


def _on_cpu() -> bool:
    on = target()
    return (platform() if on is None else on.platform) == "cpu"


def everyones(x: Array, members: int, groups: Sequence[Sequence[int]] | None) -> Array:
    """The members' arrays, stacked by rank: each sends a copy to each."""
    message = _padded(x)
    copies = jnp.broadcast_to(message, (members, *message.shape))
    got = lax.all_to_all(copies, AXIS, 0, 0, axis_index_groups=groups)
    return got.reshape(members, -1)[:, : x.size].reshape(members, *x.shape)


def others(x: Array, groups: Sequence[Sequence[int]] | None) -> Array:
    """Of two members, the array of the other."""
    got = lax.ppermute(_padded(x), AXIS, ahead(1, 2, groups))
    return got.reshape(-1)[: x.size].reshape(x.shape)


def parts_for_me(x: Array, members: int, groups: Sequence[Sequence[int]] | None) -> list[Array]:
    """Of `members` equal parts of each member's `x` along dimension 0, those for this member, its own first."""
    me = _place(members, groups)
    own = _part(x, me, members)
    to = ((i, ahead(i, members, groups)) for i in range(1, members))
    return [own, *(lax.ppermute(_part(x, me + i, members), AXIS, pairs) for i, pairs in to)]


def swapped_parts(x: Array, groups: Sequence[Sequence[int]] | None) -> Array:
    """Of two members: `x` with the half for the other in exchange for the other's half for this one."""
    me = _place(2, groups)
    half = x.shape[0] // 2
    got = others(_part(x, me + 1, 2), groups)
    return lax.dynamic_update_slice_in_dim(x, got, (1 - me) * half, 0)


def _padded(x: Array) -> Array:
    """`x`, or if it is short, all that a short message holds: see `_SHORT`."""
    room = _SHORT // x.dtype.itemsize - x.size
    return x if room < 0 else jnp.concatenate([x.reshape(-1), jnp.zeros(room, x.dtype)])


def _part(x: Array, number: Array, members: int) -> Array:
    length = x.shape[0] // members
    return lax.dynamic_slice_in_dim(x, (number % members) * length, length)


def _place(members: int, groups: Sequence[Sequence[int]] | None) -> Array:
    """This member's place in its group."""
    rank = lax.axis_index(AXIS)
    if groups is None:
        return rank
    place = {r: i for group in groups for i, r in enumerate(group)}
    return jnp.asarray([place[r] for r in sorted(place)], jnp.int32)[rank]


def ahead(by: int, members: int, groups: Sequence[Sequence[int]] | None) -> list[tuple[int, int]]:
    """Messages from each member to the one so many places ahead."""
    of_all = [range(members)] if groups is None else groups
    return [(group[i], group[(i + by) % members]) for group in of_all for i in range(members)]
