"""torch.<name> and torch.accelerator: which devices there are, which is current, what they are called."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import nn

from ..conftest import DEVICE

module = getattr(torch, DEVICE)


def test_the_device_is_available_and_counted() -> None:
    assert module.is_available()
    assert module.device_count() == 1
    assert torch.accelerator.is_available()
    assert torch.accelerator.device_count() == 1


def test_the_device_is_the_accelerator_of_this_process() -> None:
    assert torch.accelerator.current_accelerator() == torch.device(DEVICE)
    assert torch.get_device_module(DEVICE) is module
    assert torch.get_device_module() is module


def test_the_current_device_is_0_and_can_be_set() -> None:
    assert module.current_device() == torch.accelerator.current_device_index() == 0
    for spelling in (0, DEVICE, f"{DEVICE}:0", torch.device(DEVICE, 0)):
        module.set_device(spelling)
    torch.accelerator.set_device_index(0)
    assert torch.empty(1, device=DEVICE).device == torch.device(DEVICE, 0)


def test_a_device_that_does_not_exist_is_refused_with_its_number_and_the_count() -> None:
    for use in (
        lambda: module.set_device(7),
        lambda: torch.accelerator.set_device_index(7),
        lambda: torch.empty(1, device=f"{DEVICE}:7"),
        lambda: torch.ones(1).to(f"{DEVICE}:7"),
    ):
        with pytest.raises(RuntimeError, match=rf"{DEVICE}:7 does not exist: this process has 1 device"):
            use()
    assert module.current_device() == 0


def test_a_device_of_another_type_is_refused() -> None:
    with pytest.raises(ValueError, match=f"expected a {DEVICE} device, got cpu"):
        module.set_device("cpu")
    with pytest.raises(ValueError, match="got cuda:0"):
        module.synchronize("cuda:0")


def test_device_contexts_restore_the_device_before_them() -> None:
    with module.device(0):
        assert module.current_device() == 0
    with module.device_of(torch.ones(1, device=DEVICE)), module.device_of(torch.ones(1)):
        assert module.current_device() == 0
    with torch.accelerator.device_index(0):
        assert module.current_device() == 0
    assert module.current_device() == 0


def test_a_default_device_makes_tensors_there() -> None:
    with torch.device(DEVICE):
        assert torch.zeros(2).device.type == DEVICE
        assert nn.Linear(2, 2).weight.device.type == DEVICE
    assert torch.zeros(2).device.type == "cpu"


def test_synchronize_runs_what_is_recorded() -> None:
    for synchronize in (module.synchronize, torch.accelerator.synchronize, lambda: module.synchronize(f"{DEVICE}:0")):
        x = torch.ones(3, device=DEVICE) + 1
        before = module.metrics()["traces_run"]
        synchronize()
        assert module.metrics()["traces_run"] == before + 1
        assert x.tolist() == [2, 2, 2]


def test_properties_name_the_chip_and_the_platform() -> None:
    properties = module.get_device_properties()
    assert (properties.name, properties.platform) == ("cpu", "cpu")
    assert module.get_device_name() == module.get_device_name(0) == "cpu"
    assert properties.total_memory > 2**28
    assert module.get_device_capability()["supported_dtypes"] >= {torch.float32, torch.bfloat16, torch.int64}


def test_tensors_and_modules_have_the_methods_named_after_the_device() -> None:
    x = getattr(torch.ones(2), DEVICE)()
    assert x.device.type == DEVICE and getattr(x, f"is_{DEVICE}")
    assert not getattr(torch.ones(2), f"is_{DEVICE}")
    assert getattr(nn.Linear(2, 2), DEVICE)().weight.device.type == DEVICE


def test_what_is_not_in_the_public_table_is_not_an_attribute() -> None:
    for name in ("no_such_thing", "memory_allocate"):
        with pytest.raises(AttributeError, match=name):
            getattr(module, name)
    assert set(dir(module)) == set(module.PUBLIC_API)
    for name in module.PUBLIC_API:
        assert getattr(module, name) is not None


def test_saving_and_loading_keeps_values_device_and_sharing() -> None:
    x = torch.arange(6.0, device=DEVICE).reshape(2, 3)
    file = io.BytesIO()
    torch.save({"whole": x, "column": x[:, 1], "parameter": nn.Parameter(x.clone())}, file)
    file.seek(0)
    loaded = torch.load(file)
    assert loaded["whole"].device == x.device
    assert loaded["column"].tolist() == [1, 4]
    loaded["whole"].zero_()
    assert loaded["column"].tolist() == [0, 0]
    assert loaded["parameter"].requires_grad
    file.seek(0)
    assert torch.load(file, map_location="cpu")["whole"].device.type == "cpu"


def test_a_file_saved_on_the_cpu_loads_onto_the_device() -> None:
    file = io.BytesIO()
    torch.save({"weight": torch.arange(4.0).bfloat16()}, file)
    file.seek(0)
    weight = torch.load(file, map_location=DEVICE)["weight"]
    assert (weight.device.type, weight.dtype, weight.tolist()) == (DEVICE, torch.bfloat16, [0, 1, 2, 3])


def test_deepcopy_and_pickle_make_independent_tensors() -> None:
    x = torch.ones(3, device=DEVICE)
    for other in (copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        other += 1
        assert (other.tolist(), other.device) == ([2, 2, 2], x.device)
    assert x.tolist() == [1, 1, 1]


def test_printing_shows_values_and_device_and_compiles_nothing() -> None:
    x = torch.tensor([[1.5, 2.0], [float("nan"), -3.0]], device=DEVICE)
    module.reset_metrics()
    assert repr(x) == f"tensor([[ 1.5000,  2.0000],\n        [    nan, -3.0000]], device='{DEVICE}:0')"
    assert module.metrics()["executables_compiled"] == 0
    assert module.metrics()["host_syncs"] == {"copy to the host": 1}
    assert repr(x[0].double().requires_grad_()).endswith("dtype=torch.float64,\n       requires_grad=True)")


def test_events_measure_time_and_streams_keep_order() -> None:
    start, end = torch.Event(DEVICE, enable_timing=True), torch.Event(DEVICE, enable_timing=True)
    start.record()
    x = torch.ones(4, device=DEVICE).exp()
    end.record()
    end.synchronize()
    assert end.query()
    assert start.elapsed_time(end) >= 0
    stream = torch.accelerator.current_stream()
    stream.synchronize()
    assert x.tolist() == pytest.approx([2.7182818] * 4)


def test_numpy_wants_the_cpu_first_as_for_every_accelerator() -> None:
    with pytest.raises(TypeError, match=r"Use Tensor.cpu\(\)"):
        torch.ones(1, device=DEVICE).numpy()
