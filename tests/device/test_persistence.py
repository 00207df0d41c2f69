"""What is saved comes back, on either device and with its sharing; training goes on as if it had never stopped."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.nn import functional

from torch_pjrt.lowering.dtypes import SUPPORTED

from ..conftest import DEVICE

module = getattr(torch, DEVICE)
HERE, THERE = torch.device("cpu"), torch.device(DEVICE, 0)


def to_device(storage: Any, location: str) -> Any:
    return getattr(storage, DEVICE)()


def stay(storage: Any, location: str) -> Any:
    return storage


MAPS: dict[str, tuple[Any, torch.device, torch.device]] = {
    # map_location, where a file of the device lands, where a file of the CPU lands
    "none": (None, THERE, HERE),
    "cpu": ("cpu", HERE, HERE),
    "name": (DEVICE, THERE, THERE),
    "name and index": (f"{DEVICE}:0", THERE, THERE),
    "device": (torch.device(DEVICE), THERE, THERE),
    "dict to the cpu": ({f"{DEVICE}:0": "cpu"}, HERE, HERE),
    "dict to the device": ({"cpu": f"{DEVICE}:0"}, THERE, THERE),
    "function to the device": (to_device, THERE, THERE),
    "function that moves nothing": (stay, HERE, HERE),
    "meta": ("meta", torch.device("meta"), torch.device("meta")),
}


@pytest.mark.parametrize("mmap", [False, True], ids=["read", "mmap"])
@pytest.mark.parametrize("where", MAPS)
def test_a_file_lands_where_map_location_says(where: str, mmap: bool, tmp_path: Path) -> None:
    location, of_device, of_cpu = MAPS[where]
    values = torch.arange(6.0).reshape(2, 3)
    for source, expected in ((values.to(DEVICE), of_device), (values, of_cpu)):
        torch.save({"x": source, "column": source[:, 1]}, tmp_path / "file.pt")
        loaded = torch.load(tmp_path / "file.pt", map_location=location, mmap=mmap, weights_only=True)
        assert loaded["x"].device == expected
        if expected.type == "meta":
            continue
        assert torch.equal(loaded["x"].cpu(), values)
        loaded["x"][0, 1] = 7
        assert loaded["column"].tolist() == [7, 4]  # one storage still


@pytest.mark.parametrize("dtype", sorted(SUPPORTED, key=str), ids=str)
def test_every_dtype_comes_back(dtype: torch.dtype) -> None:
    x = torch.tensor([0, 1, 2, 3]).to(dtype)
    file = io.BytesIO()
    torch.save(x.to(DEVICE), file)
    file.seek(0)
    loaded = torch.load(file)
    assert (loaded.device, loaded.dtype) == (THERE, dtype)
    assert torch.equal(loaded.cpu().view(torch.uint8), x.view(torch.uint8))


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(2, 3, 4, 4, device=DEVICE).to(memory_format=torch.channels_last),
        lambda: torch.randn(1, device=DEVICE).expand(4),
        lambda: torch.randn(3, 4, device=DEVICE).T[1:],
        lambda: torch.tensor([1 + 2j], device=DEVICE).conj(),
        lambda: torch.empty(0, 3, device=DEVICE),
        lambda: torch.randn(2, device=DEVICE).requires_grad_(),
        lambda: nn.Parameter(torch.randn(2, device=DEVICE)),
        lambda: nn.Buffer(torch.randn(2, device=DEVICE)),
    ],
    ids=["channels_last", "expanded", "strided", "conjugated", "empty", "requires_grad", "parameter", "buffer"],
)
def test_strides_bits_and_kinds_of_tensors_come_back(make: Callable[[], Tensor]) -> None:
    x = make()
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    for how in (lambda t: torch.load(file), lambda t: pickle.loads(pickle.dumps(t)), copy.deepcopy):
        loaded = how(x)
        assert type(loaded) is type(x)
        assert (loaded.stride(), loaded.requires_grad) == (x.stride(), x.requires_grad)
        if how is not copy.deepcopy:  # it resolves the bit, on the CPU too
            assert loaded.is_conj() == x.is_conj()
        assert torch.equal(loaded.detach().cpu(), x.detach().cpu())


def tied() -> nn.Sequential:
    model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)).to(DEVICE)
    model[1].weight = model[0].weight
    return model


@pytest.mark.parametrize("how", ["deepcopy", "pickle", "save"])
def test_tied_weights_stay_tied(how: str) -> None:
    def through_file(model: nn.Module) -> nn.Module:
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        return torch.load(file, weights_only=False)

    again = {"deepcopy": copy.deepcopy, "pickle": lambda m: pickle.loads(pickle.dumps(m)), "save": through_file}[how]
    model = tied()
    other = again(model)
    assert other[0].weight is other[1].weight and other[0].weight.device == THERE
    with torch.no_grad():
        other[0].weight.fill_(2)
    assert other[1].weight.sum().item() == 30
    assert model[0].weight.sum().item() != 30


def test_copy_shares_and_deepcopy_does_not() -> None:
    x = torch.ones(3, device=DEVICE)
    shallow, deep = copy.copy(x), copy.deepcopy(x)
    x += 1
    assert shallow.data_ptr() == x.data_ptr() != deep.data_ptr()
    assert (shallow.tolist(), deep.tolist()) == ([2] * 3, [1] * 3)


def test_deepcopy_keeps_gradients_and_views_of_one_storage() -> None:
    weight = torch.ones(2, 2, device=DEVICE, requires_grad=True)
    (weight * 3).sum().backward()
    assert copy.deepcopy(weight).grad.tolist() == [[3, 3], [3, 3]]
    base = torch.zeros(2, 3, device=DEVICE)
    whole, row = copy.deepcopy((base, base[1]))
    whole += 1
    assert row.tolist() == [1, 1, 1]


def test_safetensors_writes_and_reads_on_the_device_by_its_name(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors")
    from safetensors.torch import load_file, load_model, save_file, save_model

    file = tmp_path / "x.safetensors"
    tensors = {"float": torch.randn(2, 3), "half": torch.randn(4).bfloat16(), "number": torch.tensor([3])}
    save_file({k: v.to(DEVICE) for k, v in tensors.items()}, file)
    for spelling, expected in ((DEVICE, THERE), (f"{DEVICE}:0", THERE), (0, THERE), ("cpu", HERE)):
        loaded = load_file(file, device=spelling)
        for key, value in tensors.items():
            assert loaded[key].device == expected
            assert torch.equal(loaded[key].cpu(), value)
    with safetensors.safe_open(file, "pt", device=DEVICE) as opened:
        assert opened.get_slice("float")[:, 1:].device == THERE
        assert torch.equal(opened.get_slice("float")[:, 1:].cpu(), tensors["float"][:, 1:])
    model, other = tied(), tied()
    save_model(model, str(file))
    load_model(other, str(file), device=DEVICE)
    assert torch.equal(model[1].weight.cpu(), other[1].weight.cpu())


def test_safetensors_is_told_of_the_device_whichever_is_imported_first() -> None:
    pytest.importorskip("safetensors")
    from ..process import output

    program = f"""
    {{}}
    from safetensors.torch import load_file, save_file
    import tempfile, os
    with tempfile.TemporaryDirectory() as d:
        save_file({{{{"x": torch.ones(2, device="{DEVICE}")}}}}, d + "/x")
        print(load_file(d + "/x", device="{DEVICE}")["x"].device)
    """
    for imports in ("import torch", "import safetensors.torch, torch", "import safetensors, torch"):
        assert output(program.format(imports)).split() == [f"{DEVICE}:0"]


class Training:
    """A model with dropout under a scheduler and a gradient scaler: all the state that a step depends on."""

    def __init__(self) -> None:
        torch.manual_seed(7)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 4))
        self.model.to(DEVICE)
        self.optimizer = optim.AdamW(self.model.parameters(), lr=1e-2)
        self.scheduler = optim.lr_scheduler.OneCycleLR(self.optimizer, max_lr=0.1, total_steps=12)
        self.scaler = torch.amp.GradScaler(DEVICE, init_scale=2.0**8, growth_interval=2)

    def step(self) -> float:
        x, y = torch.randn(32, 8, device=DEVICE), torch.randint(4, (32,), device=DEVICE)
        self.optimizer.zero_grad()
        with torch.autocast(DEVICE, torch.float16):
            loss = functional.cross_entropy(self.model(x), y)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()
        return loss.item()

    def state(self) -> dict[str, Any]:
        parts = {k: getattr(self, k).state_dict() for k in ("model", "optimizer", "scheduler", "scaler")}
        return parts | {"random": module.get_rng_state(), "cpu random": torch.get_rng_state()}

    def resume(self, state: dict[str, Any]) -> None:
        for k in ("model", "optimizer", "scheduler", "scaler"):
            getattr(self, k).load_state_dict(state[k])
        module.set_rng_state(state["random"].cpu())
        torch.set_rng_state(state["cpu random"].cpu())


@pytest.mark.parametrize(("mode", "location"), [("strict", None), ("strict", "cpu"), ("fused", DEVICE)])
def test_training_resumed_from_a_file_gives_the_same_losses(mode: str, location: str | None) -> None:
    """Bit for bit in strict mode; fused, the first step of a process may be another program than the later ones."""
    near = {"rtol": 0.0, "atol": 0.0} if mode == "strict" else {"rtol": 1e-3, "atol": 1e-3}
    with module.eager_mode(mode):
        training = Training()
        for _ in range(3):
            training.step()
        file = io.BytesIO()
        torch.save(training.state(), file)
        expected = [training.step() for _ in range(4)]
        file.seek(0)
        other = Training()
        other.step()
        other.resume(torch.load(file, map_location=location, weights_only=True))
        torch.testing.assert_close(torch.tensor([other.step() for _ in range(4)]), torch.tensor(expected), **near)
        for ours, theirs in zip(other.model.parameters(), training.model.parameters(), strict=True):
            torch.testing.assert_close(ours.cpu(), theirs.cpu(), **near)


def test_a_checkpoint_of_the_device_goes_on_on_the_cpu_and_back() -> None:
    there = optim.Adam([nn.Parameter(torch.ones(3, device=DEVICE))], lr=0.1)
    there.param_groups[0]["params"][0].grad = torch.ones(3, device=DEVICE)
    there.step()
    file = io.BytesIO()
    torch.save(there.state_dict(), file)
    file.seek(0)
    here = optim.Adam([nn.Parameter(torch.ones(3))], lr=0.5)
    here.load_state_dict(torch.load(file, map_location="cpu"))
    assert here.param_groups[0]["lr"] == 0.1
    state = here.state[here.param_groups[0]["params"][0]]
    torch.testing.assert_close(state["exp_avg"], torch.full((3,), 0.1))
    there.load_state_dict(here.state_dict())
    moved = there.state[there.param_groups[0]["params"][0]]
    assert moved["exp_avg"].device == THERE
    torch.testing.assert_close(moved["exp_avg"].cpu(), torch.full((3,), 0.1))


def test_generators_can_be_pickled_and_go_on() -> None:
    generator = torch.Generator(DEVICE).manual_seed(3)
    torch.rand(5, generator=generator, device=DEVICE)
    other = pickle.loads(pickle.dumps(generator))
    assert other.device.type == DEVICE
    a, b = (torch.rand(5, generator=g, device=DEVICE).tolist() for g in (generator, other))
    assert a == b
