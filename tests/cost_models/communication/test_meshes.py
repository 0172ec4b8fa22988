"""GPUs wired in a full mesh: some of a node have only the links to one another. AMD's, against RCCL's own tests."""

from __future__ import annotations

import pytest
from clusters import profile

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import parse_layout
from cost_models.communication.collectives import (
    all_reduce_seconds,
    all_to_all_seconds,
    point_to_point_seconds,
)
from cost_models.communication.topology import axis_groups, group_of
from cost_models.files import catalog
from cost_models.files.loading import resolve_cluster
from cost_models.specs.hardware import HardwareProfile

RCCL = {
    16777216: 148.8e-6,
    67108864: 429.1e-6,
    268435456: 1537.1e-6,
    1073741824: 5970.6e-6,
    8589934592: 47278e-6,
}
"""Bytes → seconds of `all_reduce_perf` on eight MI300X (Kolla et al. 2025, Understanding RCCL bandwidth, ROCm 6.3)."""


def as_tested() -> HardwareProfile:
    """What that test reaches of the links, before what training keeps of it."""
    known = catalog.load_profile("mi300x")
    return known.model_copy(update={"link_efficiency": 317 / 448})


def test_an_all_reduce_takes_what_rccl_tests_measured() -> None:
    group = group_of(resolve_cluster("mi300x", 8), 8)
    for size, measured in RCCL.items():
        assert all_reduce_seconds(size, group, as_tested())[0] == pytest.approx(measured, rel=0.06)


def test_two_gpus_have_one_link() -> None:
    """4 GiB between two MI300X: 47.7 GB/s where eight reach 312.9 (Bekman, ML Engineering, network benchmarks)."""
    node, size = resolve_cluster("mi300x", 8), 2.0**32
    two = size / all_reduce_seconds(size, group_of(node, 2), as_tested())[0]
    assert two == pytest.approx(47.7e9, rel=0.06)


def test_groups_within_a_node_share_its_links_by_their_size() -> None:
    """tp8 has all seven links of 64 GB/s, tp4 three, and a stage hands on over one; all of a node send at once."""
    node, links = resolve_cluster("mi300x", 16), profile(link_efficiency=1.0)
    assert axis_groups(
        node, LayoutColumns.of([parse_layout("tp8 dp2")])
    ).tp.ring_bandwidth() == pytest.approx(448e9)
    four = axis_groups(resolve_cluster("mi300x", 8), LayoutColumns.of([parse_layout("tp4 pp2")]))
    assert four.tp.ring_bandwidth() == pytest.approx(192e9)
    message = 64e9
    assert point_to_point_seconds(message, four.pp, links)[0] == pytest.approx(1.0, rel=1e-3)
    exchanged = all_to_all_seconds(8 * message, group_of(node, 8), links)[0]
    assert exchanged == pytest.approx(7 / 8 * message / 448e9, rel=1e-3)


def test_other_nodes_are_reached_over_the_network_as_before() -> None:
    many = resolve_cluster("mi300x", 64)
    assert group_of(many, 64).ring_bandwidth() == pytest.approx(8 * 50e9)
    assert group_of(many, 8, 8).ring_bandwidth() == pytest.approx(50e9)
