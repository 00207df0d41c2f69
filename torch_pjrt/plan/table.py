"""The answer as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from .answer import Cost, Plan, Row
from .units import gib, number, seconds

HEAD = ("topology", "mesh", "chips", "batch", "fits", "HBM/device", "step", "MFU", "tokens/s", "roofline", "compile")


def render(plan: Plan) -> str:
    """The whole answer: what was planned, a row for each topology, then what each row is made of."""
    parts = [_title(plan), _table([HEAD, *(cells(row) for row in plan.rows)])]
    parts += [_details(row) for row in plan.rows]
    if plan.costs:
        head, rows = costs_table(plan.costs, plan.currency)
        parts.append(_table([head, *rows]))
    if plan.findings:
        parts.append(_findings(plan))
    parts.append(
        "Step times are estimates: the compiler's cycles for each instruction in the order of its schedule, transfers "
        "between chips as bytes / bandwidth. MFU counts the operations that the mathematics needs."
    )
    return "\n\n".join(parts)


def _title(plan: Plan) -> str:
    size = f"{number(plan.parameters)} parameters, {gib(plan.parameter_bytes)}" if plan.parameters else "no parameters"
    return f"{plan.title}: {size}; {plan.operations} operations, traced in {plan.trace_seconds:.0f} s"


def cells(row: Row) -> tuple[str, ...]:
    """A row as it is shown under `HEAD`."""
    memory, time = row.memory, row.time
    fits = {True: "yes", False: "NO", None: "-"}[row.fits]
    return (
        row.topology,
        row.mesh,
        str(row.chips),
        ("-" if row.batch is None else str(row.batch)) + (" remat" if row.remat else ""),
        "failed" if row.failure else fits,
        "-"
        if memory is None
        else f"{gib(memory.total)} of {gib(memory.capacity)}"
        if memory.capacity
        else gib(memory.total),
        "-" if time is None else seconds(time.best),
        "-" if row.mfu is None else f"{row.mfu:.1%}",
        "-" if row.tokens_per_second is None else number(row.tokens_per_second),
        "-" if time is None else f"{seconds(time.roofline)} ({time.bound})",
        "cached" if row.cached else f"{row.compile_seconds:.0f} s",
    )


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines.insert(1, "-" * len(max(lines, key=len)))
    return "\n".join(lines)


def _details(row: Row) -> str:
    lines = [f"{row.topology}  {row.mesh}"]
    if row.failure:
        return "\n".join([*lines, f"  {row.failure}"])
    memory = row.memory
    if memory is not None:
        known = "" if memory.known else " (the compiler refused the program and says only the total)"
        lines.append(
            f"  memory: arguments {gib(memory.arguments)} ({gib(memory.donated)} donated) + temporaries "
            f"{gib(memory.temporaries)} + outputs {gib(memory.outputs)}"
            + (f" + unused parameters {gib(memory.idle)}" if memory.idle else "")
            + f" = {gib(memory.total)}{known}"
        )
    if row.flops:
        lines.append(
            f"  work: {number(row.model_flops, 'FLOP')} needed, {number(row.flops, 'FLOP')} done; "
            f"{gib(row.nbytes)} read and written a device"
        )
    if row.time is not None and row.time.compiler is not None:
        time = row.time
        lines.append(
            f"  time: {seconds(time.compute)} computing + {seconds(time.exposed)} waiting for other chips + "
            f"{seconds(max(0.0, time.best - time.compute - time.exposed))} waiting for memory"
        )
    for c in sorted(row.collectives, key=lambda c: -c.seconds):
        lines.append(f"  {c.kind} along {c.axes}: {c.count} ×, {gib(c.nbytes)} sent a device, {seconds(c.seconds)}")
    for t in row.tensors[:12]:
        times = f"{t.count} × " if t.count > 1 else ""
        where = f"  {t.line}" if t.line else ""
        lines.append(f"  {gib(t.nbytes * t.count):>10}  {times}{t.shape}  {t.what}{where}")
    lines += [f"  note: {note}" for note in row.notes]
    return "\n".join(lines)


def costs_table(costs: Sequence[Cost], currency: str) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The costs as a table: its head and its rows."""
    head = ("cost", "on", "chips", "hours", "steps", "step time")
    rows: list[tuple[str, ...]] = [
        (
            f"{c.cost:,.2f} {currency}".strip(), c.name, str(c.chips), f"{c.hours:,.2f}", f"{c.steps:,.0f}",
            "measured" if c.measured else "estimated",
        )
        for c in costs
    ]  # fmt: skip
    return head, rows


def _findings(plan: Plan) -> str:
    lines = ["In the step:"]
    for f in plan.findings:
        times = f" ({f.count} ×)" if f.count > 1 else ""
        lines.append(f"  {f.kind}: {f.what}{times}" + (f"  {f.line}" if f.line else ""))
    return "\n".join(lines)
