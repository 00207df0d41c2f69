"""Models over four devices of one process are trained as on the CPU. `test_local_mesh.py` runs this with four."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as checkpoint
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from .spread import parts, whole

NAME = torch._C._get_privateuse1_backend_name()
DEVICE = getattr(torch, NAME)


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))


def batch(step: int) -> tuple[Tensor, Tensor]:
    drawn = torch.Generator().manual_seed(step)
    return torch.randn(8, 8, generator=drawn), torch.randn(8, 8, generator=drawn)


def train(net: nn.Module, bring: Callable[[Tensor], Tensor], steps: int = 3) -> list[float]:
    """The losses of a few steps, with all that a training loop does to gradients."""
    optimizer = torch.optim.AdamW(net.parameters(), 0.01)
    losses = []
    for step in range(steps):
        x, y = map(bring, batch(step))
        loss = nn.functional.mse_loss(net(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(whole(loss)))
    return losses


def hold(net: nn.Module, losses: list[float], alone: nn.Module) -> None:
    torch.testing.assert_close(losses, train(alone, lambda t: t), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close([whole(p) for p in net.parameters()], list(alone.parameters()), rtol=1e-3, atol=1e-4)


def test_a_model_is_trained_tensor_parallel(mesh: DeviceMesh) -> None:
    net = mlp().to(mesh.device_type)
    parallelize_module(net, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    assert [parts(p) for p in net.parameters()] == [{(4, 8)}, {(4,)}, {(8, 4)}, {(8,)}]
    losses = train(net, lambda t: t.to(mesh.device_type))
    assert [parts(p) for p in net.parameters()] == [{(4, 8)}, {(4,)}, {(8, 4)}, {(8,)}]
    hold(net, losses, mlp())


def test_a_model_that_never_names_the_mesh_is_trained_tensor_parallel(mesh: DeviceMesh) -> None:
    DEVICE.set_device(mesh.device_type)  # as making the mesh does
    net = parallelize_module(mlp(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    losses = train(net, lambda t: t.to(NAME))
    hold(net, losses, mlp())


def test_a_model_is_trained_sequence_parallel_with_a_parallel_loss(mesh: DeviceMesh) -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.norm, self.up, self.down, self.head = (
                nn.LayerNorm(8),
                nn.Linear(8, 16),
                nn.Linear(16, 8),
                nn.Linear(8, 12),
            )

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.down(torch.relu(self.up(self.norm(x)))) + x)

    plan = {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1)),
        "head": ColwiseParallel(input_layouts=Shard(1), use_local_output=False),
    }
    net, alone = Block().to(mesh.device_type), Block()
    parallelize_module(net, mesh, plan)
    x, target = torch.randn(2, 8, 8), torch.randint(12, (2, 8))
    expected = nn.functional.cross_entropy(alone(x).flatten(0, 1), target.flatten())
    expected.backward()
    with loss_parallel():
        out = net(x.to(mesh.device_type)).flatten(0, 1)
        loss = nn.functional.cross_entropy(out, target.to(mesh.device_type).flatten())
        loss.backward()
    torch.testing.assert_close(whole(loss), expected.detach())
    for p, q in zip(net.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(whole(p.grad), q.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_model_is_trained_data_parallel(mesh: DeviceMesh, compiled: bool) -> None:
    torch._dynamo.reset()
    net = distribute_module(mlp(), mesh)
    step = torch.compile(net, backend="pjrt") if compiled else net
    losses = train(step, lambda t: distribute_tensor(t, mesh, [Shard(0)]))
    hold(net, losses, mlp())


def test_a_mesh_made_twice_is_one_mesh_to_a_compiled_graph(mesh: DeviceMesh) -> None:
    torch._dynamo.reset()
    for again in (mesh, init_device_mesh(NAME, (4,), mesh_dim_names=("tp",))):
        net = distribute_module(mlp(), again)
        losses = train(torch.compile(net, backend="pjrt"), lambda t: distribute_tensor(t, again, [Shard(0)]))  # noqa: B023
        hold(net, losses, mlp())


def test_a_model_is_split_over_two_dimensions(plane: DeviceMesh) -> None:
    assert plane["tp"].device_type == plane.device_type

    def split(name: str, module: nn.Module, mesh: DeviceMesh) -> None:
        for key, p in module.named_parameters(recurse=False):
            placements = [Replicate(), Shard(0)] if p.ndim == 2 else [Replicate(), Replicate()]
            setattr(module, key, nn.Parameter(distribute_tensor(p, mesh, placements)))

    net = distribute_module(mlp(), plane, split)
    assert parts(net[0].weight) == {(8, 8)}
    losses = train(net, lambda t: distribute_tensor(t, plane, [Shard(0), Replicate()]))
    hold(net, losses, mlp())
    both = distribute_tensor(torch.randn(8, 8), plane, [Shard(0), Shard(0)])
    assert parts(both) == {(2, 8)}
    assert parts(distribute_tensor(torch.randn(8, 8), plane["tp"], [Shard(1)])) == {(8, 4)}
    assert parts(distribute_tensor(torch.randn(8, 8), plane["dp", "tp"]._flatten(), [Shard(1)])) == {(8, 2)}


def test_optimizers_keep_their_state_where_the_parameters_are(mesh: DeviceMesh) -> None:
    p = nn.Parameter(distribute_tensor(torch.randn(16, 8), mesh, [Shard(0)]))
    optimizer = torch.optim.AdamW([p], 0.1)
    for _ in range(2):
        (p * p).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert parts(p) == {(4, 8)}
    assert parts(optimizer.state[p]["exp_avg"]) == {(4, 8)}
    assert parts(optimizer.state[p]["exp_avg_sq"]) == {(4, 8)}


def test_checkpoints_are_written_and_read(mesh: DeviceMesh, tmp_path: Path) -> None:
    net, other = (parallelize_module(mlp(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()}) for _ in range(2))
    with torch.no_grad():
        for p in other.parameters():
            p.zero_()
    checkpoint.save({"net": net.state_dict()}, checkpoint_id=tmp_path)
    checkpoint.load({"net": other.state_dict()}, checkpoint_id=tmp_path)
    for p, q in zip(net.parameters(), other.parameters(), strict=True):
        assert torch.equal(whole(p), whole(q))
