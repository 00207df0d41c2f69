"""Compiles one tape for one topology, in a process of its own: `python -m torch_pjrt.plan.worker job result`.

A compiler that crashes, or takes too long, ends this process and nothing else.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .gpus import GPUS, GPUS_OF_HOST
from .kernels import schedules_of
from .sharding import Layouts, Mesh, Split
from .tape import Tape


@dataclass(frozen=True, slots=True)
class Job:
    """What to compile.

    Attributes:
        tape: the step.
        layouts: how its arrays are split.
        mesh: over which axes.
        ranks: whether the tape is what each of the mesh's devices does, with the collectives in it; else what all of
            them do, for XLA to split.
        platform: "tpu", "cuda", or "cpu" for the machine that this runs on.
        topology: the compiler's name of the topology ("v5e:4x4").
        host: chips of one host along each dimension.
        roll: whether equal layers are compiled once.
        precision: of float32 products, as `torch.set_float32_matmul_precision` names it.
        clock, bandwidth, interconnect, between_hosts: of one device (`schedule.Speeds`).
    """

    tape: Tape
    layouts: Layouts
    mesh: Mesh
    platform: str
    topology: str
    host: tuple[int, ...]
    precision: str
    ranks: bool = False
    roll: bool = True
    clock: float = 0.0
    bandwidth: float = 1.0
    interconnect: float = 1.0
    between_hosts: float | None = None


def quiet_libtpu() -> None:
    """Tell libtpu, before it is loaded, that there is no TPU to look for."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["TPU_SKIP_MDS_QUERY"] = "1"
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-4")
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    os.environ.setdefault("TPU_WORKER_ID", "0")
    os.environ.setdefault("TPU_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")  # no chip is shared, only the compiler


def main() -> None:
    """Read the job, compile it, write what the compiler says."""
    quiet_libtpu()
    with open(sys.argv[1], "rb") as file:
        job: Job = pickle.load(file)  # our own parent wrote it
    found = run(job)
    with open(sys.argv[2], "w") as file:
        json.dump(found, file)


def run(job: Job) -> dict[str, Any]:
    """What the compiler says of a job, as JSON has it; see `compiled.Compiled`."""
    import torch

    began = time.perf_counter()
    torch.set_float32_matmul_precision(job.precision)
    devices = _arranged(job)
    lowered, loops = _lower(job, devices)
    middle = time.perf_counter()
    found: dict[str, Any] = {"lower_seconds": middle - began, "loops": loops}
    try:
        compiled = lowered.compile(compiler_options=_options(job))
    except Exception as error:
        found["refusal"] = str(error)
    else:
        found |= _analysis(compiled)
        text = compiled.as_text()
        _dump(text, job)
        found |= _reading(text, job, devices)
    found["compile_seconds"] = time.perf_counter() - middle
    found["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return found


def _options(job: Job) -> dict[str, Any]:
    options: dict[str, Any] = {"xla_allow_excess_precision": False}
    if job.platform == "cuda":  # where there is no GPU to try kernels on, products are cuBLAS's
        options |= {"xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": False}
    return options


def _arranged(job: Job) -> Any:
    """The devices of the topology as an array with the mesh's axes, neighbours in the network side by side."""
    import jax
    import numpy as np
    from jax.experimental import mesh_utils, topologies

    if job.platform == "cpu":
        devices = np.asarray(jax.devices("cpu")[: job.mesh.devices])
    elif job.platform == "cuda":
        gpu = GPUS[job.topology.partition(":")[0]]
        of_host = min(job.mesh.devices, GPUS_OF_HOST)
        described = topologies.get_topology_desc(
            platform="cuda",
            target_config=gpu.description(),
            topology=f"1x{job.mesh.devices // of_host}x{of_host}",
        )
        return np.asarray(described.devices).reshape([n for _, n in job.mesh.axes])
    else:
        bounds = (*job.host, 1, 1)[:3]
        described = topologies.get_topology_desc(
            platform="tpu", topology_name=job.topology, chips_per_host_bounds=bounds
        )
        devices = np.asarray(described.devices)
    sizes = [n for _, n in job.mesh.axes]
    if devices.size == 1:
        return devices.reshape(sizes)
    return mesh_utils.create_device_mesh(sizes, list(devices), allow_split_physical_axes=True)


def _lower(job: Job, devices: Any) -> tuple[Any, list[list[int]]]:
    """The program as StableHLO, and (operations, turns) of its loops."""
    import jax
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec

    from ..lowering.target import Target
    from ..runtime.members import AXIS
    from .content import abstract
    from .program import program, signature

    called = signature(job.tape, job.roll)
    mesh = jax.sharding.Mesh(devices.reshape(-1), (AXIS,)) if job.ranks else jax.sharding.Mesh(devices, job.mesh.names)
    replicated = NamedSharding(mesh, PartitionSpec())

    def placed(split: Split) -> NamedSharding:
        return NamedSharding(mesh, PartitionSpec(*(axes or None for axes in split)))

    def constrain(i: int, j: int, x: jax.Array) -> jax.Array:
        dimension = job.layouts.batch.get((i, j))
        if dimension is None or job.mesh.replicas == 1:
            return x
        axes: list[Any] = [PartitionSpec.UNCONSTRAINED] * x.ndim
        axes[dimension] = job.mesh.data_axes
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec(*axes)))

    tensor_parallel = tuple(
        axis for axis in job.mesh.names if any(axis == name for s in job.tape.storages for name, _ in s.placements)
    )

    def place(i: int) -> Target | None:
        if job.platform == "cpu":
            return None
        if job.mesh.devices == 1 or job.ranks:
            return Target(job.platform)
        known = job.mesh.replicas == 1 or job.layouts.batch.get((i, 0)) == 0 or i in job.layouts.summed
        heads = tuple(axis for axis in tensor_parallel if axis not in job.mesh.data_axes)
        return Target(job.platform, mesh, job.mesh.data_axes if known else None, heads)

    run = program(job.tape, called, constrain, place)
    with jax.enable_x64(True):
        splits = [job.layouts.inputs[group[0]] for group in called.inputs]
        arguments = [
            jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=placed(((),) * (len(s.shape) - len(split)) + split))
            for s, split in zip((abstract(job.tape, group) for group in called.inputs), splits, strict=True)
        ]
        arrivals = [
            jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=replicated)
            for s in (abstract(job.tape, (n,)) for _, n in called.host_inputs)
        ]
        keys = [jax.ShapeDtypeStruct((called.draws, 4), np.uint32, sharding=replicated)] if called.draws else []
        n, m = len(arguments), len(arrivals)

        def flat(*arrays: jax.Array) -> list[jax.Array]:
            return run(arrays[:n], arrays[n : n + m], arrays[n + m] if keys else None)

        if job.ranks:  # as `runtime.members` has it: every device's own, called the same everywhere
            flat = jax.shard_map(flat, mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec(), check_vma=False)
        outputs = [arguments[called.inputs.index(g)].sharding if g in called.inputs else None for g in called.outputs]
        outputs += [None] * len(called.host_outputs)
        jitted = jax.jit(flat, donate_argnums=called.donated, keep_unused=True, out_shardings=outputs)
        lowered = jitted.lower(*arguments, *arrivals, *keys)
    return lowered, [[loop.period, loop.turns] for loop in called.loops]


def _dump(text: str, job: Job) -> None:
    """Write the optimized program where `TORCH_PJRT_DUMP` asks for programs."""
    place = os.environ.get("TORCH_PJRT_DUMP", "").strip()
    if place:
        Path(place).mkdir(parents=True, exist_ok=True)
        name = re.sub(r"\W+", "-", f"plan {job.platform} {job.topology} {job.mesh}").strip("-")
        (Path(place) / f"{name}.hlo").write_text(text)


def _reading(text: str, job: Job, devices: Any) -> dict[str, Any]:
    """What the optimized program says of time, transfers and the largest tensors."""
    from .hlo import parse
    from .schedule import Speeds, estimate, largest

    coordinates = tuple(tuple(getattr(d, "coords", ())) for d in devices.flat)
    if job.platform == "cuda":
        coordinates = tuple((i // GPUS_OF_HOST,) for i in range(devices.size))
    module = parse(text)
    kernels = schedules_of(text, job.topology.partition(":")[0]) if job.platform == "tpu" else {}
    speeds = Speeds(job.clock, job.bandwidth, job.interconnect, coordinates, kernels, job.between_hosts)
    found = estimate(module, job.mesh.axes, speeds)
    return {
        "seconds": found.seconds,
        "compute_seconds": found.compute,
        "exposed_seconds": found.exposed,
        "accessed_bytes": found.nbytes,
        "unknown": dict(found.unknown),
        "collectives": [[kind, axes, *row] for (kind, axes), row in found.collectives.items()],
        "largest": largest(module),
    }


def _analysis(compiled: Any) -> dict[str, Any]:
    memory = compiled.memory_analysis()
    names = ("argument", "output", "temp", "alias", "generated_code")
    found: dict[str, Any] = {f"{n}_bytes": int(getattr(memory, f"{n}_size_in_bytes")) for n in names}
    found["planned_peak_bytes"] = int(getattr(memory, "peak_memory_in_bytes", 0))
    return found


if __name__ == "__main__":
    main()
