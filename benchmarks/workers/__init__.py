"""Programs that run in a subprocess, some under a peer's own interpreter: they import nothing of torch_pjrt."""

import time

STARTED = time.perf_counter()  # before any worker's own imports, which is where "after imports" counts from
