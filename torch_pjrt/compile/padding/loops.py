"""Loops and branches: a loop as long as varies goes on to the bucket's length, and changes nothing on the way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .aligned import Aligned, NotPaddable
from .arrays import Extents, Padded, at_the_end, extent
from .rules import Call, plain, rule


@rule("scan", may_differ=["length"])
def scan(call: Call) -> list[Padded]:
    params = call.params
    consts = call.operands[: params["num_consts"]]
    init = call.operands[params["num_consts"] : params["num_consts"] + params["num_carry"]]
    rows = call.operands[params["num_consts"] + params["num_carry"] :]
    (body,) = call.step.bodies["jaxpr"]
    length = call.fitted("length") if "length" in call.step.differs else None
    for x in rows:
        plain(x.extents[0])
    extents = [_settled(x.extents) for x in init]
    results: list[Extents] = []

    def step(carry: list[Array], row: tuple[Array, list[Array]]) -> tuple[list[Array], list[Array]]:
        place, arrays = row
        inner = call.numbers.inside()
        given = [
            *consts,
            *(Padded(a, e) for a, e in zip(carry, extents, strict=True)),
            *(Padded(a, x.extents[1:]) for a, x in zip(arrays, rows, strict=True)),
        ]
        made = call.run(body, given, inner)
        after, out = made[: len(carry)], made[len(carry) :]
        _unchanged(extents, after)
        results[:] = [x.extents for x in out]
        if length is None:
            return [x.array for x in after], [x.array for x in out]
        goes_on = place < inner.size(length)
        return [jnp.where(goes_on, x.array, c) for x, c in zip(after, carry, strict=True)], [x.array for x in out]

    places = lax.iota(np.int32, params["length"])
    last, stacked = lax.scan(
        step, [x.array for x in init], (places, [x.array for x in rows]), length=params["length"],
        reverse=params["reverse"], unroll=params["unroll"],
    )  # fmt: skip
    outer = None if length is None else extent(length, params["length"])
    return [
        *(Padded(a, e) for a, e in zip(last, extents, strict=True)),
        *(Padded(a, (outer, *e)) for a, e in zip(stacked, results, strict=True)),
    ]


@rule("while")
def while_(call: Call) -> list[Padded]:
    params = call.params
    split, begin = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    init = call.operands[begin:]
    extents = [_settled(x.extents) for x in init]

    def part(body: Aligned, consts: Sequence[Padded]) -> Callable[[Sequence[Array]], list[Padded]]:
        def evaluated(carry: Sequence[Array]) -> list[Padded]:
            inner = call.numbers.inside()
            return call.run(body, [*consts, *(Padded(a, e) for a, e in zip(carry, extents, strict=True))], inner)

        return evaluated

    holds = part(call.step.bodies["cond_jaxpr"][0], call.operands[:split])
    turn = part(call.step.bodies["body_jaxpr"][0], call.operands[split:begin])

    def again(carry: list[Array]) -> list[Array]:
        made = turn(carry)
        _unchanged(extents, made)
        return [x.array for x in made]

    last = lax.while_loop(lambda carry: holds(carry)[0].array, again, [x.array for x in init])
    return [Padded(a, e) for a, e in zip(last, extents, strict=True)]


@rule("cond")
def cond(call: Call) -> list[Padded]:
    which, operands = call.operands[0], call.operands[1:]
    said: list[list[Extents]] = []

    def branch(body: Aligned) -> Callable[..., list[Array]]:
        def evaluated(*arrays: Array) -> list[Array]:
            inner = call.numbers.inside()
            given = [Padded(a, x.extents) for a, x in zip(arrays, operands, strict=True)]
            made = call.run(body, given, inner)
            said.append([_settled(x.extents) for x in made])
            return [x.array for x in made]

        return evaluated

    branches = [branch(b) for b in call.step.bodies["branches"]]
    made: Any = jax.lax.switch(which.array.astype(np.int32), branches, *(x.array for x in operands))
    if any(s != said[0] for s in said):
        raise NotPaddable("its branches leave padding in different places")
    return [Padded(a, e) for a, e in zip(made, said[0], strict=True)]


def _settled(extents: Extents) -> Extents:
    """The same, for arrays that are about to change: none is the same everywhere any more."""
    return tuple(map(at_the_end, extents))


def _unchanged(before: Sequence[Extents], after: Sequence[Padded]) -> None:
    if list(before) != [_settled(x.extents) for x in after]:
        raise NotPaddable("its body moves padding to another place")
