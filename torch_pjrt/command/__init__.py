"""The command `torch-pjrt`: one subcommand a file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit status: 0 done, 1 done and the answer is no, 2 a mistake in what was asked."""
    parser = argparse.ArgumentParser(prog="torch-pjrt", description="Tools of torch-pjrt.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    from . import plan

    plan.add(commands)
    asked = parser.parse_args(arguments)
    status: int = asked.run(asked)
    return status


def run() -> None:
    """The console entry."""
    sys.exit(main())
