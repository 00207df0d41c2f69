"""The page's plots, as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from .answer import Memory, Row
from .units import gib, seconds

_COLOURS = ("#2e6fdb", "#e07a1f", "#1f9d6b", "#8a55d7", "#c9397b", "#4b8fa8", "#a78b1d", "#6b7280")
_PARTS = ("arguments", "temporaries", "outputs", "unused")
_WIDTH = 1000


def memory_bars(rows: Sequence[Row]) -> str:
    """A bar for each row: what its memory is taken by, and where the chip's ends."""
    left, right, height, top = 250, 130, 34, 30
    most = max(max(r.memory.total, r.memory.capacity) for r in rows if r.memory is not None) or 1
    scale = (_WIDTH - left - right) / most
    drawn = [_legend(_PARTS, left, 14)]
    for i, row in enumerate(rows):
        memory = row.memory
        assert memory is not None
        y, x = top + i * height, float(left)
        drawn.append(_text(0, y + 17, f"{row.topology}  {row.mesh}"))
        for colour, size in zip(_COLOURS, _shares(memory), strict=False):
            drawn.append(_box(x, y, size * scale, 22, colour, gib(size)))
            x += size * scale
        drawn.append(_text(x + 6, y + 16, gib(memory.total), "dim"))
        if memory.capacity:
            edge = left + memory.capacity * scale
            drawn.append(
                f'<line x1="{edge:.1f}" x2="{edge:.1f}" y1="{y - 4}" y2="{y + 26}" stroke="#d92d20" stroke-width="2">'
                f"<title>capacity {gib(memory.capacity)}</title></line>"
            )
    return _svg(top + len(rows) * height, drawn, "memory of one device for each topology")


def _shares(memory: Memory) -> tuple[int, int, int, int]:
    return memory.arguments, memory.temporaries, memory.outputs, memory.idle


def curves(rows: Sequence[Row]) -> str:
    """MFU and step time against the number of chips, a line for each kind of chip."""
    series: dict[str, list[Row]] = {}
    for row in rows:
        series.setdefault(row.topology.partition(":")[0], []).append(row)
    drawn = [_legend(tuple(series), 60, 14)]
    half = _WIDTH // 2
    chips = sorted({r.chips for r in rows})
    shares = [r.mfu or 0.0 for r in rows]
    times = [r.time.best for r in rows if r.time is not None]
    drawn += _axes(60, half - 40, chips, "MFU", max(shares) or 1.0, lambda v: f"{v:.0%}")
    drawn += _axes(half + 60, _WIDTH - 40, chips, "step time", max(times), seconds)
    for colour, found in zip(_COLOURS * len(series), series.values(), strict=False):
        found = sorted(found, key=lambda r: r.chips)
        labels = [f"{r.topology} {r.mesh}" for r in found]
        mfu = [(r.chips, r.mfu or 0.0) for r in found]
        step = [(r.chips, r.time.best if r.time is not None else 0.0) for r in found]
        drawn.append(_line(mfu, labels, chips, 60, half - 40, max(shares) or 1.0, colour))
        drawn.append(_line(step, labels, chips, half + 60, _WIDTH - 40, max(times), colour))
    return _svg(300, drawn, "MFU and step time against the number of chips")


_TOP, _BOTTOM = 40, 260


def _across(n: int, chips: Sequence[int], x0: float, x1: float) -> float:
    low, high = math.log2(chips[0]), math.log2(chips[-1])
    return (x0 + x1) / 2 if high == low else x0 + 20 + (x1 - x0 - 40) * (math.log2(n) - low) / (high - low)


def _up(value: float, most: float) -> float:
    return _BOTTOM - (_BOTTOM - _TOP) * value / (most * 1.1)


def _axes(x0: float, x1: float, chips: Sequence[int], title: str, most: float, form: object) -> list[str]:
    assert callable(form)
    found = [_text(x0, _TOP - 6, title, "dim"), _text(x1 - 30, _BOTTOM + 34, "chips", "dim")]
    for k in range(5):
        value = most * k / 4
        y = _up(value, most)
        found.append(f'<line class="axis" x1="{x0}" x2="{x1}" y1="{y:.1f}" y2="{y:.1f}"/>')
        found.append(_text(x0 - 6, y + 4, form(value), "dim", "end"))
    shown = chips if len(chips) <= 8 else [chips[0], *chips[1:-1:2], chips[-1]]
    found += [_text(_across(n, chips, x0, x1), _BOTTOM + 18, str(n), "dim", "middle") for n in shown]
    return found


def _line(
    points: Sequence[tuple[int, float]], labels: Sequence[str], chips: Sequence[int], x0: float, x1: float, most: float,
    colour: str,
) -> str:  # fmt: skip
    at = [(_across(n, chips, x0, x1), _up(v, most)) for n, v in points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
    dots = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"><title>{escape(label)}</title></circle>'
        for (x, y), label in zip(at, labels, strict=True)
    )
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>{dots}'


def treemap(row: Row) -> str:
    """The memory of one device as areas: the largest tensors, what else there is of each part, and what is free."""
    memory = row.memory
    assert memory is not None
    items = _areas(row, memory)
    height = 360.0
    drawn = []
    for (label, size, colour), (x, y, w, h) in zip(items, _squarified([s for _, s, _ in items], height), strict=True):
        drawn.append(_box(x, y, w, h, colour, f"{label}: {gib(size)}", gap=True))
        if w > 80 and h > 34:
            room = int(w / 6.6) - 2
            drawn.append(_text(x + 6, y + 16, label if len(label) <= room else label[: room - 1] + "…", "on"))
            drawn.append(_text(x + 6, y + 31, gib(size), "on"))
    return _svg(int(height), drawn, "what the memory of one device is taken by")


def _areas(row: Row, memory: Memory) -> list[tuple[str, int, str]]:
    """(label, bytes, colour), the largest first."""
    left = {"arguments": memory.arguments, "temporaries": memory.temporaries + memory.outputs}
    colours = {"arguments": _COLOURS[0], "temporaries": _COLOURS[1]}
    found: list[tuple[str, int, str]] = []
    for t in row.tensors:
        part = "temporaries" if t.line else "arguments"
        size = min(t.nbytes * t.count, left[part])
        if size > 0:
            left[part] -= size
            found.append((f"{t.what} {t.shape}" + (f" × {t.count}" if t.count > 1 else ""), size, colours[part]))
    found += [(f"other {part}", size, colours[part]) for part, size in left.items() if size > 0]
    if memory.idle:
        found.append(("unused parameters", memory.idle, _COLOURS[3]))
    if memory.capacity > memory.total:
        found.append(("free", memory.capacity - memory.total, "#98a2b3"))
    return sorted(found, key=lambda item: -item[1])


def _squarified(sizes: Sequence[int], height: float) -> list[tuple[float, float, float, float]]:
    """Rectangles of these areas, as square as can be (Bruls, Huizing and van Wijk, 2000); sizes fall."""
    total = sum(sizes) or 1
    areas = [s * _WIDTH * height / total for s in sizes]
    found: list[tuple[float, float, float, float]] = []
    x, y, w, h = 0.0, 0.0, float(_WIDTH), height
    at = 0
    while at < len(areas):
        side = max(min(w, h), 1e-6)
        end, worst = at + 1, _worst(areas[at : at + 1], side)
        while end < len(areas) and _worst(areas[at : end + 1], side) <= worst:
            end += 1
            worst = _worst(areas[at:end], side)
        row = areas[at:end]
        depth, place = sum(row) / side, 0.0
        for area in row:
            length = area / depth if depth else 0.0
            found.append((x, y + place, depth, length) if w >= h else (x + place, y, length, depth))
            place += length
        x, y, w, h = (x + depth, y, w - depth, h) if w >= h else (x, y + depth, w, h - depth)
        at = end
    return found


def _worst(areas: Sequence[float], side: float) -> float:
    total = sum(areas)
    if not total or not min(areas):
        return math.inf
    return max(side**2 * max(areas) / total**2, total**2 / (side**2 * min(areas)))


def _svg(height: int, drawn: Sequence[str], title: str) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(title)}" '
        f'xmlns="http://www.w3.org/2000/svg">{"".join(drawn)}</svg>'
    )


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>'


def _box(x: float, y: float, w: float, h: float, colour: str, title: str, gap: bool = False) -> str:
    inset = 1 if gap else 0
    return (
        f'<rect x="{x + inset:.1f}" y="{y + inset:.1f}" width="{max(0.0, w - 2 * inset):.1f}" '
        f'height="{max(0.0, h - 2 * inset):.1f}" fill="{colour}"><title>{escape(title)}</title></rect>'
    )


def _legend(names: Sequence[str], x: float, y: float) -> str:
    drawn = []
    for colour, name in zip(_COLOURS * len(names), names, strict=False):
        drawn.append(_box(x, y - 10, 12, 12, colour, name) + _text(x + 18, y, name))
        x += 40 + 8 * len(name)
    return "".join(drawn)
