"""Buildings of a cluster's file: what they mean as levels, and what is told when they are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from cost_models.communication.topology import levels_of
from cost_models.errors import InputError
from cost_models.files.loading import resolve_cluster
from cost_models.specs.cluster import ClusterSpec

PLAIN = """kind: cluster
name: mine
gpu: h100-sxm
gpus_per_node: 8
nodes: {nodes}
links:
  intra_node: {{kind: nvswitch, bandwidth: 450 GB/s, latency: 3 us}}
  inter_node: {{kind: roce, bandwidth: 400 Gb/s, latency: 6 us}}
"""
BUILDINGS = "buildings:\n  nodes: {each}\n  link: {{kind: ethernet, bandwidth: {link}, latency: 60 us}}\n"
LEVELS = """kind: cluster
name: mine
gpu: h100-sxm
gpus_per_node: 8
nodes: 64
links:
  - {name: node, nodes: 1, kind: nvswitch, bandwidth: 450 GB/s, latency: 3 us}
  - {name: building, nodes: 32, kind: roce, bandwidth: 400 Gb/s, latency: 6 us}
  - {name: campus, kind: ethernet, bandwidth: 25 Gb/s, latency: 60 us}
"""


def read(tmp_path: Path, text: str, gpus: int | None = None) -> ClusterSpec:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    found = resolve_cluster(str(file), gpus)
    assert isinstance(found, ClusterSpec)
    return found


def written(nodes: int = 64, each: int = 32, link: str = "25 Gb/s", more: str = "") -> str:
    return PLAIN.format(nodes=nodes) + more + BUILDINGS.format(each=each, link=link)


def test_buildings_are_a_level_more(tmp_path: Path) -> None:
    assert levels_of(read(tmp_path, written())) == levels_of(read(tmp_path, LEVELS))


def test_a_job_inside_one_building_has_no_link_between_them(tmp_path: Path) -> None:
    inside = levels_of(read(tmp_path, written(), gpus=128))[-2]
    assert inside.gpus == 256
    assert inside.bandwidth == 50e9


def test_leaves_and_spine_stand_inside_a_building(tmp_path: Path) -> None:
    found = levels_of(read(tmp_path, written(more="oversubscription: 2.0\nnodes_per_leaf: 4\n")))
    assert [(one.name, one.gpus) for one in found] == [
        ("node", 8),
        ("leaf", 32),
        ("building", 256),
        ("campus", None),
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (written(nodes=65), "65 nodes are no whole number of buildings of 32; 64 or 96 would be"),
        (written(link="0 Gb/s"), "buildings.link.bandwidth: `0 Gb/s` must be above zero"),
        (written(link="800 Gb/s"), "more bandwidth a GPU, 100 GB/s, than the network of a building, 50 GB/s"),
        (written(each=0), "buildings.nodes: must be above zero"),
        (written(each=-4), "buildings.nodes: must be above zero"),
        (
            written(more="oversubscription: 2.0\nnodes_per_leaf: 3\n"),
            "3 does not divide a building of 32 nodes",
        ),
        (LEVELS + BUILDINGS.format(each=32, link="25 Gb/s"), "a list of levels has a level for them"),
    ],
)
def test_what_is_wrong_is_told(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(InputError) as raised:
        read(tmp_path, text)
    assert told in str(raised.value) + "".join(map(str, raised.value.problems))


def test_sizes_fill_their_buildings(tmp_path: Path) -> None:
    assert read(tmp_path, written(), gpus=512).nodes == 64
    with pytest.raises(InputError, match="leave a building half full"):
        read(tmp_path, written(), gpus=384)
