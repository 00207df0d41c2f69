"""Data on its way to the device: DataLoader, pinned memory, numpy, DLPack and JAX."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from ..conftest import DEVICE
from ..process import output

module = getattr(torch, DEVICE)
DATA = TensorDataset(torch.arange(32.0).reshape(8, 4), torch.arange(8))


class Numbers(Dataset[Tensor]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Tensor:
        return torch.full((3,), float(index))


class Stream(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        yield from torch.arange(4.0).reshape(4, 1)


@pytest.mark.parametrize("pin", [False, True], ids=["pageable", "pinned"])
@pytest.mark.parametrize("start", ["none", "fork", "spawn", "forkserver"])
def test_a_data_loader_feeds_the_device(start: str, pin: bool) -> None:
    torch.ones(1, device=DEVICE).item()  # the client runs before the workers start
    workers = {} if start == "none" else {"num_workers": 2, "multiprocessing_context": start}
    seen = []
    for x, y in DataLoader(DATA, batch_size=4, pin_memory=pin, **workers):  # type: ignore[arg-type]
        assert x.is_pinned() == y.is_pinned() == pin
        x, y = x.to(DEVICE, non_blocking=True), y.to(DEVICE, non_blocking=True)
        seen.append((x.sum() + y.sum()).item())
    expected = [(DATA.tensors[0][i : i + 4].sum() + DATA.tensors[1][i : i + 4].sum()).item() for i in (0, 4)]
    assert seen == expected


def test_persistent_workers_and_prefetching_give_every_epoch_the_same() -> None:
    loader = DataLoader(
        Numbers(), batch_size=2, num_workers=1, persistent_workers=True, prefetch_factor=2, pin_memory=True,
        multiprocessing_context="fork",
    )  # fmt: skip
    epochs = [[batch.to(DEVICE, non_blocking=True).sum().item() for batch in loader] for _ in range(2)]
    assert epochs == [[3, 15]] * 2
    assert [b.to(DEVICE).tolist() for b in DataLoader(Stream(), batch_size=None)] == [[0], [1], [2], [3]]


def test_a_loader_without_workers_may_make_its_data_on_the_device() -> None:
    on_device = TensorDataset(*(t.to(DEVICE) for t in DATA.tensors))
    batches = list(DataLoader(on_device, batch_size=4))
    assert all(t.device.type == DEVICE for batch in batches for t in batch)
    assert torch.equal(torch.cat([x for x, _ in batches]).cpu(), DATA.tensors[0])


def test_shuffling_under_a_default_device_wants_a_generator_of_it() -> None:
    with torch.device(DEVICE):
        loader = DataLoader(DATA, batch_size=8, shuffle=True, generator=torch.Generator(DEVICE).manual_seed(1))
        ((_, y),) = loader
    assert sorted(y.tolist()) == list(range(8))


def test_pinned_memory_says_so_and_keeps_the_content() -> None:
    x = torch.arange(6.0)
    pinned = x.pin_memory()
    assert pinned.is_pinned() and pinned[2:].is_pinned() and not x.is_pinned()
    assert pinned.pin_memory().data_ptr() == pinned.data_ptr()
    assert torch.equal(pinned, x) and torch.equal(pinned.to(DEVICE, non_blocking=True).cpu(), x)
    assert torch.empty(3, pin_memory=True).is_pinned()
    assert torch.zeros(3).pin_memory().is_pinned() and not torch.empty(0).is_pinned()
    address = pinned.data_ptr()
    del pinned
    assert not any(t.is_pinned() for t in [torch.ones(6) for _ in range(8)] if t.data_ptr() == address)
    torch.accelerator.empty_host_cache()
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        torch.ones(3, device=DEVICE).pin_memory()


def test_a_source_may_be_overwritten_right_after_a_non_blocking_copy() -> None:
    source = torch.ones(1000).pin_memory()
    there = source.to(DEVICE, non_blocking=True)
    source.zero_()
    assert there.sum().item() == 1000
    back = torch.empty(1000).pin_memory()
    back.copy_(there, non_blocking=True)
    assert back.sum().item() == 1000


def test_numpy_arrays_and_cpu_tensors_are_copied_to_the_device() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    for there in (
        torch.tensor(array, device=DEVICE),
        torch.as_tensor(array, device=DEVICE),
        torch.asarray(array, device=DEVICE),
        torch.from_numpy(array).to(DEVICE),
        torch.from_dlpack(array).to(DEVICE),
        torch.from_dlpack(array, device=DEVICE),
    ):
        before = array.copy()
        array += 1
        assert there.device.type == DEVICE
        assert np.array_equal(there.numpy(force=True), before)
        array -= 1
    back = there.numpy(force=True)
    back[:] = 0
    assert there.sum().item() == 15


def test_numpy_functions_say_that_the_cpu_comes_first() -> None:
    x = torch.ones(2, device=DEVICE)
    for use in (np.asarray, np.isnan, lambda t: np.concatenate([t, t]), lambda t: t.numpy(), lambda t: t.__array__()):
        with pytest.raises(
            TypeError, match=rf"can't convert {DEVICE}:0 device type tensor to numpy. Use Tensor.cpu\(\)"
        ):
            use(x)
    assert (x * np.float32(2)).tolist() == (np.float32(2) * x).tolist() == [2, 2]


def test_dlpack_hands_the_memory_over_without_a_copy() -> None:
    x = torch.ones(2, 3, device=DEVICE) * torch.arange(3.0, device=DEVICE)
    seen = np.from_dlpack(x)
    assert np.array_equal(seen, x.numpy(force=True))
    assert not seen.flags.writeable
    assert np.from_dlpack(x).ctypes.data == seen.ctypes.data == module.to_jax(x).unsafe_buffer_pointer()
    assert torch.equal(torch.from_dlpack(x), x.cpu())
    for view in (x[:, 1:], x.T, x.view(3, 2), x.view(-1)):  # these are computed first
        assert np.array_equal(np.from_dlpack(view), view.numpy(force=True))
    assert x.__dlpack_device__() == (1, 0)  # kDLCPU: where PJRT's CPU platform has it


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.bfloat16, torch.float16, torch.complex64], ids=str)
def test_dlpack_and_jax_keep_dtypes(dtype: torch.dtype) -> None:
    x = torch.tensor([0, 1, 2]).to(dtype)
    assert torch.equal(torch.from_dlpack(x.to(DEVICE)), x)
    assert torch.equal(module.from_jax(module.to_jax(x.to(DEVICE))).cpu(), x)


def test_what_others_hold_is_not_changed_by_later_writes_or_donated() -> None:
    import jax.numpy as jnp

    x = torch.zeros(1000, device=DEVICE)
    x += 1
    by_numpy, by_jax = np.from_dlpack(x), module.to_jax(x)
    source = jnp.full((1000,), 5.0)
    y = module.from_jax(source)
    for _ in range(3):
        x += 1
        y += 1
        module.synchronize()
    assert x.sum().item() == 4000 and y.sum().item() == 8000
    assert by_numpy.sum() == 1000 and float(by_jax.sum()) == 1000 and float(source.sum()) == 5000


def test_a_writer_through_dlpack_changes_no_other_tensor() -> None:
    x = torch.ones(4, device=DEVICE)
    module.synchronize()
    clone = x.clone()
    doubled = x * 2
    torch.from_dlpack(x).zero_()
    assert clone.tolist() == [1] * 4 and doubled.tolist() == [2] * 4


def test_jax_takes_tensors_and_gives_them_without_a_copy() -> None:
    import jax
    import jax.numpy as jnp

    x = torch.arange(4.0, device=DEVICE)
    module.synchronize()
    array = module.to_jax(x)
    assert array.unsafe_buffer_pointer() == jnp.asarray(x).unsafe_buffer_pointer()
    assert jnp.sin(array).tolist() == pytest.approx(torch.arange(4.0).sin().tolist())
    assert jax.dlpack.from_dlpack(x).tolist() == [0, 1, 2, 3]
    back = module.from_jax(array)
    assert module.to_jax(back) is array
    assert (back + 1).tolist() == [1, 2, 3, 4]
    assert module.from_jax(jnp.ones((2, 3)).T).shape == (3, 2)


def test_what_cannot_be_exchanged_is_refused_with_the_reason() -> None:
    x = torch.ones(2, device=DEVICE, requires_grad=True)
    with pytest.raises(BufferError, match=r"use tensor.detach\(\)"):
        np.from_dlpack(x)
    with pytest.raises(RuntimeError, match=r"to_jax\(tensor.detach\(\)\)"):
        module.to_jax(x)
    with pytest.raises(RuntimeError, match=f"expected a {DEVICE} tensor, got one on cpu"):
        module.to_jax(torch.ones(2))
    with pytest.raises(TypeError, match=r"expected a jax\.Array, got ndarray"):
        module.from_jax(np.ones(2))
    assert not hasattr(torch.ones(2), "__jax_array__")
    assert torch.ones(2).__dlpack_device__() == (1, 0)


def test_an_array_of_a_device_that_is_not_ours_is_refused() -> None:
    program = f"""
    import torch, jax
    mesh = jax.make_mesh((2,), ("x",))
    spread = jax.device_put(jax.numpy.arange(4.0), jax.NamedSharding(mesh, jax.P("x")))
    try:
        torch.{DEVICE}.from_jax(spread)
    except ValueError as error:
        print(error)
    print(torch.{DEVICE}.from_jax(jax.device_put(1.5, jax.devices()[1])).device)
    """
    refused, placed = output(program, JAX_NUM_CPU_DEVICES="2").splitlines()
    assert "lies over" in refused and "expected it on one of" in refused and "jax.device_put" in refused
    assert placed == f"{DEVICE}:1"
