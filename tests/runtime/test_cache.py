"""TORCH_PJRT_CACHE_DIR keeps compiled programs for the next process, and never trusts what it finds there."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from torch_pjrt.runtime import cache

from ..process import output, python

PROGRAM = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Dropout(0.5), torch.nn.Linear(16, 4))
model.to("pjrt")
x = torch.linspace(0, 1, 16).reshape(2, 8).to("pjrt")
loss = model(x).square().mean()
loss.backward()
sums = [f(x).sum().item() for f in (torch.sin, torch.cos, torch.exp, torch.tanh)]
m = torch.pjrt.metrics()
print(loss.item(), m["executables_compiled"], m["executables_loaded"], m["compile_seconds"] + m["load_seconds"])
"""


def run(directory: Path, program: str = PROGRAM, **environment: str) -> tuple[float, int, int, float]:
    """(the loss, programs compiled, programs loaded, seconds for both) of one process."""
    loss, compiled, loaded, seconds = output(program, TORCH_PJRT_CACHE_DIR=str(directory), **environment).split()
    return float(loss), int(compiled), int(loaded), float(seconds)


def programs(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.program"))


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[float, int, int, float]]:
    """A directory that one process has left behind, and what that process said."""
    directory = tmp_path_factory.mktemp("cache") / "not" / "there" / "yet"
    return directory, run(directory)


@pytest.fixture
def copied(first: tuple[Path, object], tmp_path: Path) -> Path:
    return Path(shutil.copytree(first[0], tmp_path / "cache"))


def test_a_second_process_takes_its_programs_from_the_first(first: tuple[Path, tuple[float, int, int, float]]) -> None:
    directory, (loss, compiled, loaded, cold) = first
    assert compiled > 0
    assert loaded == 0
    kept = programs(directory)
    assert len(kept) == compiled
    assert directory.stat().st_mode & 0o077 == 0, "others could put programs there"
    same_loss, recompiled, loaded, warm = run(directory, "\n\n# its lines moved down\n" + PROGRAM)
    assert same_loss == loss
    assert (recompiled, loaded) == (0, compiled)
    assert warm < cold
    assert programs(directory) == kept


@pytest.mark.parametrize(
    "change", [("Tanh", "Sigmoid"), ("import torch\n", "import torch\ntorch.set_float32_matmul_precision('high')\n")]
)
def test_another_program_is_compiled(copied: Path, change: tuple[str, str]) -> None:
    assert run(copied, PROGRAM.replace(*change))[1] > 0


def test_damaged_files_are_warned_of_and_replaced(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = programs(copied)
    assert len(kept) >= 4, "one for each kind of damage"
    data = [p.read_bytes() for p in kept]
    kept[0].write_bytes(data[0][: len(data[0]) // 2])
    kept[1].write_bytes(b"#!/bin/sh\nexit 1\n")
    kept[2].write_bytes(data[2][:-9] + bytes([data[2][-9] ^ 1]) + data[2][-8:])
    # Whole as a file, but nothing that the runtime can load.
    monkeypatch.setenv("TORCH_PJRT_CACHE_DIR", str(copied))
    cache.directory.cache_clear()
    payload = cache.load(kept[3].stem)
    assert payload is not None
    cache.store(kept[3].stem, payload[:-100])
    cache.directory.cache_clear()
    done = python(PROGRAM, TORCH_PJRT_CACHE_DIR=str(copied), PYTHONWARNINGS="always")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("CacheWarning") == 4
    _, recompiled, loaded, _ = done.stdout.split()
    assert (int(recompiled), int(loaded)) == (4, len(kept) - 4)
    assert programs(copied) == kept
    assert all(p.stat().st_size > 1000 for p in kept)


def test_two_processes_at_once(tmp_path: Path) -> None:
    environment = os.environ | {"TORCH_PJRT_CACHE_DIR": str(tmp_path), "JAX_PLATFORMS": "cpu"}
    both = [
        subprocess.Popen([sys.executable, "-c", PROGRAM], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    losses = {p.communicate(timeout=120)[0].split()[0] for p in both}
    assert [p.returncode for p in both] == [0, 0]
    assert len(losses) == 1
    assert run(tmp_path)[1] == 0


def test_a_process_killed_while_writing_leaves_nothing_that_is_read(tmp_path: Path) -> None:
    writer = """
import os, sys
from torch_pjrt.runtime import cache
real = os.replace
os.replace = lambda *a: (print("written", flush=True), sys.stdin.read())
cache.store("0" * 64, b"half of a program")
"""
    environment = os.environ | {"TORCH_PJRT_CACHE_DIR": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, "-c", writer], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "written\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    (left,) = tmp_path.iterdir()
    assert not programs(tmp_path)
    old = time.time() - 2 * 3600
    os.utime(left, (old, old))
    cache.sweep(tmp_path, 1 << 30)
    assert not list(tmp_path.iterdir())


def test_a_directory_that_cannot_be_used_is_warned_of(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    done = python(PROGRAM, TORCH_PJRT_CACHE_DIR=str(tmp_path / "file" / "below"))
    assert done.returncode == 0, done.stderr
    assert re.search(r"CacheWarning: TORCH_PJRT_CACHE_DIR=\S+ cannot be used", done.stderr)
    assert int(done.stdout.split()[1]) > 0


def test_a_program_that_dumps_still_sees_its_stablehlo(copied: Path, tmp_path: Path) -> None:
    _, compiled, _, _ = run(copied, TORCH_PJRT_DUMP=str(tmp_path / "dump"))
    assert len(list((tmp_path / "dump").glob("*.mlir"))) == compiled > 0


class TestFiles:
    """The directory by itself, with bytes that are no programs."""

    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.setenv("TORCH_PJRT_CACHE_DIR", str(tmp_path))
        cache.directory.cache_clear()
        yield
        cache.directory.cache_clear()

    def test_what_is_stored_is_loaded(self) -> None:
        assert cache.load("a") is None
        cache.store("a", b"one")
        cache.store("a", b"two")
        assert cache.load("a") == b"two"
        cache.discard("a")
        assert cache.load("a") is None

    def test_the_least_recently_used_go_first(self, tmp_path: Path) -> None:
        for i, name in enumerate("abc"):
            cache.store(name, bytes(1000))
            os.utime(tmp_path / f"{name}.program", (i, i))
        assert cache.load("a") is not None  # used again
        size = (tmp_path / "a.program").stat().st_size
        cache.sweep(tmp_path, 2 * size)
        assert [p.stem for p in programs(tmp_path)] == ["a", "c"]

    def test_the_bound_is_kept_by_storing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TORCH_PJRT_CACHE_BYTES", "10000")
        for i in range(2 * 64 + 1):
            cache.store(f"{i:03d}", bytes(1000))
        assert sum(p.stat().st_size for p in programs(tmp_path)) <= 10000 + 64 * 1100
        monkeypatch.setenv("TORCH_PJRT_CACHE_BYTES", "much")
        with pytest.raises(ValueError, match="TORCH_PJRT_CACHE_BYTES='much'"):
            cache.most_bytes()

    def test_files_of_others_are_left_alone(self, tmp_path: Path) -> None:
        (tmp_path / "notes.txt").write_text("mine")
        cache.sweep(tmp_path, 0)
        assert (tmp_path / "notes.txt").exists()

    def test_keys_differ_by_every_part(self) -> None:
        keys = {cache.key_of("a", "b"), cache.key_of("ab"), cache.key_of("a", "c"), cache.key_of("", "ab")}
        assert len(keys) == 4

    def test_no_directory_no_cache(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("TORCH_PJRT_CACHE_DIR")
        cache.directory.cache_clear()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            cache.store("a", b"one")
            assert cache.load("a") is None
