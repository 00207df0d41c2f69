"""Seconds that autoload adds to `import torch`."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from importlib.metadata import entry_points

from .report import Verdict, save, table, verdicts

REACH_S = 0.1


def run(pairs: int) -> None:
    """Fresh interpreters, with autoload and without, one after the other."""
    if not any(entry.value.startswith("torch_pjrt") for entry in entry_points(group="torch.backends")):
        print("  import: left out: torch_pjrt is not installed here, so there is nothing to load")
        return
    for autoload in ("0", "1"):
        seconds(autoload)  # the files come from the page cache from here on
    without, with_autoload = [], []
    for _ in range(pairs):
        without.append(seconds("0"))
        with_autoload.append(seconds("1"))
    added = statistics.median(a - b for a, b in zip(with_autoload, without, strict=True))
    rows = [["without autoload", f"{statistics.median(without):.3f}"]]
    rows += [["with autoload", f"{statistics.median(with_autoload):.3f}"], ["added, median of pairs", f"{added:+.3f}"]]
    table(f"import torch, {pairs} pairs of processes", ["", "seconds"], rows)
    found = [Verdict("import torch: seconds added by autoload", added, REACH_S)]
    verdicts(found)
    save("import", {"without_s": without, "with_s": with_autoload}, found)


def seconds(autoload: str) -> float:
    """The whole process `python -c "import torch"`."""
    begin = time.perf_counter()
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": autoload}
    subprocess.run([sys.executable, "-c", "import torch"], check=True, env=environment)
    return time.perf_counter() - begin
