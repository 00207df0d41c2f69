"""Methods of storages that reach raw memory work on the device, or say that they can't; none of them crashes."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ..conftest import DEVICE

HERE, THERE = torch.device("cpu"), torch.device(DEVICE, 0)


def legacy_file(saved: Any) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(saved, file, _use_new_zipfile_serialization=False)
    file.seek(0)
    return file


@pytest.mark.parametrize("of", ["cpu", DEVICE])
@pytest.mark.parametrize(("location", "lands"), [(None, None), ("cpu", HERE), (DEVICE, THERE)], ids=str)
def test_a_file_of_the_legacy_format_lands_where_map_location_says(
    of: str, location: str | None, lands: torch.device | None
) -> None:
    x = torch.arange(6.0).reshape(2, 3)
    there = x.to(of)
    for only in (True, False):
        file = legacy_file({"x": there, "column": there[:, 1], "counts": torch.tensor([3], device=of)})
        loaded = torch.load(file, map_location=location, weights_only=only)
        assert loaded["x"].device == (lands or there.device)
        assert torch.equal(loaded["x"].cpu(), x) and loaded["counts"].tolist() == [3]
        loaded["x"][0, 1] = 7
        assert loaded["column"].tolist() == [7, 4]  # one storage still


def test_a_legacy_file_on_disk_holds_the_bytes_that_one_of_the_cpu_holds(tmp_path: Path) -> None:
    x = torch.randn(5).half()
    for name, t in (("cpu", x), ("device", x.to(DEVICE))):
        torch.save(t, tmp_path / name, _use_new_zipfile_serialization=False)
    assert (tmp_path / "device").read_bytes().endswith((tmp_path / "cpu").read_bytes()[-10:])
    assert torch.equal(torch.load(tmp_path / "device").cpu(), x)
    assert torch.equal(torch.load(tmp_path / "cpu", map_location=DEVICE).cpu(), x)


@pytest.mark.parametrize("dtype", [torch.int16, torch.float32, torch.complex64, torch.uint8], ids=str)
def test_byteswap_swaps_the_bytes_of_every_element(dtype: torch.dtype) -> None:
    swapped = []
    for device in ("cpu", DEVICE):
        x = torch.arange(6).to(dtype).to(device)
        x.untyped_storage().byteswap(dtype)
        swapped.append(x.cpu().view(torch.uint8))
    assert torch.equal(*swapped)


REFUSED: dict[str, Callable[[torch.UntypedStorage], Any]] = {
    "a slice": lambda s: s[1:3].tolist(),
    "pinning": lambda s: s.pin_memory(),
    "sharing": lambda s: s.share_memory_(),
    "a file descriptor": lambda s: s._share_fd_cpu_(),
    "a file name": lambda s: s._share_filename_cpu_(),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_memory_of_the_host_says_so(name: str) -> None:
    x = torch.arange(4, dtype=torch.uint8, device=DEVICE)
    with pytest.raises((RuntimeError, TypeError), match=r"storage|only|cannot be shared"):
        REFUSED[name](x.untyped_storage())
    assert x.tolist() == [0, 1, 2, 3]
