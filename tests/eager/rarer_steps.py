"""Further kinds of lines for random programs: layers, second derivatives, copies of every kind, and random draws.

The draws differ between CPU PyTorch and the device, so they are in a table of their own, for programs that are compared
between eager modes only.
"""

from __future__ import annotations

import torch

from .steps import FLOATS, KINDS, SHAPES, kind
from .writer import Kind, Writer, overlaps

DRAWING: dict[str, Kind] = {}


@kind(4)
def layer(w: Writer) -> str | None:
    name = w.name(lambda t: t.dtype in FLOATS and t.ndim > 0 and t.shape[-1] > 0)
    if name is None:
        return None
    t = w.at(name)
    n = t.shape[-1]
    made = w.pick([f"Linear({n}, 4)", f"Linear({n}, 3, bias=False)", f"LayerNorm({n}, eps=0.1)"])
    return _applied(w, f"{made}.to({t.dtype})", name)


@kind(2)
def embedding(w: Writer) -> str | None:
    name = w.name(lambda t: t.dtype in (torch.int64, torch.int32) and bool(((t >= 0) & (t < 8)).all()))
    return name and _applied(w, f"Embedding(8, 3{w.pick(['', ', padding_idx=2'])})", name)


def _applied(w: Writer, layer: str, to: str) -> str:
    result, weight = w.new(reuse=False), w.new(reuse=False)
    return (
        f"torch.manual_seed({w.below(9)}); m = torch.nn.{layer}.to(device); "
        f"{result} = m({to}).tanh(); {weight} = m.weight; del m"
    )


@kind(4)
def differentiate_twice(w: Writer) -> str | None:
    name = w.name(lambda t: t.requires_grad and t.is_floating_point())
    leaf = w.name(lambda t: t.requires_grad and t.is_floating_point() and t.is_leaf)
    if name is None or leaf is None:
        return None
    by = w.pick([name, leaf])
    slope = w.new(reuse=False)
    loss = w.pick([f"{name}.sin().sum()", f"({name} * {name}).tanh().mean()", f"{name}.sigmoid().sum().square()"])
    first = f"{slope}, = torch.autograd.grad({loss}, [{by}], create_graph=True)"
    return f"{first}; {w.pick([f'{slope}.square().sum()', f'{slope}.sum()', f'({slope} * {name}).mean()'])}.backward()"


@kind(5, may_raise=True)
def duplicate(w: Writer) -> str | None:
    """A copy by copy or torch.save; of two tensors that share memory, the copies do too."""
    name = w.name(lambda t: not overlaps(t))
    if name is None:
        return None
    by = w.pick(["copy.deepcopy", "reloaded"])
    if w.chance(3):
        return f"{w.new()} = copy.copy({name})"
    if w.at(name).requires_grad or w.chance(2):
        return f"{w.new()} = {by}({name})"
    return f"{w.new(reuse=False)}, {w.new(reuse=False)} = {by}([{name}, {w.view_of(name)}])"


def _draw(w: Writer) -> str | None:
    shape = w.pick(SHAPES)
    ways = [
        f"torch.rand({shape}, device=device)",
        f"torch.randn({shape}, dtype={w.pick(FLOATS)}, device=device)",
        f"torch.randint(0, 8, {shape}, device=device)",
        f"torch.randperm({1 + w.below(6)}, device=device)",
        f"torch.bernoulli(torch.full({shape}, 0.25, device=device))",
        f"torch.multinomial(torch.ones(5, device=device), {1 + w.below(5)})",
    ]
    name = w.name(lambda t: t.dtype in FLOATS)
    if name:
        ways += [f"torch.nn.functional.dropout({name}, 0.5)", f"torch.rand_like({name})"]
    return f"{w.new()} = {w.pick(ways)}"


def _draw_in_place(w: Writer) -> str | None:
    found = w.target(lambda t: t.dtype in FLOATS)
    return found and w.guarded(
        found[0], f"{found[0]}.{w.pick(['uniform_()', 'normal_()', 'bernoulli_(0.5)', 'exponential_()'])}"
    )


DRAWING["seed"] = Kind(lambda w: f"torch.manual_seed({w.below(100)})", 2, False)
DRAWING["draw"] = Kind(_draw, 20, False)
DRAWING["draw_in_place"] = Kind(_draw_in_place, 12, True)

__all__ = ["DRAWING", "KINDS"]
