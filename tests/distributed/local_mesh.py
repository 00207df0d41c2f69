"""DTensors over four devices of one process are what they are on the CPU. `test_local_mesh.py` runs this with four."""

from __future__ import annotations

import copy
import itertools
import pickle
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.tensor as dtensors
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_module, distribute_tensor

from torch_pjrt import _C

from ..process import output
from .spread import parts, whole

NAME = torch._C._get_privateuse1_backend_name()
DEVICE = getattr(torch, NAME)
PLACEMENTS: list[Placement] = [Replicate(), Shard(0), Shard(1)]


def test_tensors_lie_as_their_placements_say(mesh: DeviceMesh) -> None:
    x = torch.randn(8, 12)
    wanted = {Replicate(): (8, 12), Shard(0): (2, 12), Shard(1): (8, 3)}
    for placement, part in wanted.items():
        d = distribute_tensor(x, mesh, [placement])
        assert parts(d) == {part}
        assert torch.equal(whole(d), x)
        for target, moved in wanted.items():
            r = d.redistribute(mesh, [target])
            assert r.placements == (target,)
            assert parts(r) == {moved}
            assert torch.equal(whole(r), x)


def test_a_dimension_that_does_not_divide_lies_whole(mesh: DeviceMesh) -> None:
    x = torch.randn(5, 3)
    d = distribute_tensor(x, mesh, [Shard(0)])
    assert parts(d) == {(5, 3)}
    torch.testing.assert_close(whole(d.exp().sum(0)), x.exp().sum(0))
    assert distribute_tensor(torch.randn(0, 4), mesh, [Shard(0)]).sum().item() == 0
    assert distribute_tensor(torch.tensor(3.0), mesh, [Replicate()]).item() == 3


def test_ops_of_every_pair_of_placements_are_the_cpus(mesh: DeviceMesh) -> None:
    x, y = torch.randn(8, 8), torch.randn(8, 8)
    ops: list[Callable[[Any, Any], Tensor]] = [
        torch.mm,
        lambda a, b: a + b.t(),
        lambda a, b: torch.cat([a, b], 1).cumsum(1),
        lambda a, b: nn.functional.layer_norm(a * b, (8,)).softmax(0),
        lambda a, b: torch.where(a > b, a, b).view(4, 16).amax(1),
        lambda a, b: torch.nn.functional.embedding(a.argsort(0), b),
    ]
    for p, q in itertools.product(PLACEMENTS, PLACEMENTS):
        a, b = distribute_tensor(x, mesh, [p]), distribute_tensor(y, mesh, [q])
        for op in ops:
            torch.testing.assert_close(whole(op(a, b)), op(x, y), rtol=1e-5, atol=1e-5)


def test_the_program_is_spread_and_not_repeated(mesh: DeviceMesh) -> None:
    # Each device multiplies its own rows: a quarter of the whole product's work.
    from torch_pjrt.runtime.spread import Spread

    made: list[Spread] = []
    called = Spread.__call__

    def note(self: Spread, *arguments: Any) -> Any:
        made.append(self)
        return called(self, *arguments)

    x = distribute_tensor(torch.randn(64, 64), mesh, [Shard(0)])
    w = distribute_tensor(torch.randn(64, 64), mesh, [Replicate()])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Spread, "__call__", note)
        y = x @ w
        assert parts(y) == {(16, 64)}
    assert made[-1].cost_analysis()["flops"] == pytest.approx(2 * 64**3 / 4, rel=0.1)


def test_tensors_made_there_are_those_that_a_single_device_makes(mesh: DeviceMesh) -> None:
    torch.manual_seed(3)
    single = [torch.randn(8, 4, device=f"{NAME}:0"), torch.nn.functional.dropout(torch.ones(8, 4, device=f"{NAME}:0"))]
    torch.manual_seed(3)
    drawn = dtensors.randn(8, 4, device_mesh=mesh, placements=[Shard(0)])
    dropped = nn.functional.dropout(dtensors.ones(8, 4, device_mesh=mesh, placements=[Shard(0)]))
    assert parts(drawn) == {(2, 4)}
    assert [whole(drawn).tolist(), whole(dropped).tolist()] == [s.cpu().tolist() for s in single]
    assert parts(dtensors.zeros(8, 4, device_mesh=mesh, placements=[Shard(1)])) == {(8, 1)}


def test_local_tensors_are_whole_and_go_back(mesh: DeviceMesh) -> None:
    x = torch.randn(8, 4, requires_grad=True)
    d = DTensor.from_local(x, mesh, [Shard(0)], run_check=False)
    assert d.shape == (8, 4)
    assert d.to_local().shape == (8, 4)
    (d * 2).to_local().sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.full((8, 4), 2.0))


def test_values_are_read_printed_copied_and_saved(mesh: DeviceMesh, tmp_path: Path) -> None:
    x = torch.arange(16.0).view(4, 4)
    d = distribute_tensor(x, mesh, [Shard(0)])
    assert "DTensor" in repr(d)
    assert d.sum().item() == 120
    assert torch.equal(whole(copy.deepcopy(d)), x)
    torch.save({"d": d, "local": d.to_local()}, tmp_path / "d.pt")
    loaded = torch.load(tmp_path / "d.pt", weights_only=False)
    assert torch.equal(whole(loaded["d"]), x)
    assert loaded["local"].device == d.device
    assert torch.load(tmp_path / "d.pt", weights_only=False, map_location="cpu")["local"].device.type == "cpu"
    plain = torch.ones(4, device=mesh.device_type)
    assert (plain + 1).tolist() == [2, 2, 2, 2]
    assert plain.to(f"{NAME}:0").device.index == 0
    assert DEVICE.memory_allocated(mesh.device_type) > 0
    assert DEVICE.device_count() == 4


def test_dtensors_of_one_parameter_share_its_memory(mesh: DeviceMesh) -> None:
    for x in (torch.zeros(4, 4), torch.zeros(4, 4, device=mesh.device_type)):  # with an array, and with none yet
        p = nn.Parameter(distribute_tensor(x, mesh, [Shard(0)]))
        for number, same in enumerate((p.data, p.detach(), DTensor.from_local(p.data.to_local(), mesh, [Shard(0)])), 1):
            same.to_local().fill_(number)
            assert whole(p).eq(number).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.complex128, torch.bool, torch.bfloat16])
def test_dtypes_stay_what_they_are(mesh: DeviceMesh, dtype: torch.dtype) -> None:
    x = (torch.arange(8) + 2**40).view(4, 2).to(dtype)
    d = distribute_tensor(x, mesh, [Shard(0)])
    assert torch.equal(whole(d), x)
    assert torch.equal(d.to_local().to(f"{NAME}:1").to(mesh.device_type).cpu(), x)


def test_programs_without_arguments_run_on_the_meshs_devices(mesh: DeviceMesh) -> None:
    some = DeviceMesh(NAME, [2, 3])
    made = torch.zeros(4, device=some.device_type) + torch.arange(4, device=some.device_type)
    assert {d.id for d in _C.array(made).sharding.device_set} == {2, 3}
    assert (made + torch.ones(4, device=some.device_type)).tolist() == [1, 2, 3, 4]


def test_fsdp_over_one_process_is_refused(mesh: DeviceMesh) -> None:
    from torch.distributed.fsdp import fully_shard

    with pytest.raises(ValueError, match=r"fully_shard .* splits the batch between processes"):
        fully_shard(nn.Linear(4, 4), mesh=mesh)


def test_what_is_compiled_is_dumped(mesh: DeviceMesh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_PJRT_DUMP", str(tmp_path))
    torch._dynamo.reset()
    double = torch.compile(lambda t: (t @ t) * 2, backend="pjrt")
    assert whole(double(distribute_tensor(torch.eye(8), mesh, [Shard(0)]))).sum() == 16
    written = [file.read_text() for file in tmp_path.glob("graph_*.1.hlo.txt")]
    assert any("num_partitions=4" in text for text in written)


def test_compiled_graphs_keep_64_bits(mesh: DeviceMesh) -> None:
    torch._dynamo.reset()
    x = torch.tensor([100000, 200000, 300000, 2], dtype=torch.int32)
    cases: list[Callable[[Any], Tensor]] = [
        lambda t: t.to(torch.int64) * 100000,
        lambda t: (t.double() + 1e-12) - t,
        lambda t: t.argmax(0) + 2**40,
    ]
    for case in cases:
        compiled = torch.compile(case, backend="pjrt")
        assert torch.equal(compiled(x.to(mesh.device_type)).cpu(), case(x))
        assert torch.equal(compiled(x.to(mesh.device_type).long()).cpu(), case(x.long()))


def test_copies_between_a_mesh_and_devices_are_copies(mesh: DeviceMesh) -> None:
    places = [f"{NAME}:0", mesh.device_type, DeviceMesh(NAME, [0, 1]).device_type]
    for here, there, first in itertools.product(places, places, (True, False)):
        x = torch.arange(8.0, device=here) + 0
        assert x.sum().item() == 28
        y = x.to(there)
        written, other = (x, y) if first else (y, x)
        written.add_(1)
        assert written.sum().item() == 36
        assert other.sum().item() == (36 if here == there else 28)


def test_compiled_graphs_write_to_dtensors_and_what_they_are_made_of(mesh: DeviceMesh) -> None:
    torch._dynamo.reset()

    def write(d: DTensor) -> Tensor:
        return d.mul_(2) + 1

    d = distribute_tensor(torch.ones(8, 2), mesh, [Shard(0)])
    assert whole(torch.compile(write, backend="pjrt")(d)).eq(3).all()
    assert whole(d).eq(2).all()

    def write_local(x: Tensor) -> Tensor:
        DTensor.from_local(x, mesh, [Shard(0)], run_check=False).mul_(2)
        return x + 1

    x = torch.ones(8, 2, device=mesh.device_type)
    assert torch.compile(write_local, backend="pjrt")(x).eq(3).all()
    assert x.eq(2).all()
    net = distribute_module(nn.BatchNorm1d(2), mesh)
    alone = nn.BatchNorm1d(2)
    inputs = torch.randn(8, 2)
    got = torch.compile(net, backend="pjrt")(distribute_tensor(inputs, mesh, [Shard(0)]))
    torch.testing.assert_close(whole(got), alone(inputs).detach())
    torch.testing.assert_close(whole(net.running_mean), alone.running_mean)


def test_a_mode_that_watches_changes_no_aliases(mesh: DeviceMesh) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    x = torch.zeros(8, device=mesh.device_type)
    with FlopCounterMode(display=False):
        DTensor.from_local(x, mesh, [Shard(0)], run_check=False).add_(1)
    assert x.eq(1).all()
    p = nn.Parameter(torch.zeros(8, device=mesh.device_type))
    DTensor.from_local(p.data, mesh, [Shard(0)], run_check=False).to_local().fill_(1)
    assert p.eq(1).all()


def test_moving_a_dtensor_leaves_it_where_it_was(mesh: DeviceMesh) -> None:
    for make in (lambda: torch.randn(8, 4), lambda: torch.randn(8, 4, device=mesh.device_type) + 1):
        d = distribute_tensor(make(), mesh, [Shard(0)])
        moved = d.redistribute(mesh, [Replicate()])
        assert (parts(moved), parts(d)) == ({(8, 4)}, {(2, 4)})


def test_a_fork_of_the_generator_keeps_what_is_drawn_there(mesh: DeviceMesh) -> None:
    torch.manual_seed(0)
    expected = torch.randn(2, device=NAME).tolist()
    torch.manual_seed(0)
    with torch.random.fork_rng(device_type=NAME):
        torch.randn(2, device=NAME)
    assert torch.randn(2, device=NAME).tolist() == expected
    assert len(DEVICE.get_rng_state_all()) == 4


def test_meshes_of_the_same_devices_work_together(mesh: DeviceMesh, plane: DeviceMesh) -> None:
    assert mesh.device_type == plane.device_type
    x = torch.randn(8, 8)
    a, b = distribute_tensor(x, mesh, [Shard(0)]), distribute_tensor(x, plane, [Shard(0), Shard(1)])
    torch.testing.assert_close((a.to_local() @ b.to_local()).cpu(), x @ x)


def test_a_mesh_is_found_again_where_its_pickle_is_read(mesh: DeviceMesh) -> None:
    swapped = DeviceMesh(NAME, [1, 0])
    read = pickle.loads(pickle.dumps(swapped))
    assert read == swapped
    state = swapped.__getstate__() | {"_device_type": f"{NAME}:9"}  # as another process may have numbered it
    elsewhere = DeviceMesh.__new__(DeviceMesh)
    elsewhere.__setstate__(state)
    assert elsewhere.device_type == swapped.device_type
    assert distribute_tensor(torch.ones(4), read, [Shard(0)]).sum().item() == 4


def test_a_part_of_a_mesh_is_copied_and_pickled(plane: DeviceMesh) -> None:
    d = distribute_tensor(torch.arange(16.0).view(4, 4), plane["tp"], [Shard(1)])
    for same in (copy.deepcopy(d), pickle.loads(pickle.dumps(d))):
        assert same.device_mesh == plane["tp"]
        assert torch.equal(whole(same * 2), torch.arange(0.0, 32, 2).view(4, 4))


def test_ctrl_c_is_heard_while_a_meshs_program_compiles(mesh: DeviceMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch_pjrt.runtime import executable

    compile = executable._compile

    def slowly(*arguments: Any) -> Any:
        time.sleep(3)
        return compile(*arguments)

    x = torch.arange(5.0, device=mesh.device_type) + 0
    x.sum().item()
    monkeypatch.setattr(executable, "_compile", slowly)
    for run in (lambda: x.sinh_().sum().item(), lambda: torch.compile(lambda t: t.cosh(), backend="pjrt")(x).tolist()):
        threading.Timer(0.5, signal.pthread_kill, [threading.main_thread().ident, signal.SIGINT]).start()
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            run()
        assert time.monotonic() - began < 2.5
    monkeypatch.undo()
    torch.testing.assert_close(x.cpu(), torch.arange(5.0).sinh())


def test_an_index_out_of_range_is_an_error_there_too(mesh: DeviceMesh) -> None:
    table = distribute_tensor(torch.randn(8, 4), mesh, [Shard(1)])
    rows = distribute_tensor(torch.tensor([1, 9]), mesh, [Replicate()])
    found = nn.functional.embedding(rows, table).to_local()
    _C.flush(found.device.index)
    DTensor.from_local(found, mesh, [Shard(1)], run_check=False)  # moves what is not yet known to be wrong
    for _ in range(2):
        with pytest.raises(IndexError, match="index 9"):
            found.cpu()


def test_meshes_that_cannot_be_are_refused(mesh: DeviceMesh) -> None:
    before = _C.mesh_count()
    with pytest.raises(ValueError, match=r"a mesh of 8 devices, .*: this process has 4"):
        init_device_mesh(NAME, (8,))
    with pytest.raises(ValueError, match=r"each can be there once"):
        DeviceMesh(NAME, [0, 0])
    with pytest.raises(ValueError, match=r"mesh_dim_names .*: the mesh has 1 dimension"):
        DeviceMesh(NAME, [0, 1], mesh_dim_names=("a", "b"))
    assert _C.mesh_count() == before
    with pytest.raises(ValueError, match=r"this process has 4"):
        DeviceMesh(NAME, [3, 4])
    assert init_device_mesh(NAME, (4,), mesh_dim_names=("tp",)) == mesh
    assert parts(distribute_tensor(torch.ones(4, 4), DeviceMesh(NAME, [3, 2, 1, 0]), [Shard(0)])) == {(1, 4)}


def test_a_group_of_the_programs_own_may_be_there_before() -> None:
    done = output(
        """
        import torch, torch.distributed as dist
        from torch.distributed.tensor import Shard, distribute_tensor
        dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
        mesh = dist.init_device_mesh("pjrt", (2, 2), mesh_dim_names=("dp", "tp"))
        d = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0), Shard(1)])
        print((d @ d).sum().item(), torch.random.get_rng_state().numel() > 0)
        alone = dist.DeviceMesh("pjrt", [0])
        print(alone.device_type)
        """,
        JAX_NUM_CPU_DEVICES="4",
        TORCH_PJRT_DEVICE_NAME="pjrt",
    )
    assert done.split() == ["64.0", "True", "pjrt"]
