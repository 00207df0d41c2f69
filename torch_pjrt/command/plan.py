"""`torch-pjrt plan`: will a step fit and fly on TPUs that are not here."""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..plan.answer import Plan
    from ..plan.entry import Entry

_EXAMPLES = """\
examples:
  torch-pjrt plan train.py:make_step --topology tpu7x:4x4x4 --mesh fsdp=128
  torch-pjrt plan hf:config.json --train --batch 8 --seq 4096 --remat --topology v5e:4x4,v6e:4x4,tpu7x:2x2x2
  torch-pjrt plan train.py:make_step --topology v6e:4x4 --price prices.toml --tokens 1e12
"""


def add(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "plan",
        help="will a step fit, and how fast will it be, on TPUs that are not here",
        description="Compiles one step of a PyTorch program with the TPU's own compiler, without a TPU.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("entry", help="file.py:function, package.module:function, or hf:config.json")
    parser.add_argument("--topology", required=True, help="one or more, with commas: v5e:4x4, v6e:16, tpu7x:4x4x4; cpu")
    parser.add_argument("--mesh", help="named axes: fsdp=128, or dp,tp=4 (default: all devices along fsdp)")
    parser.add_argument("--batch", type=_positive, default=1, help="examples a data-parallel device (default 1)")
    parser.add_argument("--remat", action="store_true", help="recompute activations in the backward pass")
    parser.add_argument("--fit", action="store_true", help="where it does not fit, try what would")
    parser.add_argument("--unroll", action="store_true", help="compile each of equal layers, not one as a loop")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for one compile (default 600)")
    parser.add_argument("--processes", type=_positive, default=1, help="compiles at once (default 1)")
    parser.add_argument("--json", metavar="FILE", help="write the answer as JSON, - to the output instead of the table")
    parser.add_argument("--html", metavar="FILE", help="write the answer as one page with plots")
    hf = parser.add_argument_group("hf: entries")
    hf.add_argument("--train", action="store_true", help="forward, backward and optimizer (default: forward)")
    hf.add_argument("--seq", type=_positive, default=2048, help="tokens of an example (default 2048)")
    hf.add_argument("--dtype", default="bf16", choices=("bf16", "f16", "f32"))
    hf.add_argument("--optimizer", default="adamw", choices=("adamw", "adam", "sgd", "adafactor"))
    hf.add_argument("--layers", type=_positive, help="so many layers, instead of the configuration's")
    cost = parser.add_argument_group("cost of a job")
    cost.add_argument("--price", metavar="FILE", help="chip-hour prices (TOML)")
    cost.add_argument("--tokens", type=float, help="tokens (examples) of the job")
    cost.add_argument("--steps", type=float, help="steps of the job")
    cost.add_argument(
        "--measured", action="append", default=[], metavar="CHIP:CHIPS:SECONDS[:TOKENS]",
        help="a step time measured elsewhere, to compare",
    )  # fmt: skip
    parser.set_defaults(run=run)


def run(asked: argparse.Namespace) -> int:
    """Plan, print, write. Returns 0 if everything fits, 1 if something doesn't, 2 for a mistake in what was asked."""
    os.environ.setdefault("TORCH_PJRT_CACHE_DIR", str(Path.home() / ".cache" / "torch-pjrt"))
    try:
        plan = _plan(asked)
    except _mistakes() as error:
        print(f"torch-pjrt plan: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("torch-pjrt plan: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        _show(error)
        return 2
    if asked.html:
        Path(asked.html).write_text(plan.to_html())
    if asked.json and asked.json != "-":
        Path(asked.json).write_text(json.dumps(plan.to_json(), indent=1))
    print(json.dumps(plan.to_json(), indent=1) if asked.json == "-" else plan)
    return 0 if all(row.fits or (row.fits is None and not row.failure) for row in plan.rows) else 1


def _plan(asked: argparse.Namespace) -> Plan:
    from ..plan.cost import costs, read_measured, read_prices
    from ..plan.planner import Settings, plan_entry

    prices = read_prices(asked.price) if asked.price else None
    measured = [read_measured(text) for text in asked.measured]
    if prices is not None:
        costs([], prices, asked.tokens, asked.steps)  # a mistake here should not wait for the compiler
    topologies = tuple(name.strip() for name in asked.topology.split(",") if name.strip())
    settings = Settings(
        topologies, asked.mesh, asked.batch, asked.remat, asked.fit, asked.timeout, asked.processes,
        not asked.unroll,
    )  # fmt: skip
    plan = plan_entry(_entry(asked), settings, _say)
    if prices is None:
        return plan
    found, missing = costs(plan.rows, prices, asked.tokens, asked.steps, measured)
    for name in missing:
        print(f"torch-pjrt plan: {asked.price} has no price for {name}", file=sys.stderr)
    return replace(plan, costs=tuple(found), currency=prices.currency)


def _entry(asked: argparse.Namespace) -> Entry:
    from ..plan.entry import user_entry

    if not asked.entry.startswith("hf:"):
        return user_entry(asked.entry)
    from ..plan.hugging_face import DTYPES, Recipe, hugging_face_entry

    recipe = Recipe(asked.train, asked.seq, DTYPES[asked.dtype], asked.optimizer, asked.layers)
    return hugging_face_entry(asked.entry.removeprefix("hf:"), recipe)


def _mistakes() -> tuple[type[Exception], ...]:
    from ..plan.compiled import CompilerMissing
    from ..plan.cost import PriceError
    from ..plan.sharding import MeshError
    from ..plan.tape import PlanError
    from ..plan.topology import TopologyError

    return CompilerMissing, PriceError, PlanError, MeshError, TopologyError


def _show(error: Exception) -> None:
    """The traceback of an error in the user's program, without the frames of this package before it."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = str(Path(__file__).parents[1]) + os.sep
    first = next((i for i, f in enumerate(frames) if not f.filename.startswith(ours)), 0)
    shown = traceback.StackSummary.from_list([f for f in frames[first:] if not f.filename.startswith(ours)])
    print("Traceback (most recent call last):", file=sys.stderr)
    print("".join(shown.format()), end="", file=sys.stderr)
    print("".join(traceback.format_exception_only(error)), end="", file=sys.stderr)


def _say(text: str) -> None:
    print(f"torch-pjrt plan: {text}", file=sys.stderr, flush=True)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value
