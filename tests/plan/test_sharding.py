"""Meshes, and how arrays are split over them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from torch_pjrt.lowering.view import Layout
from torch_pjrt.plan.sharding import Mesh, MeshError, layouts, owned, parse_mesh
from torch_pjrt.plan.tape import Storage

from .check import Layers, tape_of, training


def parameter(*sizes: int, placements: tuple[tuple[str, int], ...] = ()) -> Storage:
    strides = [1] * len(sizes)
    for d in range(len(sizes) - 2, -1, -1):
        strides[d] = strides[d + 1] * sizes[d + 1]
    return Storage(Layout(torch.float32, sizes, tuple(strides)), "parameter", "w", "cpu", placements)


@pytest.mark.parametrize(
    ("text", "devices", "axes"),
    [
        (None, 8, (("fsdp", 8),)),
        ("fsdp=8", 8, (("fsdp", 8),)),
        ("dp=2,fsdp", 8, (("dp", 2), ("fsdp", 4))),
        ("fsdp=-1, tp=2", 8, (("fsdp", 4), ("tp", 2))),
    ],
)
def test_a_mesh_takes_all_devices(text: str | None, devices: int, axes: tuple[tuple[str, int], ...]) -> None:
    assert parse_mesh(text, devices).axes == axes


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("fsdp=3", "3 = 3 devices, the topology has 8"),
        ("fsdp=4,tp=4", "4 × 4 = 16 devices, the topology has 8"),
        ("fsdp,tp=3", "3, which does not divide 8 devices.*8 = 3 × 2 \\+ 2"),
        ("fsdp,dp", "fsdp and dp are both open"),
        ("fsdp=4,fsdp=2", "named twice"),
        ("4x2", "'4x2' is no axis"),
        ("fsdp=0", "'fsdp=0' is no axis"),
        ("", None),
    ],
)
def test_a_mesh_that_does_not_divide_says_by_what(text: str, words: str | None) -> None:
    if words is None:
        assert parse_mesh(text, 8).axes == (("fsdp", 8),)
        return
    with pytest.raises(MeshError, match=words):
        parse_mesh(text, 8)


@pytest.mark.parametrize(
    ("sizes", "split"),
    [
        ((8, 12), (("fsdp",), ())),
        ((6, 12), ((), ("fsdp",))),
        ((6, 8, 12), ((), (), ("fsdp",))),
        ((6, 10), ((), ())),
        ((), ()),
    ],
)
def test_fsdp_splits_dimension_0_else_the_largest_that_divides(
    sizes: tuple[int, ...], split: tuple[tuple[str, ...], ...]
) -> None:
    assert owned(parameter(*sizes), Mesh((("dp", 2), ("fsdp", 4)))) == split


def test_placements_come_first_and_fsdp_divides_what_they_leave() -> None:
    mesh = Mesh((("fsdp", 4), ("tp", 2)))
    assert owned(parameter(8, 12, placements=(("tp", 0),)), mesh) == (("tp", "fsdp"), ())
    assert owned(parameter(4, 12, placements=(("tp", 0),)), mesh) == (("tp",), ("fsdp",))
    assert owned(parameter(4, 12, placements=(("pp", 0),)), mesh) == (("fsdp",), ())


def test_what_the_batch_is_is_seen_from_one_twice_as_large() -> None:
    step, inputs, _ = training(Layers(layers=1))
    one, two = tape_of(step, inputs), tape_of(step, [torch.cat([x, x]) for x in inputs])
    mesh = Mesh((("dp", 2), ("fsdp", 2)))
    found = layouts(one, two, mesh)
    by_name = {one.storages[n].name: split for n, split in found.inputs.items()}
    assert by_name["argument 0"] == by_name["argument 1"] == (("dp", "fsdp"), ())
    assert by_name["embed.weight"] == ((), ("fsdp",))  # (11, 8)
    assert by_name["blocks.0.up.weight (momentum_buffer)"] == (("fsdp",), ())
    assert {name for name, _ in found.whole} == {"head.bias"}  # (11,)
    embedding = next(i for i, o in enumerate(one.operations) if o.name == "aten::embedding")
    assert found.batch[embedding, 0] == 0
    assert [one.operations[i].name for i in found.summed] == ["aten::embedding_dense_backward"]
    assert not layouts(one, None, mesh).summed
    gradients = [i for i, o in enumerate(one.operations) if o.name == "aten::mm" and o.specs[0].shape == (16, 8)]
    assert gradients
    assert not any((i, 0) in found.batch for i in gradients)


def test_a_batch_that_does_not_divide_says_by_what() -> None:
    model = nn.Linear(8, 8)
    tape = tape_of(lambda x: model(x), [torch.ones(6, 8)])
    with pytest.raises(MeshError, match=r"is 6, which the mesh's data axes \(fsdp=4 = 4\) do not divide"):
        layouts(tape, None, Mesh((("fsdp", 4),)))
