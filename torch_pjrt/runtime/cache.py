"""Compiled programs kept in a directory, for the next process: `TORCH_PJRT_CACHE_DIR`.

A program's file is named by a hash of what it computes and of all that its compiling depends on, so that a hit needs
neither JAX's tracing nor XLA. A file is written under another name and moved into place, so that readers never see half
of one; its bytes carry their own hash, so that a damaged or foreign file is recognized before XLA sees it. Nothing is
unpickled. Loading a program runs code: the directory is made for its owner alone.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
import platform as machine
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_MAGIC = b"torch-pjrt program 1\n"
_SUFFIX = ".program"
_DEFAULT_BYTES = 8 << 30
# The directory is measured at the first program stored, and after this many more.
_STORED_BETWEEN_SWEEPS = 64
# Seconds after which a file that some process was writing is given up as that process's last.
_STALE = 3600

_STORED = itertools.count()


class CacheWarning(UserWarning):
    """Something in the cache directory could not be used; the program is compiled instead."""


@functools.cache
def directory() -> Path | None:
    """Where programs are kept, made if need be; None if `TORCH_PJRT_CACHE_DIR` isn't set or can't be used.

    Raises ValueError for a `TORCH_PJRT_CACHE_BYTES` that is no whole number.
    """
    named = os.environ.get("TORCH_PJRT_CACHE_DIR", "").strip()
    if not named:
        return None
    path = Path(named).expanduser()
    most_bytes()  # a number that is none is an error here, not at some later program
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        warnings.warn(f"TORCH_PJRT_CACHE_DIR={named} cannot be used: {error}", CacheWarning, stacklevel=2)
        return None
    return path


def most_bytes() -> int:
    """How much the directory may hold: `TORCH_PJRT_CACHE_BYTES`, 8 GiB if that isn't set.

    Raises ValueError if it is no whole number.
    """
    said = os.environ.get("TORCH_PJRT_CACHE_BYTES", "").strip()
    try:
        return int(said) if said else _DEFAULT_BYTES
    except ValueError:
        raise ValueError(f"TORCH_PJRT_CACHE_BYTES={said!r} is no whole number of bytes") from None


def key_of(*parts: str) -> str:
    """The name of a program: a hash of what it computes (`parts`) and of what compiling it depends on."""
    digest = hashlib.sha256(_surroundings().encode())
    for part in parts:
        digest.update(b"\0" + part.encode())
    return digest.hexdigest()


def load(key: str) -> bytes | None:
    """What was stored under `key`, or None. A damaged file is warned of and removed."""
    path = _path(key)
    if path is None:
        return None
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        warnings.warn(f"{path} could not be read: {error}; compiling instead", CacheWarning, stacklevel=2)
        return None
    head = len(_MAGIC) + 32
    payload = data[head:]
    if data[: len(_MAGIC)] != _MAGIC or hashlib.sha256(payload).digest() != data[len(_MAGIC) : head]:
        warnings.warn(f"{path} is damaged or no program of ours; compiling instead", CacheWarning, stacklevel=2)
        discard(key)
        return None
    with suppress(OSError):  # another process may have removed it, or the directory may be read-only
        os.utime(path)  # the least recently used go first
    return payload


def store(key: str, payload: bytes) -> None:
    """Keep `payload` under `key`. A directory that cannot be written to is warned of, never an error."""
    path = _path(key)
    if path is None:
        return
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.{time.monotonic_ns()}")
    try:
        with open(unfinished, "wb") as file:
            file.write(_MAGIC + hashlib.sha256(payload).digest() + payload)
        os.replace(unfinished, path)
    except OSError as error:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
        warnings.warn(f"{path} could not be written: {error}", CacheWarning, stacklevel=2)
        return
    if next(_STORED) % _STORED_BETWEEN_SWEEPS == 0:
        sweep(path.parent, most_bytes())


def discard(key: str) -> None:
    """Remove what is stored under `key`, if anything is."""
    path = _path(key)
    if path is not None:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def sweep(path: Path, most: int) -> None:
    """Remove the least recently used programs until the directory holds `most` bytes, and what killed writers left."""
    programs: list[tuple[float, int, Path]] = []
    # Another process may sweep too, and in a directory that others write to some files may not be ours to remove.
    with suppress(OSError):
        for entry in os.scandir(path):
            if _SUFFIX not in entry.name:
                continue
            with suppress(OSError):
                status = entry.stat()
                if entry.name.endswith(_SUFFIX):
                    programs.append((status.st_mtime, status.st_size, Path(entry.path)))
                elif time.time() - status.st_mtime > _STALE:
                    Path(entry.path).unlink()
    held = sum(size for _, size, _ in programs)
    for _, size, program in sorted(programs):
        if held <= most:
            break
        with suppress(OSError):
            program.unlink()
            held -= size


def _path(key: str) -> Path | None:
    place = directory()
    return None if place is None else place / f"{key}{_SUFFIX}"


@functools.cache
def _surroundings() -> str:
    """Versions, the chip, the flags and our own source: what changes programs beside what they compute."""
    import jax
    import jaxlib.version
    import torch

    from .client import device

    first = device(0)
    client = first.client
    flags = [f"{name}={os.environ.get(name, '')}" for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")]
    parts = [
        torch.__version__, jax.__version__, jaxlib.version.__version__, client.platform, client.platform_version,
        first.device_kind, *flags, source_hash(), *(_processor() if client.platform == "cpu" else ()),
    ]  # fmt: skip
    return "\n".join(parts)


def source_hash() -> str:
    """A hash of this package's Python: any change of a lowering makes other programs."""
    digest = hashlib.sha256()
    root = Path(__file__).parents[1]
    for file in sorted(root.rglob("*.py")):
        digest.update(str(file.relative_to(root)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def _processor() -> Iterator[str]:
    """The processor's kind and features, for which XLA:CPU makes machine code."""
    yield machine.machine()
    with suppress(FileNotFoundError):  # not on Linux: the machine's own name has to do
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features", "model name")):
                yield line
            elif not line:  # the first processor says it all
                return
    yield machine.processor()
