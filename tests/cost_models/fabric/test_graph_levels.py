"""Levels of graphs that are no plain pods: meshes, pairs, three tiers, dragonflies."""

from __future__ import annotations

from fabrics import cluster, inside

from cost_models.communication.topology import fabric_of
from cost_models.files.catalog import load_cluster

CUBE = [
    (0, 1, 1), (0, 2, 1), (0, 3, 2), (0, 4, 2), (1, 2, 2), (1, 3, 1), (1, 5, 2), (2, 3, 2),
    (2, 6, 1), (3, 7, 1), (4, 5, 1), (4, 6, 1), (4, 7, 2), (5, 6, 2), (5, 7, 1), (6, 7, 2),
]  # fmt: skip
"""The hybrid cube mesh of eight V100: pairs of GPUs and their NVLinks, six a GPU."""


def levels(lines: list[str]) -> list[tuple[str, tuple[int, ...], float]]:
    return [(level.name, level.sizes, level.bandwidth / 1e9) for level in fabric_of(cluster(lines)).levels]


def test_a_mesh_without_switches_has_all_links_of_a_gpu() -> None:
    assert levels([f"n0.gpu{a} -- n0.gpu{b} 25 GB/s x{count}" for a, b, count in CUBE]) == [
        ("node", (8,), 150)
    ]


def test_pairs_of_cards_are_what_the_catalogue_has() -> None:
    found = cluster([
        "b[0-1].gpu[0,2,4,6] -- b[0-1].gpu[1,3,5,7] 56.25 GB/s", "b[0-1].gpu[0-7] -- b[0-1].pcie 32 GB/s",
        "b[0-1].nic[0-1] -- b[0-1].pcie 32 GB/s", "b[0-1].nic[0-1] -- network 100 Gb/s ethernet",
    ])  # fmt: skip
    known = load_cluster("pcie-a40-pairs")
    assert [(one.bandwidth, one.gpus, one.sharers) for one in found.links.root] == [  # type: ignore[union-attr]
        (one.bandwidth, one.gpus, one.sharers)
        for one in known.links.root  # type: ignore[union-attr]
    ]


def test_three_tiers_of_a_fat_tree() -> None:
    """Pods of four leaves, whose spines have a quarter of their cables up to the core."""
    lines = inside(64)
    lines += [f"n[{4 * leaf}-{4 * leaf + 3}].nic[0-7] -- leaf{leaf} 400 Gb/s" for leaf in range(16)]
    lines += [
        f"leaf[{4 * pod}-{4 * pod + 3}] -- *spine[{4 * pod}-{4 * pod + 3}] 400 Gb/s x8" for pod in range(4)
    ]
    lines += [
        f"spine[{plane},{plane + 4},{plane + 8},{plane + 12}] -- core{plane} 400 Gb/s x8"
        for plane in range(4)
    ]
    assert levels(lines) == [
        ("node", (8,), 450),
        ("leaf", (32,), 50),
        ("spine", (128,), 50),
        ("core", (512,), 12.5),
    ]


def test_several_adapters_of_one_gpu_are_used_together() -> None:
    lines = ["n[0-3].gpu[0-7] -- n[0-3].nvswitch 450 GB/s", "n[0-3].nic[0-31] -- network 100 Gb/s"]
    assert levels(lines) == [("node", (8,), 450), ("network", (32,), 50)]
    beside = ["n[0-3].gpu[0-7] -- n[0-3].pcie[0-7] 64 GB/s", "n[0-3].nic[0-31] -- n[0-3].pcie[0-7] 32 GB/s"]
    assert levels([*lines, *beside]) == [("node", (8,), 450), ("network", (32,), 50)]


def test_switches_that_are_linked_with_one_another_are_joined_by_their_cuts() -> None:
    """Three switches in a row: the thick cable joins two of them first, the thin one the third."""
    lines = [*inside(6), *(f"n[{2 * at}-{2 * at + 1}].nic[0-7] -- switch{at} 400 Gb/s" for at in range(3))]
    found = fabric_of(
        cluster([*lines, "switch0 -- switch1 400 Gb/s x16", "switch1 -- switch2 400 Gb/s x4"])
    ).levels
    assert [level.sizes for level in found] == [(8,), (16,), (32, 16), (48,)]
    assert [level.bandwidth / 1e9 for level in found[1:]] == [50, 50, 6.25]


def test_a_lost_nvlink_is_odd() -> None:
    lines = ["n0.gpu[0-6] -- n0.nvswitch 25 GB/s x18", "n0.gpu7 -- n0.nvswitch 25 GB/s x17"]
    fabric = fabric_of(cluster(lines))
    assert (fabric.levels[0].bandwidth, fabric.levels[0].odd) == (450e9, True)
