"""Branches and loops as parts of a program: `cond`, `while_loop`, `scan`, `map`, `associative_scan`.

Each is given its bodies as graphs, which are evaluated on the tracers of XLA's conditional or loop. What the lowerings
in a body require of their data leaves it as one int64 each (`lowering/check.py`): of all turns the worst.

A random op in a body draws from the key of the higher-order op: for each turn of a loop, and for each op, another one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import Array, lax
from jax.extend.core import jaxpr_as_fun
from torch._higher_order_ops.associative_scan import associative_scan_op
from torch._higher_order_ops.map import map_impl
from torch._higher_order_ops.scan import scan_op
from torch._higher_order_ops.while_loop import while_loop_op
from torch._ops import HigherOrderOperator
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves

from ..lowering import Spec
from ..lowering.apply import held_to
from ..lowering.check import FINE, Requirement, collecting, pass_on
from .bodies import bodies, hop_of, wanted
from .draws import is_random, op_of
from .flex_attention import flex_attention, flex_attention_backward

if TYPE_CHECKING:
    from .evaluate import Evaluation

Key = Array | None


def lowered(node: Node, can_lower: Callable[[Node], bool]) -> bool:
    """Whether a higher-order op can be part of a program, with all that is in its bodies."""
    hop = hop_of(node)
    if hop not in _TABLE:
        return False
    if not all(isinstance(v, torch.Tensor) or v is None for v in tree_leaves(node.meta.get("val"))):
        return False  # a number that is known only when the program has run
    if hop in _AT_ONCE and is_random(node):
        return False
    return all(_body_lowered(body, can_lower, hop) for body in bodies(node))


def _body_lowered(body: GraphModule, can_lower: Callable[[Node], bool], hop: HigherOrderOperator) -> bool:
    # Of the gradient of a score function the first result alone is taken (flex_attention.py).
    needed = wanted(body, 1 if hop is torch.ops.higher_order.flex_attention_backward else None)
    return all(_fits(n, can_lower) for n in body.graph.nodes if n in needed or n.op != "call_function")


def _fits(node: Node, can_lower: Callable[[Node], bool]) -> bool:
    if not can_lower(node) or node.meta.get("unbacked_bindings"):
        return False
    if node.op == "placeholder":
        return "val" in node.meta
    op = op_of(node)
    return op is None or not op._schema.is_mutable


def evaluate(run: Evaluation, node: Node, key: Key, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """The results of a higher-order op, as PyTorch promises them."""
    hop = hop_of(node)
    assert hop is not None
    return _TABLE[hop](run, node, key, *args, **kwargs)


def _cond(
    run: Evaluation, node: Node, key: Key, pred: Any, true: GraphModule, false: GraphModule, operands: Sequence[Any]
) -> list[Any]:
    promised = run.promised(node)
    if not isinstance(pred, Array):  # a condition on sizes
        return _held(node, run.body(true if pred else false, operands, key), promised)
    arrays, put = _split(operands)
    required: list[list[Requirement]] = []

    def traced(body: GraphModule) -> Callable[..., list[Array]]:
        def evaluated(arrays: Sequence[Array], key: Key) -> list[Array]:
            made, needs, findings = _checked(run, body, put(arrays), key)
            required.append(needs)
            return [*(x for x in _held(node, made, promised) if x is not None), findings]

        return jaxpr_as_fun(jax.make_jaxpr(evaluated)(arrays, key))

    # Traced before they are put together: either has to return room for what the other one requires.
    when_true, when_false = traced(true), traced(false)
    before, after = (_fine(len(needs)) for needs in required)

    def first(*given: Array) -> list[Array]:
        *made, findings = when_true(*given)
        return [*made, jnp.concatenate([findings, after])]

    def second(*given: Array) -> list[Array]:
        *made, findings = when_false(*given)
        return [*made, jnp.concatenate([before, findings])]

    given = arrays if key is None else [*arrays, key]
    *results, findings = lax.cond(pred.reshape(()).astype(np.bool_), first, second, *given)
    pass_on([*required[0], *required[1]], findings)
    supply = iter(results)
    return [None if spec is None else next(supply) for spec in promised]


def _scan(
    run: Evaluation,
    node: Node,
    key: Key,
    combine: GraphModule,
    init: Sequence[Array],
    xs: Sequence[Array],
    additional: Sequence[Any],
) -> list[Any]:
    promised = run.promised(node)
    each = [*promised[: len(init)], *(_row(spec) for spec in promised[len(init) :])]
    required: list[Requirement] = []

    def turn(carry: list[Array], step: tuple[Array, list[Array]]) -> tuple[list[Array], tuple[list[Array], Array]]:
        number, rows = step
        made, required[:], findings = _checked(run, combine, [*carry, *rows, *additional], key, number)
        made = _held(node, made, each)
        return made[: len(init)], (made[len(init) :], findings)

    length = xs[0].shape[0]
    begin = _held(node, init, promised[: len(init)])
    last, (stacked, findings) = lax.scan(turn, begin, (lax.iota(np.uint32, length), list(xs)), length=length)
    pass_on(required, findings.max(0, initial=FINE))
    return [*last, *stacked]


def _map(
    run: Evaluation, node: Node, key: Key, body: GraphModule, xs: Sequence[Array], additional: Sequence[Any]
) -> list[Any]:
    """One row after the other: all at once would take the memory of all."""
    return _scan(run, node, key, body, [], xs, additional)


def _while_loop(
    run: Evaluation,
    node: Node,
    key: Key,
    condition: GraphModule,
    body: GraphModule,
    carried: Sequence[Array],
    additional: Sequence[Any],
) -> list[Any]:
    promised = run.promised(node)
    required: list[Requirement] = []

    def goes_on(carry: Sequence[Array], number: Array) -> tuple[Array, list[Requirement], Array]:
        # Draws in a condition are those of an odd turn, those in a body of an even one.
        (holds,), needs, findings = _checked(run, condition, [*carry, *additional], key, 2 * number + 1)
        return jnp.asarray(holds).reshape(()).astype(np.bool_), needs, findings

    def turn(carry: Sequence[Array], number: Array) -> tuple[list[Array], Array, Array]:
        made, needs, findings = _checked(run, body, [*carry, *additional], key, 2 * number)
        made = _held(node, made, promised)
        holds, further, also = goes_on(made, number + 1)
        required[:] = [*needs, *further]
        return made, holds, jnp.concatenate([findings, also])

    begin, zero = _held(node, carried, promised), jnp.zeros((), np.uint32)
    holds, first, findings = goes_on(begin, zero)
    pass_on(first, findings)
    count = jax.eval_shape(turn, begin, zero)[2].shape[0]

    def again(state: tuple[list[Array], Array, Array, Array]) -> tuple[list[Array], Array, Array, Array]:
        carry, _, number, before = state
        made, holds, found = turn(carry, number)
        return made, holds, number + 1, jnp.maximum(before, found)

    last, _, _, worst = lax.while_loop(lambda state: state[1], again, (begin, holds, zero, _fine(count)))
    pass_on(required, worst)
    return list(last)


def _associative_scan(
    run: Evaluation, node: Node, key: Key, combine: GraphModule, xs: Sequence[Array], additional: Sequence[Any]
) -> list[Any]:
    each = [_row(spec) for spec in run.promised(node)]

    def one(left: list[Array], right: list[Array]) -> list[Array]:
        return _held(node, run.body(combine, [*left, *right, *additional], key), each)

    return list(lax.associative_scan(jax.vmap(one), list(xs), axis=0))


def _checked(
    run: Evaluation, body: GraphModule, operands: Sequence[Any], key: Key, step: Array | None = None
) -> tuple[list[Any], list[Requirement], Array]:
    """A body's results, what it requires, and the findings: int64, one for each."""
    with collecting() as collector:
        made = run.body(body, operands, key, step)
    findings = [finding for _, finding in collector.found]
    return made, [r for r, _ in collector.found], jnp.stack(findings) if findings else _fine(0)


def _held(node: Node, made: Sequence[Any], promised: Sequence[Spec | None]) -> list[Any]:
    name = str(hop_of(node))
    return [
        None if spec is None else held_to(name, i, value, spec)
        for i, (value, spec) in enumerate(zip(made, promised, strict=True))
    ]


def _row(spec: Spec | None) -> Spec | None:
    return None if spec is None else Spec(spec.shape[1:], spec.dtype)


def _split(operands: Sequence[Any]) -> tuple[list[Array], Callable[[Sequence[Array]], list[Any]]]:
    """The arrays among the operands, and the operands with others in their place."""

    def put(arrays: Sequence[Array]) -> list[Any]:
        supply = iter(arrays)
        return [next(supply) if isinstance(o, Array) else o for o in operands]

    return [o for o in operands if isinstance(o, Array)], put


def _fine(count: int) -> Array:
    return jnp.full((count,), FINE, np.int64)


_TABLE: dict[HigherOrderOperator, Callable[..., list[Any]]] = {
    torch.ops.higher_order.cond: _cond,
    while_loop_op: _while_loop,
    scan_op: _scan,
    map_impl: _map,
    associative_scan_op: _associative_scan,
    torch.ops.higher_order.flex_attention: flex_attention,
    torch.ops.higher_order.flex_attention_backward: flex_attention_backward,
}

# All turns are one evaluation: a random op would draw the same number for each.
_AT_ONCE = frozenset(
    {associative_scan_op, torch.ops.higher_order.flex_attention, torch.ops.higher_order.flex_attention_backward}
)
