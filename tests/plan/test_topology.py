"""Names of topologies."""

from __future__ import annotations

import pytest

from torch_pjrt.plan.topology import CHIPS, TopologyError, grids, parse_topology


@pytest.mark.parametrize(
    ("name", "shape", "chips", "devices", "memory"),
    [
        ("v5e", (1, 1), 1, 1, 16),
        ("v5e:4x4", (4, 4), 16, 16, 16),
        ("V6E:16", (4, 4), 16, 16, 32),
        ("v5p:2x2x1", (2, 2, 1), 4, 4, 95),
        ("tpu7x:4x4x4", (4, 4, 4), 64, 128, 96),
        ("tpu7x:16x16x16", (16, 16, 16), 4096, 8192, 96),
    ],
)
def test_a_name_is_a_chip_and_a_grid(name: str, shape: tuple[int, ...], chips: int, devices: int, memory: int) -> None:
    found = parse_topology(name)
    assert (found.shape, found.chips, found.devices, found.memory_of_device >> 30) == (shape, chips, devices, memory)


@pytest.mark.parametrize("name", ["v9", "v5e:3x5", "v5e:2x2x2", "v5e:x", "v5e:32x32", "v6e:17", "", "tpu7x:4x4"])
def test_an_unknown_topology_lists_the_known_ones(name: str) -> None:
    with pytest.raises(TopologyError, match=r"Known: v5e:\{1x1, 2x2.*v5p:.*v6e:.*tpu7x:"):
        parse_topology(name)


def test_a_mistyped_chip_is_told_the_nearest() -> None:
    with pytest.raises(TopologyError, match="did you mean tpu7x"):
        parse_topology("tpu7:2x2x1")


def test_one_host_or_less_has_the_hosts_chips() -> None:
    assert parse_topology("v5e:1").host == (1, 1)
    assert parse_topology("tpu7x:4x4x4").host == (2, 2, 1)


def test_larger_grids_are_the_most_cubic_of_their_size() -> None:
    assert [t.shape for t in parse_topology("v5e:4x4").larger()[:2]] == [(4, 8), (8, 8)]
    assert all(g in grids(CHIPS["tpu7x"]) for g in [(2, 2, 1), (4, 4, 4), (16, 16, 16)])
