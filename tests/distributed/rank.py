"""What a script that `ranks.run_ranks` starts knows of itself, and the cases that it is asked for by name."""

from __future__ import annotations

import datetime
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
import torch.distributed as dist

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
NAME = torch._C._get_privateuse1_backend_name()
DEVICE = f"{NAME}:{RANK}"

_Case = TypeVar("_Case", bound=Callable[..., Any])


def kept_in(cases: dict[str, _Case]) -> Callable[[_Case], _Case]:
    """A decorator that keeps functions there, by their names."""

    def keep(function: _Case) -> _Case:
        cases[function.__name__] = function
        return function

    return keep


def run_cases(cases: Mapping[str, Callable[[], None]], *, compiled: bool = False) -> None:
    """Run the cases that the command line names, or all, in a process group (of BACKEND), and end the process.

    Those of compiled graphs begin with nothing compiled, and end with the first that fails: the other ranks wait.
    """
    torch.accelerator.set_device_index(RANK)
    dist.init_process_group(os.environ.get("BACKEND"), timeout=datetime.timedelta(seconds=100))
    if compiled:
        warnings.simplefilter("ignore", FutureWarning)
    failed = False
    for name in sys.argv[1:] or cases:
        try:
            if compiled:
                torch.compiler.reset()
            cases[name]()
        except Exception:
            failed = True
            print(f"{name}: {traceback.format_exc()}", flush=True)
            if compiled:
                break
    if not compiled:
        dist.barrier()
    dist.destroy_process_group()
    sys.exit(failed)
