"""The kinds of lines that random programs are made of.

A kind is a function of the `Writer`, which holds the program so far and its tensors on the CPU. It returns source, or
None where nothing there suits it. Values stay tame: products go through tanh, what rounds or compares keeps off the
quarters that fresh tensors are made of, so that an error in the last place decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from .writer import Kind, Writer, overlaps, share

SHAPES = [(2, 3), (4,), (4, 3), (), (1, 3), (3, 4), (2, 3, 4), (1,), (0,), (2, 0)]
FLOATS = [torch.float32, torch.float64]
HALVES = [torch.bfloat16, torch.float16]
RARE = [*HALVES, torch.complex64, torch.int16, torch.uint8, torch.bool]
DTYPES = [torch.float32, torch.float32, torch.float32, torch.float64, torch.int64, torch.int32, torch.bool, torch.uint8]
KINDS: dict[str, Kind] = {}
Write = Callable[[Writer], str | None]


def kind(weight: int, *, may_raise: bool = False) -> Callable[[Write], Write]:
    def register(fn: Write) -> Write:
        KINDS[fn.__name__] = Kind(fn, weight, may_raise)
        return fn

    return register


def _floating(t: torch.Tensor) -> bool:
    return t.is_floating_point()


def _rounded(w: Writer) -> bool:
    """Whether values were rounded so coarsely that a comparison of them may go either way."""
    return bool(w.dtypes & set(HALVES))


def _number(w: Writer, dtype: torch.dtype) -> str:
    if dtype == torch.bool:
        return w.pick(["True", "False"])
    if dtype.is_complex:
        return w.pick(["0.5", "0", "1 - 0.5j"])
    return w.pick(["0.5", "-1.25", "2", "0"] if dtype.is_floating_point else ["2", "0", "3"])


def _indices(w: Writer, n: int, *, repeats: bool) -> str:
    """An index tensor into a dimension of size n; without repeats it is safe to assign through."""
    order = [(i * (1 if n % 2 == 0 else 2) + w.below(n)) % n for i in range(n)] if repeats else list(range(n))[::-1]
    return f"torch.tensor({order[: 1 + w.below(n)]}, device=device)"


@kind(8)
def create(w: Writer) -> str:
    shape, dtype = w.pick(SHAPES), w.pick(RARE if w.chance(6) else DTYPES)
    made = [
        w.fresh(shape, dtype),
        w.fresh(shape, dtype),
        w.fresh(shape, dtype),
        f"torch.zeros({shape}, dtype={dtype}, device=device)",
        f"torch.ones({shape}, dtype={dtype}, device=device)",
        f"torch.full({shape}, {_number(w, dtype)}, dtype={dtype}, device=device)",
        f"torch.empty({shape}, dtype={dtype}, device=device).fill_({_number(w, dtype)})",
        f"torch.arange({1 + w.below(6)}, dtype={torch.int64 if dtype == torch.bool else dtype}, device=device)",
    ]
    return f"{w.new()} = {w.pick(made)}"


@kind(16)
def view(w: Writer) -> str | None:
    name = w.name()
    return name and f"{w.new()} = {w.view_of(name)}"


@kind(4)
def alias(w: Writer) -> str | None:
    name = w.name()
    return name and f"{w.new()} = {name}{w.pick(['', '.detach()', '.data', '.view_as(' + name + ')'])}"


@kind(14, may_raise=True)
def in_place(w: Writer) -> str | None:
    found = w.target()
    if found is None:
        return None
    x, t = found
    ways = [
        f"add_({w.operand(t.shape, t.dtype, t)})",
        f"copy_({w.operand(t.shape, t.dtype, t)})",
        f"fill_({_number(w, t.dtype)})",
        "zero_()",
        f"add_({_number(w, t.dtype)})",
        f"mul_({_number(w, t.dtype)})",
        f"masked_fill_({w.operand(t.shape, torch.bool, t)}, {_number(w, t.dtype)})",
    ]
    if t.is_floating_point():
        ways += [
            f"mul_({w.operand(t.shape, t.dtype, t)}).tanh_()",
            f"sub_({w.operand(t.shape, t.dtype, t)}, alpha=0.5)",
            f"lerp_({w.fresh(t.shape, t.dtype)}, 0.25)",
            f"addcmul_({w.fresh(t.shape, t.dtype)}, {w.fresh(t.shape, t.dtype)}, value=0.5)",
            "sin_()",
            "sigmoid_()",
        ]
    if t.dtype != torch.bool:
        ways += ["clamp_(0, 1)", "clamp_(max=1)"]
        if t.dtype != torch.uint8:
            ways.append("neg_()")
    return w.guarded(x, f"{x}.{w.pick(ways)}")


@kind(8, may_raise=True)
def assign(w: Writer) -> str | None:
    name = w.name(lambda t: not overlaps(t) and t.ndim > 0)
    if name is None:
        return None
    t = w.at(name)
    n = t.shape[0]
    places = ["...", ":", "::2", "1:", "..., :1", "None, ..., 1:"]
    if n:
        places += [str(w.below(n)), "-1", _indices(w, n, repeats=False)]
        if t.is_floating_point() and not _rounded(w):
            places += [f"{name} > 0.3337"]
    place = w.pick(places)
    at = w.at(f"{name}[{place}]")
    masked = ">" in place
    content = _number(w, t.dtype) if masked or w.chance(2) else w.operand(at.shape, t.dtype, t)
    # Onto itself through another index, the order of the copies would matter.
    content += ".clone()" if content == name else ""
    return w.guarded(name, f"{name}[{place}] = {content}")


@kind(4, may_raise=True)
def reshape_in_place(w: Writer) -> str | None:
    name = w.name(lambda t: t.ndim > 0)
    if name is None:
        return None
    return (
        f"{name}.{w.pick(['transpose_(0, -1)', 'unsqueeze_(0)', 'squeeze_()', 'unsqueeze_(-1)', 'swapdims_(0, -1)'])}"
    )


@kind(5, may_raise=True)
def rebind(w: Writer) -> str | None:
    name = w.name()
    if name is None:
        return None
    t = w.at(name)
    # What a backward pass has saved changes with it, unnoticed: the CPU's kernels read beyond the end of another shape.
    saved = any(o.requires_grad for o in w.tensors().values())
    other = w.name(lambda o: o.dtype == t.dtype and (not saved or o.shape == t.shape))
    ways = [f"{name}.data = {other}.detach()", f"{name}.data = {other}.detach().clone()"]
    if not t.requires_grad:
        ways += [f"{name}.set_({other}.detach())", f"{name}.resize_(2, 2).fill_({_number(w, t.dtype)})"]
        n = t.untyped_storage().nbytes() // t.itemsize
        if n >= 2:
            ways += [f"{name}.set_({name}.untyped_storage(), {n % 2}, ({n // 2},), (1,))"]
        if t.numel() >= 2 and t.is_contiguous():
            ways += [f"{name}.resize_({t.numel() // 2})"]
    return w.pick(ways)


@kind(8, may_raise=True)
def out(w: Writer) -> str | None:
    name = w.name(lambda t: _floating(t) and not t.requires_grad and t.dtype in FLOATS)
    if name is None:
        return None
    a = w.at(name)
    b = w.operand(a.shape, a.dtype)
    call, shape = w.pick(
        [
            (f"torch.add({name}, {b}, ", a.shape),
            (f"torch.sub({name}, {b}, alpha=2, ", a.shape),
            (f"torch.mul({name}, 0.5, ", a.shape),
            (f"torch.sin({name}, ", a.shape),
            (f"torch.sum({name}, 0, ", a.shape[1:]),
            (f"torch.cat([{name}, {name}], ", (2 * a.shape[0], *a.shape[1:]) if a.ndim else ()),
        ]
    )
    found = w.target(lambda t: t.shape == shape and t.dtype == a.dtype and not share(t, a) and not t.requires_grad)
    if found is None or w.chance(3) or share(found[1], w.at(b)):
        fresh = w.new(reuse=False)
        there = w.pick([f"empty((0,), dtype={a.dtype}", f"ones({tuple(shape)}, dtype={a.dtype}"])
        return f"{fresh} = torch.{there}, device=device); {call}out={fresh})"
    return f"{call}out={found[0]})"


@kind(12)
def pointwise(w: Writer) -> str | None:
    name = w.name()
    if name is None:
        return None
    t = w.at(name)
    b = w.operand(t.shape, t.dtype)
    ways = [f"{name} + {b}", f"{name}.add({b}, alpha=2)" if t.dtype != torch.bool else f"{name} | {b}"]
    if t.is_floating_point():
        ways += [f"{name}.{f}()" for f in ("sin", "tanh", "sigmoid", "neg", "relu", "square")]
        ways += [
            f"({name} * {b}).tanh()",
            f"{name} * 0.5 - {b}",
            f"torch.exp(-{name}.abs())",
            f"torch.nn.functional.gelu({name})",
            f"torch.where({w.operand(t.shape, torch.bool)}, {name}, {b})",
            f"torch.maximum({name}.detach(), {b}.detach())",
            f"{name}.clamp(-0.6, 0.6)",
            f"1.5 - {name}",
        ]
    elif t.is_complex():
        ways += [f"{name}.{f}" for f in ("conj()", "real", "imag", "abs()", "mul(0.5)", "neg()", "conj().imag")]
        ways += [
            f"({name} * {b}) * 0.25",
            f"torch.view_as_real({name}.resolve_conj())",
            f"torch.exp(-{name}.abs()) * {name}",
        ]
    elif t.dtype != torch.bool:
        ways += [f"{name} * 2", f"{name} - {b}", f"{name} // 3", f"{name} % 3", f"{name} & 3", f"{name} * 0.25"]
    else:
        ways += [f"~{name}", f"{name} ^ {b}", f"{name}.logical_and({b})"]
    return f"{w.new()} = {w.pick(ways)}"


@kind(6)
def reduce(w: Writer) -> str | None:
    name = w.name(lambda t: t.ndim > 0)
    if name is None:
        return None
    t = w.at(name)
    d = w.below(t.ndim)
    ways = [f"sum({d})", "sum()", f"sum({d}, keepdim=True)", f"cumsum({d})"]
    if not _rounded(w):
        ways += [f"any({d})", "all()"]
    if t.is_floating_point() and t.numel():
        ways += [f"mean({d})", "mean()", f"softmax({d})", f"detach().amax({d})", f"log_softmax({d})", f"logsumexp({d})"]
        ways += [f"detach().sort(stable=True, dim={d}).values", f"var({d}, correction=0)"]
    return f"{w.new()} = {name}.{w.pick(ways)}"


@kind(5)
def matmul(w: Writer) -> str | None:
    name = w.name(lambda t: t.dtype in FLOATS and t.ndim in (1, 2, 3))
    if name is None:
        return None
    t = w.at(name)
    other = w.name(
        lambda o: o.dtype == t.dtype and o.ndim in (1, 2) and o.shape[-2 if o.ndim == 2 else 0] == t.shape[-1]
    )
    other = other or w.fresh((t.shape[-1], 3), t.dtype)
    ways = [f"({name} @ {other}).tanh()", f"({name} @ {name}.mT).sin()" if t.ndim > 1 else f"{name}.dot({name}).sin()"]
    if t.ndim == 2:
        ways.append(f"torch.nn.functional.linear({name}, {w.fresh((4, t.shape[1]), t.dtype)}).tanh()")
    return f"{w.new()} = {w.pick(ways)}"


@kind(6)
def join_and_split(w: Writer) -> str | None:
    name = w.name(lambda t: t.ndim > 0)
    if name is None:
        return None
    t = w.at(name)
    d = w.below(t.ndim)
    other = w.name(lambda o: o.shape == t.shape) or name
    ways = [
        f"{w.new()} = torch.cat([{name}, {other}], {d})",
        f"{w.new()} = torch.stack([{name}, {other}], {d})",
        f"{w.new()} = {name}.repeat({', '.join(['2'] * t.ndim)})",
        f"{w.new()} = {name}.flip({d})",
        f"{w.new()} = {name}.roll(1, {d})",
    ]
    if t.shape[d] >= 2:
        ways += [f"{w.new()}, {w.new()} = {name}.split({-(-t.shape[d] // 2)}, {d})"] * 2
    return w.pick(ways)


@kind(5)
def index(w: Writer) -> str | None:
    name = w.name(lambda t: t.ndim > 0 and t.shape[0] > 0)
    if name is None:
        return None
    n = w.at(name).shape[0]
    indices = _indices(w, n, repeats=True)
    ways = [f"{name}[{indices}]", f"{name}.index_select(0, {indices})", f"{name}[..., None][{indices}]"]
    ways += [f"torch.take_along_dim({name}, {indices}.view(-1{', 1' * (w.at(name).ndim - 1)}), 0)"]
    return f"{w.new()} = {w.pick(ways)}"


@kind(5)
def decide(w: Writer) -> str | None:
    name = w.name(_floating)
    if name is None or _rounded(w):
        return None
    ways = [f"{name} > 0.3337", f"{name} <= -0.1337", f"{name}.mul(3).add(0.137).to(torch.int64)"]
    ways += [f"{name}.detach().add(0.137).floor()", f"({name} > 0.1337).nonzero()"]
    return f"{w.new()} = {w.pick(ways)}"


@kind(8)
def convert(w: Writer) -> str | None:
    name = w.name()
    if name is None:
        return None
    t = w.at(name)
    # A gradient that crosses to the host and back is dense; on the CPU, where nothing crosses, it may stay expanded.
    crossing = "detach().cpu()" if t.requires_grad else "cpu()"
    ways = [
        "clone()",
        "contiguous()",
        "clone(memory_format=torch.contiguous_format)",
        f"{crossing}.clone().to(device)",
        "to(device)",
    ]
    ways += [f"to({d})" for d in FLOATS] + [f"{crossing}.add(1).to(device)"]
    if not (t.is_floating_point() or t.is_complex()):
        ways += [
            "to(torch.int64)",
            "to(torch.int32)",
            "to(torch.int16)",
            "bool()",
            "to(torch.uint8)",
            "to(torch.complex64)",
        ]
    elif w.chance(3):
        ways += ["to(torch.bfloat16)", "half()", "to(torch.complex64)"]
    if t.dtype in (torch.float32, torch.int32) and not t.requires_grad:
        ways += [f"view(torch.int32).view({t.dtype})", "to(torch.float32).view(torch.int32).mul(0)"]
        if t.is_contiguous() and t.ndim:
            ways += [f"view(torch.uint8).view({t.dtype})"]
    return f"{w.new()} = {name}.{w.pick(ways)}"


@kind(2)
def write_bits(w: Writer) -> str | None:
    name = w.name(lambda t: t.dtype == torch.float32 and t.is_contiguous() and t.ndim > 0 and not t.requires_grad)
    ways = ["view(torch.int32).zero_()", "view(torch.uint8).fill_(0)", "view(torch.int32)[:1].fill_(0)"]
    return name and f"{name}.{w.pick(ways)}"


@kind(4)
def parameter(w: Writer) -> str:
    return f"{w.new()} = {w.fresh(w.pick(SHAPES), w.pick(FLOATS))}.requires_grad_()"


@kind(6)
def need_gradient(w: Writer) -> str | None:
    name = w.name(lambda t: t.dtype in FLOATS and t.is_leaf and not t.requires_grad)
    return name and w.pick([f"{name}.requires_grad_()", f"{w.new()} = {name}.detach().clone().requires_grad_()"])


@kind(9)  # which gradients are there after a pass that raises halfway is the engine's affair
def backward(w: Writer) -> str | None:
    name = w.name(lambda t: t.requires_grad)
    if name is None:
        return None
    t = w.at(name)
    other = w.operand(t.shape, t.dtype)
    loss = w.pick([f"{name}.sum()", f"({name} * {other}).sin().sum()", f"{w.view_of(name)}.square().mean()"])
    if w.chance(4):
        return f"{w.new()}, = torch.autograd.grad({loss}, [{w.name(lambda t: t.requires_grad)}], allow_unused=False)"
    return f"{loss}.backward({w.pick(['', 'retain_graph=True'])})"


@kind(5)
def use_gradient(w: Writer) -> str | None:
    name = w.name(lambda t: t.is_leaf and t.grad is not None)
    if name is None:
        return backward(w)
    ways = [
        f"with torch.no_grad(): {name}.sub_({name}.grad, alpha=0.1)",
        f"with torch.no_grad(): {name}.copy_({name} - 0.5 * {name}.grad)",
        f"{name}.grad = None",
        f"{name}.grad.zero_()",
        f"{w.new()} = {name}.grad",
        f"{name}.grad.clamp_(-0.5, 0.5)",
    ]
    return w.pick(ways)


@kind(3)
def drop(w: Writer) -> str | None:
    name = w.name()
    return name and f"del {name}"


@kind(3)
def read(w: Writer) -> str | None:
    name = w.name(lambda t: t.numel() > 0)
    ways = ["{0}.sum().item()", "float({0}.detach().flatten()[0])", "{0}.flatten().tolist()[-1]"]
    return name and f"{w.new()} = torch.full((2,), {w.pick(ways).format(name)}, dtype=torch.float64, device=device)"


@kind(2, may_raise=True)
def mistake(w: Writer) -> str | None:
    name = w.name(lambda t: t.ndim > 0)
    if name is None:
        return None
    n = w.at(name).shape[-1]
    ways = [
        f"{name} + torch.zeros({n + 2}, 1, {n + 2}, device=device)",
        f"{name}.sum(9)",
        f"{name}.view(7, 11)",
        f"{name}[..., {n + 1}]",
        f"torch.mm(torch.zeros(2, {n + 1}, device=device), torch.zeros({n}, 2, device=device))",
        f"{name}.copy_(torch.zeros({n + 2}, {n + 3}, device=device))",
        f"torch.cat([{name}, torch.zeros(2, 2, 2, 5, device=device)])",
    ]
    return f"{w.new()} = {w.pick(ways)}"
