"""torch.<name> and torch.accelerator: which devices there are, which is current, what they are called."""

from __future__ import annotations

import warnings

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


def test_printing_shows_values_and_device_and_compiles_nothing() -> None:
    x = torch.tensor([[1.5, 2.0], [float("nan"), -3.0]], device=DEVICE)
    module.reset_metrics()
    assert repr(x) == f"tensor([[ 1.5000,  2.0000],\n        [    nan, -3.0000]], device='{DEVICE}:0')"
    assert module.metrics()["executables_compiled"] == 0
    assert module.metrics()["host_syncs"] == {"copy to the host": 1}
    assert repr(x[0].double().requires_grad_()).endswith("dtype=torch.float64,\n       requires_grad=True)")


def test_every_function_of_torch_accelerator_answers() -> None:
    """All of torch.accelerator.__all__; graphs are refused in test_streams.py."""
    accelerator = torch.accelerator
    x = torch.ones(256, device=DEVICE)
    stream = accelerator.current_stream()
    answers = {
        "current_accelerator": lambda: accelerator.current_accelerator(check_available=True) == torch.device(DEVICE),
        "current_device_idx": lambda: accelerator.current_device_idx() == 0,
        "current_device_index": lambda: accelerator.current_device_index() == 0,
        "get_device_capability": lambda: accelerator.get_device_capability() == module.get_device_capability(),
        "current_stream": lambda: accelerator.current_stream(0) == stream,
        "device_count": lambda: accelerator.device_count() == 1,
        "device_index": lambda: accelerator.device_index(0).__enter__() is None,
        "empty_cache": lambda: accelerator.empty_cache() is None,
        "empty_host_cache": lambda: accelerator.empty_host_cache() is None,
        "get_memory_info": lambda: 0 < accelerator.get_memory_info()[0] <= accelerator.get_memory_info(DEVICE)[1],
        "is_available": accelerator.is_available,
        "max_memory_allocated": lambda: accelerator.max_memory_allocated() >= x.nbytes,
        "max_memory_reserved": lambda: accelerator.max_memory_reserved(0) >= x.nbytes,
        "memory_allocated": lambda: accelerator.memory_allocated(f"{DEVICE}:0") >= x.nbytes,
        "memory_reserved": lambda: accelerator.memory_reserved() >= x.nbytes,
        "memory_stats": lambda: accelerator.memory_stats()["num_ooms"] >= 0,
        "reset_accumulated_memory_stats": lambda: accelerator.reset_accumulated_memory_stats() is None,
        "reset_peak_memory_stats": lambda: accelerator.reset_peak_memory_stats() is None,
        "set_device_idx": lambda: accelerator.set_device_idx(0) is None,
        "set_device_index": lambda: accelerator.set_device_index(f"{DEVICE}:0") is None,
        "set_stream": lambda: accelerator.set_stream(stream) is None,
        "synchronize": lambda: accelerator.synchronize() is None,
    }
    module.synchronize()
    assert set(answers) == set(accelerator.__all__) - {"Graph"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # the two that end in _idx are deprecated
        assert [name for name, answer in answers.items() if not answer()] == []


def test_the_module_has_the_names_of_other_accelerators_modules() -> None:
    """What torch.cuda, torch.xpu and torch.mtia have in common, less what is theirs alone."""
    common = set(torch.cuda.__all__) & set(torch.xpu.__all__)
    theirs = {
        "caching_allocator_alloc", "change_current_allocator", "clock_rate", "device_memory_used", "get_arch_list",
        "get_gencode_flags", "get_stream_from_external", "graph", "graph_pool_handle", "is_current_stream_capturing",
        "is_tf32_supported", "make_graphed_callables", "MemPool", "memory_usage", "power_draw", "streams",
        "temperature", "use_mem_pool", "utilization",
    }  # fmt: skip
    assert common - theirs - set(module.__all__) == set()
    assert callable(module.random.manual_seed) and callable(module.memory.memory_allocated)


def test_peers_are_other_devices() -> None:
    assert not module.can_device_access_peer(0, 0)
    with pytest.raises(IndexError):
        module.can_device_access_peer(0, 5)


FACTORIES = {
    "zeros": lambda: torch.zeros(2, 3),
    "ones": lambda: torch.ones(2),
    "full": lambda: torch.full((2,), 3.0),
    "tensor": lambda: torch.tensor([1, 2]),
    "as_tensor": lambda: torch.as_tensor([1.5]),
    "asarray": lambda: torch.asarray([1.5]),
    "arange": lambda: torch.arange(5),
    "linspace": lambda: torch.linspace(0, 1, 5),
    "logspace": lambda: torch.logspace(0, 1, 5),
    "eye": lambda: torch.eye(3, 2),
    "tril_indices": lambda: torch.tril_indices(3, 4, 1),
    "triu_indices": lambda: torch.triu_indices(3, 4, -1),
    "hann_window": lambda: torch.hann_window(6),
    "hamming_window": lambda: torch.hamming_window(6),
    "blackman_window": lambda: torch.blackman_window(6),
    "bartlett_window": lambda: torch.bartlett_window(6),
    "kaiser_window": lambda: torch.kaiser_window(6),
    "kaiser_window symmetric": lambda: torch.kaiser_window(6, periodic=False),
    "kaiser_window beta": lambda: torch.kaiser_window(6, True, 5.0, dtype=torch.float64),
    "fftfreq": lambda: torch.fft.fftfreq(5),
    "empty_strided": lambda: torch.empty_strided((2, 2), (1, 2)).zero_(),
    "complex": lambda: torch.complex(torch.ones(2), torch.zeros(2)),
    "vander": lambda: torch.vander(torch.arange(3)),
    "cartesian_prod": lambda: torch.cartesian_prod(torch.arange(2), torch.arange(3)),
}


@pytest.mark.parametrize("name", FACTORIES)
def test_a_factory_under_a_default_device_makes_what_it_makes_on_the_cpu(name: str) -> None:
    expected = FACTORIES[name]()
    torch.set_default_device(DEVICE)
    try:
        made = FACTORIES[name]()
    finally:
        torch.set_default_device(None)
    assert made.device == torch.device(DEVICE, 0) and made.dtype == expected.dtype
    torch.testing.assert_close(made.cpu(), expected)


MODULES = {
    "Linear": lambda: nn.Linear(2, 3),
    "Conv2d": lambda: nn.Conv2d(1, 2, 3),
    "BatchNorm1d": lambda: nn.BatchNorm1d(3),
    "Embedding": lambda: nn.Embedding(4, 2, padding_idx=0),
    "LSTM": lambda: nn.LSTM(2, 3, num_layers=2),
    "MultiheadAttention": lambda: nn.MultiheadAttention(4, 2),
    "TransformerEncoderLayer": lambda: nn.TransformerEncoderLayer(4, 2),
    "PReLU": lambda: nn.PReLU(),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_module_made_under_a_default_device_lies_there(name: str) -> None:
    torch.set_default_device(DEVICE)
    try:
        assert torch.get_default_device() == torch.device(DEVICE, 0)
        made = MODULES[name]()
    finally:
        torch.set_default_device(None)
    tensors = [*made.parameters(), *made.buffers()]
    assert tensors and all(t.device == torch.device(DEVICE, 0) for t in tensors)
    assert all(torch.isfinite(t).all().item() for t in tensors)


def test_a_number_means_the_accelerator() -> None:
    assert torch.ones(2, device=0).device == torch.ones(2).to(0).device == torch.device(DEVICE, 0)
    assert torch.ones(2, device=0).get_device() == 0
