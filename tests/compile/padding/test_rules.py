"""Each rule: a function evaluated at a padded size gives what it gives at the real one, whatever the padding holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sympy
from jax import lax

from torch_pjrt.compile.padding import NotPaddable, align, evaluate
from torch_pjrt.compile.padding.arrays import Padded
from torch_pjrt.compile.padding.fit import Fit, value_of

n = sympy.Symbol("n")
BUCKET, OTHERS, TRIED = 16, (9, 12, 15), (9, 10, 14, 16)
KEY = jnp.array([1, 2, 3, 4], jnp.uint32)
F, I = np.float32, np.int32  # noqa: E741
Shape = tuple[Any, ...]


def at(shapes: Sequence[tuple[Shape, Any]], size: int) -> list[jax.ShapeDtypeStruct]:
    return [
        jax.ShapeDtypeStruct(tuple(int(sympy.sympify(d).subs(n, size)) for d in shape), dtype)
        for shape, dtype in shapes
    ]


def real_part(x: Padded, size: int) -> np.ndarray:
    parts, whole = [], []
    for e, length in zip(x.extents, x.array.shape, strict=True):
        atoms = [(length, length)] if e is None else [(a.real, a.padded) for a in e.atoms or ()] or [(e.real, e.padded)]
        parts += [(int(sympy.sympify(real).subs(n, size)), padded) for real, padded in atoms]
        whole.append(int(np.prod([sympy.sympify(real).subs(n, size) for real, _ in atoms])))
    split = np.asarray(x.array).reshape([padded for _, padded in parts])
    return split[tuple(slice(0, real) for real, _ in parts)].reshape(whole)


def check(f: Callable[..., Any], *shapes: tuple[Shape, Any], zero: bool = False) -> None:
    """`zero`: the padding is zero, and known to be; else it holds what must not matter."""
    samples = [{n: BUCKET}, *({n: size} for size in OTHERS)]
    with jax.enable_x64(True):
        program = align([jax.make_jaxpr(f)(*at(shapes, s[n])) for s in samples], Fit(samples, [n]))
        found: list[Padded] = []

        def run(arrays: list[jax.Array], whole: jax.Array, real: jax.Array) -> list[jax.Array]:
            found[:] = evaluate(program, arrays, whole, real, zero=[zero] * len(arrays))
            return [x.array for x in found]

        compiled = jax.jit(run)
        for size in TRIED:
            rng = np.random.default_rng(size)
            arrays = [
                rng.standard_normal(s.shape).astype(s.dtype) if s.dtype == F else rng.integers(0, 4, s.shape, s.dtype)
                for s in at(shapes, size)
            ]
            padded = []
            for array, spec in zip(arrays, at(shapes, BUCKET), strict=True):
                # What padding holds must not matter: NaN, and numbers that are no index.
                other = 0 if zero else np.nan if array.dtype == F else 2**31 - 1
                filled = np.full(spec.shape, other, array.dtype)
                filled[tuple(slice(0, d) for d in array.shape)] = array
                padded.append(filled)
            numbers = [np.array([value_of(e, {n: size}) for e in t]) for t in (program.whole, program.real)]
            got = compiled(padded, numbers[0].astype(np.int64), numbers[1].astype(np.float64))
            expected = jax.tree.leaves(f(*map(jnp.asarray, arrays)))
            for x, array, value in zip(found, got, expected, strict=True):
                here = real_part(Padded(array, x.extents), size)
                np.testing.assert_allclose(here, value, rtol=2e-5, atol=2e-6, err_msg=f"size {size}")


def attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 8
    scores = jnp.where(jnp.tril(jnp.ones((scores.shape[-1],) * 2, bool)), scores, -jnp.inf)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v).reshape(*q.shape[:2], -1)


def cross_entropy(x: jax.Array, target: jax.Array) -> jax.Array:
    rows = jax.nn.log_softmax(x.reshape(-1, x.shape[-1]))
    return -jnp.mean(jnp.take_along_axis(rows, target.reshape(-1, 1), 1))


def squares(f: Callable[..., Any], *which: int) -> Callable[..., Any]:
    def loss(*args: Any) -> Any:
        return sum((x.astype(F) ** 2).sum() for x in jax.tree.leaves(f(*args)))

    return jax.grad(loss, argnums=which or 0)


def philox(shape: Sequence[int]) -> jax.Array:
    return lax.rng_bit_generator(KEY, tuple(shape), np.uint32, algorithm=lax.RandomAlgorithm.RNG_PHILOX)[1]


X, ROWS, IMAGE = ((4, n), F), ((n, 4), F), ((n, 3, 5, 6), F)
QKV = [((2, n, 3, 5), F)] * 3
CASES: dict[str, tuple[Any, ...]] = {
    "mean": (lambda x: jnp.mean(x, 1), X),
    "variance of all": (jnp.var, X),
    "product": (lambda x: jnp.prod(x, 1), X),
    "largest and smallest": (lambda x: (x.max(1), x.min(1)), X),
    "any, all": (lambda x: ((x > 1).any(1), (x > -1).all(1)), X),
    "softmax": (jax.nn.softmax, X),
    "logsumexp": (lambda x: jax.nn.logsumexp(x, 1), X),
    "norm": (lambda x: x / jnp.linalg.norm(x, axis=1, keepdims=True), X),
    "attention": (attention, *QKV),
    "attention's gradient": (squares(attention, 0, 1, 2), *QKV),
    "last": (lambda x: x[:, -1], X),
    "last's gradient": (squares(lambda x: x[:, -1]), X),
    "middle": (lambda x: x[:, x.shape[1] - 5 : x.shape[1] - 2], X),
    "shifted": (lambda x: (x[:, :-1], x[:, 1:], x[:, 2:-3]), X),
    "shifted's gradient": (squares(lambda x: x[:, 1:] * x[:, :-1]), X),
    "sums of what is cut": (lambda x: (x[:, :-1].sum(1), x[:, 1:].sum(1)), X),
    "sums of a fixed array's part": (
        lambda x, w: ((x + w[:, : x.shape[1]]).sum(1), w[:, : x.shape[1]].mean(1)),
        X,
        ((4, 20), F),
    ),
    "sums with a number": (lambda x, s: ((x + s).sum(1), jnp.maximum(x, s).sum(1)), X, ((), F)),
    "sums of what is broadcast": (lambda x, y: (x[:, :, None] + y).sum((1, 2)), X, ((4, n, n), F)),
    "ones against merged rows": (
        lambda x, w: (
            jnp.ones(4 * x.shape[1], F) @ x.reshape(-1),
            jnp.ones((1, 4 * x.shape[1]), F) @ (x.reshape(-1, 1) @ w),
        ),
        X,
        ((1, 3), F),
    ),
    "weight's gradient of merged rows": (
        jax.grad(lambda w, x: (x.reshape(-1, 3) @ w).sum()),
        ((3, 2), F),
        ((n, n, 3), F),
    ),
    "written at merged places": (lambda v, i: jnp.zeros(7, F).at[i.reshape(-1)].add(v.reshape(-1)), X, ((4, n), I)),
    "written at one place": (lambda x: jnp.zeros(7, F).at[jnp.full((4 * x.shape[1],), 2)].add(x.reshape(-1)), X),
    "written where clipped": (lambda v, i: jnp.zeros(3, F).at[i - 1].add(v, mode="clip"), ((n,), F), ((n,), I)),
    "kept the last": (lambda x: lax.pad(x, np.float32(0), ((0, 0, 0), (5 - x.shape[1], 0, 0))), X),
    "short indices": (lambda x, i: jnp.take(x, i.astype(np.int8), axis=0, mode="clip"), ROWS, ((n,), I)),
    "float8": (lambda x: x.astype(jnp.float8_e4m3fn).max(1).astype(F), X),
    "strided": (lambda x: x[:, 1:9:3], X),
    "concatenated": (lambda x, y: jnp.concatenate([x, y, x[:, 1:]], 1), X, ((4, 3), F)),
    "stacked": (lambda x: (jnp.stack([x, -x]), jnp.unstack(x)), X),
    "flipped": (lambda x: x[:, ::-1], X),
    "rolled": (lambda x: jnp.roll(x, 2, 1), X),
    "padded": (lambda x: jnp.pad(x, ((0, 0), (2, 3)), constant_values=1.5), X),
    "padded to twice its size": (lambda x: jnp.pad(x, ((0, 0), (x.shape[1], 0))), X),
    "running sums": (lambda x: (jnp.cumsum(x, 1), lax.cumsum(x, 1, reverse=True), lax.cummax(x, 1)), X),
    "sorted": (lambda x: (jnp.sort(x, 1), jnp.argsort(x, 1)), X),
    "largest three": (lambda x: lax.top_k(x, 3), X),
    "median, quantile": (lambda x: (jnp.median(x, 1), jnp.quantile(x, 0.3, axis=1)), X),
    "argmax, argmin": (lambda x: (jnp.argmax(x, 1), jnp.argmin(x, 1)), X),
    "embedding": (lambda w, i: w[i], ((7, 5), F), ((3, n), I)),
    "embedding's gradient": (squares(lambda w, i: w[i]), ((7, 5), F), ((3, n), I)),
    "cross entropy": (cross_entropy, ((3, n, 6), F), ((3, n), I)),
    "cross entropy's gradient": (jax.grad(cross_entropy), ((3, n, 6), F), ((3, n), I)),
    "rows at indices": (lambda x, i: x[i], ROWS, ((5,), I)),
    "along an axis": (lambda x, i: jnp.take_along_axis(x, i, 1), X, ((4, n), I)),
    "clipped index": (lambda x: x.at[jnp.arange(3) * 100].get(mode="clip"), ROWS),
    "filled index": (lambda x: x.at[jnp.array([1, 12, 14])].get(mode="fill", fill_value=7.0), ROWS),
    "written": (lambda x: x.at[:, -1].set(2.0).at[:, 1].add(1.0), X),
    "written along": (lambda x, i: jnp.zeros((4, 4), F).at[jnp.arange(4)[:, None], i].add(x), X, ((4, n), I)),
    "written slice": (lambda x, y: lax.dynamic_update_slice(x, y, (0, 7)), X, ((4, 3), F)),
    "written to the end": (lambda x, y: lax.dynamic_update_slice(x, y, (0, 100)), X, ((4, 3), F)),
    "read at the end": (lambda x: lax.dynamic_slice(x, (0, 100), (4, 3)), X),
    "loop over rows": (lambda x: lax.scan(lambda c, r: (c * 0.5 + r, c.sum()), jnp.zeros(4, F), x), ROWS),
    "loop from the end": (lambda x: lax.scan(lambda c, r: (c - r, c), jnp.zeros(4, F), x, reverse=True), ROWS),
    "loop over others": (lambda x: lax.scan(lambda c, r: (c * 0.5 + r, c.sum()), x[0] * 0, x), X),
    "branch": (lambda x: lax.cond(x.sum() > 0, lambda y: y + 1, lambda y: y * 2, x), X),
    "loop until": (lambda x: lax.while_loop(lambda c: jnp.abs(c).sum() > 1, lambda c: c * 0.5, x), X),
    "outer product": (lambda x: (x[:, :, None] * x[:, None, :]).reshape(4, -1).sum(1), X),
    "rows merged": (lambda x: jnp.concatenate([x[:, :1], x], 1).reshape(-1), X),
    "merged and split": (lambda x: x.reshape(-1, 3).T.reshape(3, 4, -1).sum(1), ((4, n, 3), F)),
    "repeated": (lambda x: (jnp.repeat(x, 2, 1), jnp.tile(x, (2, 3))), X),
    "numbered": (lambda x: x + jnp.arange(x.shape[1]) / x.shape[1], X),
    "times its size": (lambda x: x * x.shape[1] - x.shape[1] ** 0.5, X),
    "drawn": (lambda x: x * (philox(x.shape) > 2**31), ((4, n, 3), F)),
    "drawn twice as long": (lambda x: x[:, :, None] * (philox((4, x.shape[1], x.shape[1])) > 2**31), X),
    "drawn in front": (lambda x: x * (philox(x.shape) > 2**31), ROWS),
    "images": (lambda x, w: lax.conv(x, w, (2, 1), "SAME"), IMAGE, ((4, 3, 3, 3), F)),
    "images' gradients": (squares(lambda x, w: lax.conv(x, w, (1, 1), "VALID"), 0, 1), IMAGE, ((4, 3, 3, 3), F)),
    "factored": (lambda x: jnp.linalg.cholesky(x @ x.mT + 4 * jnp.eye(3)).sum(), ((n, 3, 3), F)),
    "solved": (
        lambda x, y: lax.linalg.triangular_solve(x + 9 * jnp.eye(3, dtype=F), y, left_side=True, lower=True),
        ((2, n, 3, 3), F),
        ((2, n, 3, 2), F),
    ),
    "transformed": (lambda x: jnp.abs(jnp.fft.rfft(x)), ((3, n, 8), F)),
    "pooled": (lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID"), IMAGE),
}


@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_a_padded_size_gives_what_the_real_one_gives(case: str, zero: bool) -> None:
    f, *shapes = CASES[case]
    check(f, *shapes, zero=zero)


REFUSED: dict[str, tuple[Any, ...]] = {
    "a number is .* for no known reason": (lambda x: x.sum() * min(x.shape[1], 12), X),
    "operations at different sizes": (lambda x: x + 1 if x.shape[1] > 12 else x, X),
    "padding lies in different places": (lambda x: x.reshape(-1) + jnp.arange(4 * x.shape[1]), X),
    "splits a run|mixes real elements": (lambda x: x.reshape(2, -1), ((2 * n,), F)),
    "merged from several": (lambda x: jnp.argmax(x.reshape(-1)), X),
    "image or window has a size that varies": (
        lambda x, w: lax.conv(x, w, (1, 1), "SAME"), ((2, 3, n, 6), F), ((4, 3, 3, 3), F)),
    "constant array depends on sizes|a number is": (lambda x: x + np.arange(x.shape[1], dtype=F) ** 2, X),
    "a matrix or a transform has a size that varies": (lambda x: jnp.linalg.cholesky(x @ x.T), ROWS),
    "shrinks where another grows": (lambda x: (jnp.full((40 - x.shape[1],), 2.0).sum(), x), X),
    "shrinks .*|one of what it joins": (lambda x: jnp.concatenate([x, jnp.zeros((4, 64 - x.shape[1]))], 1).sum(), X),
    "lies in different places": (
        lambda x, i: jnp.take_along_axis(x, i.reshape(-1, 1), 1), ((4 * n, 3), F), ((4, n), I)),
    "no rule says": (lambda x: lax.linalg.hessenberg(x), ((n, 3, 3), F)),
}  # fmt: skip


@pytest.mark.parametrize("reason", REFUSED)
def test_what_cannot_be_padded_is_refused_with_the_reason(reason: str) -> None:
    f, *shapes = REFUSED[reason]
    with pytest.raises(NotPaddable, match=reason):
        check(f, *shapes)
