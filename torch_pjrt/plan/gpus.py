"""GPUs as XLA's compiler has them described, so that it compiles for them where there is none.

Figures are those of NVIDIA's data sheets (A100, H100 and H200 with SXM modules) and of the CUDA programming guide's
table of compute capabilities 8.0 and 9.0; a host is a DGX or HGX of eight, each with a network card of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

GPUS_OF_HOST = 8


@dataclass(frozen=True, slots=True)
class Gpu:
    """One kind of GPU.

    Attributes:
        name: as it is asked for ("h100").
        title: its public name.
        capability: of CUDA, (major, minor).
        memory: bytes of its HBM.
        peak: bf16 floating-point operations a second, dense.
        bandwidth: bytes a second between it and its HBM.
        nvlink, network: bytes a second that it sends to GPUs of its host, and to other hosts.
        cores: streaming multiprocessors.
        clock: cycles a second of them, at most.
        shared: bytes of shared memory that a block may have; each multiprocessor has 1 KiB more.
        cache: bytes of its L2 cache.
    """

    name: str
    title: str
    capability: tuple[int, int]
    memory: int
    peak: float
    bandwidth: float
    nvlink: float
    network: float
    cores: int
    clock: float
    shared: int
    cache: int

    def description(self) -> str:
        """XLA's `GpuTargetConfigProto`, as text."""
        major, minor = self.capability
        return f"""
            gpu_device_info {{
              threads_per_block_limit: 1024  threads_per_warp: 32  threads_per_core_limit: 2048
              shared_memory_per_block: 49152  shared_memory_per_block_optin: {self.shared}
              shared_memory_per_core: {self.shared + 1024}
              registers_per_core_limit: 65536  registers_per_block_limit: 65536
              block_dim_limit_x: 2147483647  block_dim_limit_y: 65535  block_dim_limit_z: 65535
              core_count: {self.cores}  fpus_per_core: {128 if major >= 9 else 64}
              memory_bandwidth: {int(self.bandwidth)}  l2_cache_size: {self.cache}
              clock_rate_ghz: {self.clock / 1e9}  device_memory_size: {self.memory}
              cuda_compute_capability {{ major: {major} minor: {minor} }}
            }}
            platform_name: "CUDA"
            dnn_version_info {{ major: 9 minor: 8 }}
            device_description_str: "{self.title}"
        """


_KNOWN = (
    Gpu("a100", "NVIDIA A100 SXM 80 GB", (8, 0), 80 << 30, 312e12, 2039e9, 300e9, 25e9, 108, 1.41e9, 166912, 40 << 20),
    Gpu("h100", "NVIDIA H100 SXM", (9, 0), 80 << 30, 989.4e12, 3350e9, 450e9, 50e9, 132, 1.98e9, 232448, 50 << 20),
    Gpu("h200", "NVIDIA H200 SXM", (9, 0), 141 * 10**9, 989.4e12, 4800e9, 450e9, 50e9, 132, 1.98e9, 232448, 50 << 20),
)
GPUS = {gpu.name: gpu for gpu in _KNOWN}
