"""Run the benchmarks: `python -m benchmarks.run [record|steps|compiled|...]... [--quick]`."""

from __future__ import annotations

import argparse

from . import compiled, depth, distributed, dynamic, first_step, import_time, record, steps
from .models import MODELS
from .process import DEVICE, PEERS, Backend
from .report import RESULTS

SECTIONS = ("record", "import", "steps", "memory", "first_step", "dynamic", "compiled", "depth", "distributed")
ALL_PEERS = "jax,xla,torchax,cpu"


def main() -> None:
    options = parse()
    ours = [DEVICE] if options.device else []
    backends = [*ours, *(peers(ALL_PEERS) if options.peers is None else options.peers)]
    # `steps` measures memory too, so `memory` runs only where it is asked for by name.
    sections = options.sections or [section for section in SECTIONS if section not in ("memory", "depth")]
    repeat = options.repeat
    if "record" in sections:
        record.run(backends, repeat or (10 if options.quick else 50))
    if "import" in sections:
        import_time.run(repeat or (3 if options.quick else 10))
    if "steps" in sections:
        steps.run(backends, repeat or (2 if options.quick else 7), options.models)
    if "memory" in sections:
        steps.run(backends, 0, options.models, only_memory=True)
    if "first_step" in sections:
        first_step.run(backends, repeat or (1 if options.quick else 3), options.models)
    if "dynamic" in sections:
        dynamic.run(40 if options.quick else 300, repeat or (4 if options.quick else 16))
    if "depth" in sections:
        depth.run(repeat or (2 if options.quick else 5), (4, 12) if options.quick else depth.DEPTHS)
    if "compiled" in sections:
        compiled.run(ours, options.peers, repeat or (2 if options.quick else 7), options.models or MODELS)
    if "distributed" in sections:
        sizes = distributed.SIZES[::3] if options.quick else distributed.SIZES
        distributed.run(options.device, options.peers, repeat or (2 if options.quick else 7), sizes)
    print(f"\nFigures: {RESULTS}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS) + "; all by default")
    parser.add_argument("--quick", action="store_true", help="few repetitions: a look, not a measurement")
    parser.add_argument("--repeat", type=int, default=0, help="repetitions, instead of the default of each section")
    parser.add_argument("--peers", type=peers, help=f"none or some of {', '.join(PEERS)}")
    parser.add_argument("--models", type=models, help=f"some of {', '.join(MODELS)}")
    parser.add_argument("--no-device", dest="device", action="store_false", help="measure the peers only")
    options = parser.parse_args()
    for section in options.sections:
        if section not in SECTIONS:
            parser.error(f"no section {section!r}; there are {', '.join(SECTIONS)}")
    return options


def peers(text: str) -> list[Backend]:
    """`"jax,cpu"` -> their backends."""
    return [PEERS[name] for name in _known("" if text == "none" else text, tuple(PEERS))]


def models(text: str) -> tuple[str, ...]:
    """`"mlp,gpt"` -> `("mlp", "gpt")`."""
    return tuple(_known(text, MODELS))


def _known(text: str, choices: tuple[str, ...]) -> list[str]:
    names = [name for name in text.split(",") if name]
    for name in names:
        if name not in choices:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(choices)}")
    return names


if __name__ == "__main__":
    main()
