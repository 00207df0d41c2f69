"""The answer as one HTML page: inline SVG and CSS, nothing loaded from anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from .answer import Plan, Row
from .plots import curves, memory_bars, treemap
from .table import HEAD, cells, costs_table
from .units import gib, number, seconds

_STYLE = """
:root { --ink: #1c2430; --dim: #667085; --line: #d9dee7; --paper: #ffffff; --card: #f6f8fb; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6eaf2; --dim: #98a2b3; --line: #344054; --paper: #10151e; --card: #171e2a; }
}
body { margin: 0 auto; max-width: 1080px; padding: 24px; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 22px; margin: 0 0 4px; } h2 { font-size: 17px; margin: 32px 0 8px; }
p { margin: 4px 0; } .dim { color: var(--dim); }
table { border-collapse: collapse; width: 100%; font-size: 13px; }
th, td { text-align: left; padding: 5px 10px 5px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--dim); font-weight: 600; } .scroll { overflow-x: auto; }
.no { color: #d92d20; font-weight: 600; } .yes { color: #079455; font-weight: 600; }
figure { margin: 0; padding: 12px; background: var(--card); border-radius: 8px; }
svg { width: 100%; height: auto; display: block; } svg text { fill: var(--ink); font: 12px system-ui, sans-serif; }
svg .dim { fill: var(--dim); } svg .axis { stroke: var(--line); } svg .on { fill: #ffffff; }
code { font: 12px ui-monospace, monospace; word-break: break-all; }
"""


def render(plan: Plan) -> str:
    """The page."""
    known = [row for row in plan.rows if row.memory is not None]
    timed = [row for row in plan.rows if row.time is not None]
    parts = [
        f"<h1>{escape(plan.title)}</h1>",
        f'<p class="dim">{number(plan.parameters)} parameters ({gib(plan.parameter_bytes)}), {plan.operations} '
        "operations in one step. Times are estimates from the compiler; nothing was run.</p>",
        _overview(plan),
    ]
    if known:
        parts += ["<h2>Memory of one device</h2>", _figure("memory", memory_bars(known))]
    if timed:
        parts += ["<h2>Efficiency and step time</h2>", _figure("efficiency", curves(timed))]
    for row in _shown(known):
        title = f"<h2>What the memory of {escape(row.topology)} ({escape(row.mesh)}) is taken by</h2>"
        parts += [title, _figure("treemap", treemap(row)), _tensors(row)]
    if plan.costs:
        parts += ["<h2>Cost of the job</h2>", _rows(*costs_table(plan.costs, plan.currency))]
    parts += [_collectives(timed), _findings(plan), _notes(plan)]
    body = "\n".join(part for part in parts if part)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>plan: {escape(plan.title)}</title><style>{_STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def _shown(rows: Sequence[Row]) -> list[Row]:
    """The rows whose memory is taken apart: the first, and if that does not fit the first that does."""
    if not rows or rows[0].fits:
        return list(rows[:1])
    return [rows[0], *[r for r in rows if r.fits][:1]]


def _figure(name: str, svg: str) -> str:
    return f'<figure id="{name}">{svg}</figure>'


def _rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f"<th>{escape(h)}</th>" for h in head)
    lines = "".join("<tr>" + "".join(f"<td>{_mark(c)}</td>" for c in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{lines}</tbody></table></div>'


def _mark(cell: str) -> str:
    kind = {"yes": "yes", "NO": "no", "failed": "no"}.get(cell)
    return f'<span class="{kind}">{escape(cell)}</span>' if kind else escape(cell)


def _overview(plan: Plan) -> str:
    return _rows(HEAD, [cells(row) for row in plan.rows])


def _tensors(row: Row) -> str:
    rows = [
        (gib(t.nbytes * t.count), f"{t.count} × {t.shape}" if t.count > 1 else t.shape, t.what, t.line)
        for t in row.tensors
    ]
    return _rows(("size", "tensor", "what", "made at"), rows) if rows else ""


def _collectives(rows: Sequence[Row]) -> str:
    found = [
        (r.topology, r.mesh, c.kind, c.axes, str(c.count), gib(c.nbytes), seconds(c.seconds))
        for r in rows
        for c in r.collectives
    ]
    if not found:
        return ""
    head = ("topology", "mesh", "kind", "along", "count", "sent a device", "on the wire")
    return "<h2>Transfers between chips</h2>" + _rows(head, found)


def _findings(plan: Plan) -> str:
    if not plan.findings:
        return ""
    rows = [(f.kind, f.what, str(f.count), f.line) for f in plan.findings]
    return "<h2>What costs in the step itself</h2>" + _rows(("kind", "what", "times", "line"), rows)


def _notes(plan: Plan) -> str:
    lines = [f"<p><b>{escape(r.topology)}</b> {escape(r.failure)}</p>" for r in plan.rows if r.failure]
    lines += [f'<p class="dim"><b>{escape(r.topology)}</b> {escape(n)}</p>' for r in plan.rows for n in r.notes]
    return "<h2>Notes</h2>" + "".join(lines) if lines else ""
