"""COO @ dense and coalesce on the device beside CPU PyTorch: medians of paired runs.

python -m benchmarks.sparse
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

SIZES = ((2_000, 40_000, 64), (20_000, 400_000, 64))  # rows and columns, entries, columns of the dense operand
WARM_UP, ROUNDS = 3, 15
Tensors = tuple[Tensor, ...]
Program = Callable[[Tensors], Tensor]
PROGRAMS: dict[str, Program] = {
    "coo @ dense": lambda t: t[1] @ t[2],
    "coalesce": lambda t: t[0].coalesce().values(),
}


def main() -> None:
    device = torch._C._get_privateuse1_backend_name()
    for n, nnz, width in SIZES:
        torch.manual_seed(0)
        given = torch.sparse_coo_tensor(torch.randint(n, (2, nnz)), torch.randn(nnz), (n, n), check_invariants=False)
        tensors = (given, given.coalesce(), torch.randn(n, width))
        for name, program in PROGRAMS.items():
            cpu, ours = _paired(program, tensors, tuple(t.to(device) for t in tensors))
            ratio = statistics.median(o / c for c, o in zip(cpu, ours, strict=True))
            print(
                f"{name:12} {n} x {n}, {nnz} entries, {width} columns: CPU PyTorch {statistics.median(cpu) * 1e3:.2f} "
                f"ms, device {statistics.median(ours) * 1e3:.2f} ms, ratio {ratio:.2f}",
                flush=True,
            )


def _paired(program: Program, here: Tensors, there: Tensors) -> tuple[list[float], list[float]]:
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(WARM_UP + ROUNDS):
        for spent, tensors in zip(times, (here, there), strict=True):
            start = time.perf_counter()
            program(tensors).reshape(-1)[-1].item()
            if turn >= WARM_UP:
                spent.append(time.perf_counter() - start)
    return times


if __name__ == "__main__":
    main()
