"""Fabrics read from files of switches and cables, and their notation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import combinations
from pathlib import Path

import pytest
from fabrics import cluster, inside, leaves, pod
from hypothesis import given
from hypothesis import strategies as st

import meshwright as mw
from cost_models.communication.topology import fabric_of
from cost_models.errors import InputError
from cost_models.files.catalog import load_cluster
from cost_models.files.loading import resolve_cluster
from cost_models.specs.graph import expand, fold, read_lines, write_lines
from meshwright.verbs.cluster.answers import LinkedCluster, cluster_from_links


def ibnetdiscover(cables: Iterable[tuple[str, str, str]]) -> str:
    """Blocks of switches and adapters for cables (device, device, `4xNDR`); hosts' devices are `host mlx5_0`."""
    ports: dict[str, list[tuple[str, int, str]]] = defaultdict(list)
    for one, other, speed in cables:
        at = len(ports[one]) + 1, len(ports[other]) + 1
        ports[one].append((other, at[1], speed))
        ports[other].append((one, at[0], speed))
    guid = {
        name: f"{'H' if ' ' in name else 'S'}-{number:016x}" for number, name in enumerate(ports, start=0xA0)
    }
    lines = ["#", "# Topology file: generated on Wed Nov 25 10:00:00 2026", "#", ""]
    for name, own in ports.items():
        host = guid[name].startswith("H")
        kind = "caguid" if host else "switchguid"
        lines += ["vendid=0x2c9", "devid=0xd2f2", f"{kind}=0x{guid[name][2:]}({guid[name][2:]})"]
        word, more = ("Ca", "") if host else ("Switch", " enhanced port 0 lid 1 lmc 0")
        lines.append(f'{word}\t{len(own)} "{guid[name]}"\t\t# "{name}"{more}')
        for number, (other, port, speed) in enumerate(own, start=1):
            mine = f"({guid[name][2:]})" if host else ""
            told = f'lid 4 lmc 0 "{other}" lid 1 {speed}' if host else f'"{other}" lid 4 {speed}'
            lines.append(f'[{number}]{mine}\t"{guid[other]}"[{port}]\t\t# {told}')
        lines.append("")
    return "\n".join(lines)


TABLE = """# gpu: h100-sxm
from,to,bandwidth,latency
n[0-31].gpu[0-7],n[0-31].nvswitch,450 GB/s,1.5 us
n[0-31].gpu[0-7],n[0-31].nic[0-7],64 GB/s
n[0-31].nic[0-7],leaf[0-3],400 Gb/s,2.5 us
leaf[0-3],*spine[1-31],400 Gb/s
leaf[0-2],spine0,400 Gb/s
leaf3,spine0,100 Gb/s
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def problems(folder: Path, text: str, name: str = "links.csv", **said: object) -> list[str]:
    (folder / name).write_text(text)
    with pytest.raises(InputError) as error:
        cluster_from_links(name, **{"gpu": "h100-sxm"} | said)
    return [str(problem) for problem in error.value.problems]


def levels(answer: LinkedCluster, *columns: str) -> list[tuple[object, ...]]:
    """Some columns of an answer's table of levels."""
    return [tuple(row[name] for name in columns) for row in answer.rows]


def test_a_table_is_a_cluster_with_its_odd_link(folder: Path) -> None:
    (folder / "links.csv").write_text(TABLE)
    answer = cluster_from_links("links.csv")
    found = levels(answer, "level", "gpus", "oversubscription")
    assert found == [("node", [8], 1.0), ("leaf", [64], 1.0), ("spine", [256], 2.0)]
    assert answer.record()["odd"] == ["leaf3-spine0 has 100 Gb/s where its 31 siblings have 400 Gb/s"]
    rings = {row["group"]: (row["ring"], row["usual"]) for row in answer.groups}
    assert rings["one GPU of each leaf"] == (6.25e9, 25e9)
    assert max(map(len, repr(answer).splitlines())) <= 80
    answer.save("cluster.yaml")
    read = resolve_cluster("cluster.yaml")
    assert read == answer.cluster
    assert fabric_of(read).levels[2].bandwidth == 25e9  # type: ignore[arg-type]


def test_a_search_counts_groups_on_the_graph(folder: Path) -> None:
    """Of two nodes whose one cable is thin, the best plan is slower, and proved."""
    (folder / "links.csv").write_text("""from,to,bandwidth
n[0-1].gpu[0-1],n[0-1].nvswitch,450 GB/s
n[0-1].gpu[0-1],n[0-1].nic[0-1],64 GB/s
n0.nic[0-1],network,400 Gb/s
n1.nic0,network,400 Gb/s
n1.nic1,network,1 Gb/s""")
    odd = cluster_from_links("links.csv", gpu="h100-sxm").cluster
    regular = odd.model_copy(update={"graph": ()})
    slow, quick = (mw.plan("gpt2-xl", of, global_batch=16, sequence=512) for of in (odd, regular))
    assert slow.best.step_seconds > quick.best.step_seconds
    assert slow.certificate.gap == 0


def test_all_problems_of_a_table_are_told_at_once_with_their_lines(folder: Path) -> None:
    text = """from,to,bandwidth,latency
n0.gpu0,foo7,5 GB/s
n0.gpu0,n0.nvswitch,,3 us
n0.gpu0,n0.nvswitch
n0.gpu0,n0.nvswitch,400 Gb,3
n0.gpu[0-99999999],n0.nvswitch,3 GB/s
gpu0,leaf0,3 GB/s
n0.nic[0-2],leaf[0-1],3 GB/s
n0.nic0,n0.nic0,3 GB/s
a,b,c,d,e,f
n[0,2].gpu0,n[0,2].nvswitch,3 GB/s,"unterminated
"""
    found = problems(folder, text)
    lines = [int(one.partition(": ")[0].removeprefix("links.csv:")) for one in found]
    assert lines == [2, 3, 4, 5, 5, 6, 7, 8, 9, 10, 11]
    assert "unknown device `foo7`" in found[0]
    assert "has no bandwidth" in found[1]
    assert found[2].endswith("it has 2 values, its heading 4")
    assert "`400 Gb` is not a bandwidth; write it like `400 Gb/s` (bits) or `50 GB/s` (bytes)" in found[3]
    assert "stands for 100,000,000 devices; 50,000 are the most" in found[5]
    assert "`gpu0` is in no node" in found[6]
    assert "3 devices cannot be shared out evenly among 2" in found[7]


INSIDE = "from,to,bandwidth\nn[0-3].gpu[0-7],n[0-3].nvswitch,450 GB/s\n"


def test_what_is_no_cluster_says_why(folder: Path) -> None:
    thin, loose = "4 Gb/s\n", "n[0-3].gpu7,n[0-3].nic7,5 GB/s\n"
    for text, why in (
        (f"n[0-1].nic[0-7],leaf0,{thin}n[2-3].nic[0-7],leaf1,{thin}", "2 parts, those of `n0` and `n2`"),
        (f"n[0-2].nic[0-7],leaf0,{thin}", "links.csv:2: n3 has no cable to a switch or another node"),
        ("n4.gpu[0-6],n4.nvswitch,450 GB/s\n", "links.csv:3: n4 has 7 GPUs, other nodes have 8"),
        (INSIDE.splitlines()[1], "is said twice, first at links.csv:2"),
    ):
        assert any(why in one for one in problems(folder, INSIDE + text)), why
    heading = INSIDE.splitlines(keepends=True)[0]
    for text, why in (
        (f"{INSIDE.replace('[0-7]', '[0-6]')}{loose}", "GPUs that are not connected inside"),
        (f"{heading}leaf0,spine0,5 GB/s\n", "no device of it is a GPU"),
        (heading, "it lists no link"),
    ):
        assert any(why in one for one in problems(folder, text)), why


def test_json_has_lines_too(folder: Path) -> None:
    text = '{"links": [\n{"from": "n0.gpu0", "to": "n0.nvswitch", "bandwith": "5 GB/s"},\n'
    text += '{"from": "n0.gpu1", "bandwidth": "5 GB/s"}, 7]}'
    assert problems(folder, text, "links.json") == [
        "links.json:2  links[0]: `bandwith` is no field of a link; did you mean `bandwidth`?",
        "links.json:2  links[0]: `n0.gpu0` -- `n0.nvswitch` has no bandwidth; write it like `400 Gb/s`",
        "links.json:3  links[1]: it has no `to`",
        "links.json:3  links[2]: a link is a group of `field: value` pairs",
    ]
    (folder / "good.json").write_text(
        '{"gpu": "h100-sxm", "links": [{"from": "n0.gpu[0-3]", "to": "n0.nvswitch", "bandwidth": "450 GB/s"}]}'
    )
    assert cluster_from_links("good.json").cluster.num_gpus == 4


def test_a_network_as_the_subnet_manager_sees_it(folder: Path) -> None:
    """Two leaves of two hosts each, two spines of four cables, one of them at HDR; one host has one adapter."""
    hosts = [(f"host{node} mlx5_{rail}", f"leaf{node // 2}") for node in range(4) for rail in range(8)]
    hosts += [("box0 mlx5_0", "leaf0")]
    trunks = [(f"leaf{leaf}", f"spine{spine}") for leaf in range(2) for spine in range(2) for _ in range(4)]
    switch = "MF0;{}:MQM9700/U1".format
    cables = [(host, switch(leaf), "4xNDR") for host, leaf in hosts]
    cables += [(switch(leaf), switch(spine), "4xNDR") for leaf, spine in trunks[:-1]]
    cables += [(switch("leaf1"), switch("spine1"), "4xHDR")]
    both, inside = ibnetdiscover(cables), {"intra_node": "nvswitch,450GB/s,3us"}
    leaf, slow, spine = both.partition("4xHDR")
    (folder / "fabric.topo").write_text(both)
    answer = cluster_from_links("fabric.topo", gpu="h100-sxm", links=inside)
    (folder / "fabric.topo").write_text("\n".join([*leaf.splitlines()[:-1], *spine.splitlines()[1:]]))
    assert slow
    seen = cluster_from_links("fabric.topo", gpu="h100-sxm", links=inside).draft.fabric
    assert seen.odd == answer.draft.fabric.odd
    found = levels(answer, "level", "gpus", "bandwidth")
    assert found == [("node", [8], 450e9), ("leaf", [16], 50e9), ("spine", [32], 25e9)]
    assert answer.draft.fabric.odd == ("leaf1-spine1 has 200 Gb/s where its 7 siblings have 400 Gb/s",)
    assert any("box0" in note for note in answer.draft.notes)
    assert any("8 GPUs a node" in one for one in answer.draft.assumed)
    answer.save("again.yaml")
    assert resolve_cluster("again.yaml") == answer.cluster


def test_a_network_alone_does_not_say_what_is_inside_nodes(folder: Path) -> None:
    text = ibnetdiscover([("a mlx5_0", "leaf0", "4xNDR"), ("b mlx5_0", "leaf0", "4xWDR")])
    found = problems(folder, text, "fabric.topo")
    assert sum("width and speed of a port cannot be read" in one for one in found) == 2
    assert any("does not show the links between GPUs" in one for one in found)


MATRIX = """        GPU0    GPU1    GPU2    GPU3    NIC0    NIC1    CPU Affinity    NUMA Affinity
GPU0     X      NV12    SYS     SYS     PXB     SYS     0-31    0
GPU1    NV12     X      SYS     SYS     PXB     SYS     0-31    0
GPU2    SYS     SYS      X      NV12    SYS     PXB     32-63   1
GPU3    SYS     SYS     NV12     X      SYS     PXB     32-63   1
NIC0    PXB     PXB     SYS     SYS      X      SYS
NIC1    SYS     SYS     PXB     PXB     SYS      X
"""


def test_the_matrix_of_a_node_with_a_line_of_bandwidths(folder: Path) -> None:
    rates = "gpu: a40\nbandwidths: NV12 56.25 GB/s, PXB 32 GB/s, SYS 16 GB/s, NIC 100 Gb/s\n"
    (folder / "topo.txt").write_text(MATRIX + rates)
    answer = cluster_from_links("topo.txt", nodes=4)
    found = levels(answer, "level", "kind", "gpus")
    assert found == [("group", "nvlink", [2]), ("node", "pcie", [4]), ("network", "infiniband", [16])]
    assert answer.cluster.links.inter_node.bandwidth == 6.25e9  # type: ignore[union-attr]
    assert any("one network carries all adapters" in one for one in answer.draft.assumed)


WAYS = ("PIX", "PXB", "PHB", "NODE", "SYS")


def matrix(shape: tuple[str, ...]) -> str:
    """`topo -m` of 2 ** len(shape) GPUs, where `shape[k]` lies between those that differ first in bit k."""
    gpus = range(2 ** len(shape))
    rows = [
        [f"GPU{one}", *(shape[(one ^ other).bit_length() - 1] if one != other else "X" for other in gpus)]
        for one in gpus
    ]
    return "\n".join(" ".join(row) for row in [[f"GPU{one}" for one in gpus], *rows]) + "\n"


@pytest.mark.parametrize(
    "shape", [some for size in (1, 2, 3) for some in combinations(WAYS, size)], ids="-".join
)
def test_every_rate_of_a_matrix_is_a_level_or_named_as_unused(folder: Path, shape: tuple[str, ...]) -> None:
    """Each way that GPUs have is a level with its rate, shared out; rates of other ways and of adapters are notes."""
    rates = dict(zip((*WAYS, "NIC", "NV4"), (50, 40, 30, 20, 10, 5, 60), strict=True))
    said = ", ".join(f"{way} {rate} GB/s" for way, rate in rates.items())
    (folder / "topo.txt").write_text(matrix(shape) + f"bandwidths: {said}\n")
    answer = cluster_from_links("topo.txt", gpu="rtx-4090")
    shared = [rates[way] * 1e9 / 2**at for at, way in enumerate(shape)]
    assert [row["bandwidth"] for row in answer.rows] == shared
    unused = [f"`{way}" for way in rates if way not in shape]
    assert [note.split(" ")[0] for note in answer.draft.notes] == unused


def test_what_a_person_says_beside_a_file_is_used_or_named(folder: Path) -> None:
    text = matrix(("PIX", "SYS")) + "bandwidths: PIX 9 GB/s\nbandwidths: SYS 5 GB/s\n"
    (folder / "topo.txt").write_text(text)
    said = {"intra_node": "pcie,9GB/s", "inter_node": "roce,100Gb/s"}
    answer = cluster_from_links("topo.txt", gpu="rtx-4090", links=said, hosts="x*", gpus_per_node=2, nodes=1)
    notes = " ".join(answer.draft.notes)
    assert all(f"`{name}` is not used" in notes for name in ("intra_node", "inter_node", "hosts", "gpus"))
    assert "`nodes`" not in notes


HOSTS = {
    "gpu nodes beside others": (["gpu01", "gpu02", "node1", "node2", "node3"], None, {"gpu01", "gpu02"}),
    "services": (["n1", "n2", "login1", "controller"], None, {"n1", "n2"}),
    "a pattern": (["n1", "n2", "x1"], "n*", {"n1", "n2"}),
}


@pytest.mark.parametrize("name", HOSTS)
def test_hosts_that_are_no_gpu_nodes_are_left_out_and_named(folder: Path, name: str) -> None:
    hosts, pattern, nodes = HOSTS[name]
    (folder / "net.txt").write_text(ibnetdiscover([(f"{host} mlx5_0", "leaf0", "4xEDR") for host in hosts]))
    link = {"intra_node": "nvswitch,300GB/s,3us"}
    answer = cluster_from_links("net.txt", gpu="a100-sxm-80gb", links=link, hosts=pattern, gpus_per_node=8)
    assert set(answer.draft.fabric.nodes) == nodes
    assert answer.cluster.gpus_per_node == 8
    assert answer.rows[0]["kind"] == "nvswitch"
    (note,) = answer.draft.notes
    assert all(host.rstrip("0123456789") in note for host in set(hosts) - nodes)
    alone = cluster_from_links("net.txt", gpu="a100-sxm-80gb", links=link, hosts=pattern)
    assert (alone.rows[0]["kind"], alone.rows[0]["gpus"]) == ("nvswitch", [1])


def test_a_cluster_file_whose_graph_contradicts_it_is_refused(folder: Path) -> None:
    (folder / "links.csv").write_text(TABLE)
    text = cluster_from_links("links.csv").yaml
    (folder / "few.yaml").write_text(text.replace("nodes: 32", "nodes: 31"))
    with pytest.raises(InputError, match="`graph` has 32 nodes and 256 GPUs"):
        resolve_cluster("few.yaml")
    (folder / "bad.yaml").write_text(text.replace("- leaf3 -- spine0 100 Gb/s", "- leaf3 -- spine0 100 Gb"))
    with pytest.raises(InputError, match="is no link"):
        resolve_cluster("bad.yaml")
    lines = [line for line in text.splitlines() if "name: leaf" not in line]
    (folder / "levels.yaml").write_text("\n".join(lines))
    with pytest.raises(InputError, match="are 2 levels, its `graph` has 3"):
        fabric_of(resolve_cluster("levels.yaml"))  # type: ignore[arg-type]


CUBE = [
    (0, 1, 1), (0, 2, 1), (0, 3, 2), (0, 4, 2), (1, 2, 2), (1, 3, 1), (1, 5, 2), (2, 3, 2),
    (2, 6, 1), (3, 7, 1), (4, 5, 1), (4, 6, 1), (4, 7, 2), (5, 6, 2), (5, 7, 1), (6, 7, 2),
]  # fmt: skip
"""The hybrid cube mesh of eight V100: pairs of GPUs and their NVLinks, six a GPU."""


def levels_graph_levels(lines: list[str]) -> list[tuple[str, tuple[int, ...], float]]:
    return [(level.name, level.sizes, level.bandwidth / 1e9) for level in fabric_of(cluster(lines)).levels]


def test_a_mesh_without_switches_has_all_links_of_a_gpu() -> None:
    assert levels_graph_levels([f"n0.gpu{a} -- n0.gpu{b} 25 GB/s x{count}" for a, b, count in CUBE]) == [
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
    assert levels_graph_levels(lines) == [
        ("node", (8,), 450),
        ("leaf", (32,), 50),
        ("spine", (128,), 50),
        ("core", (512,), 12.5),
    ]


def test_several_adapters_of_one_gpu_are_used_together() -> None:
    lines = ["n[0-3].gpu[0-7] -- n[0-3].nvswitch 450 GB/s", "n[0-3].nic[0-31] -- network 100 Gb/s"]
    assert levels_graph_levels(lines) == [("node", (8,), 450), ("network", (32,), 50)]
    beside = ["n[0-3].gpu[0-7] -- n[0-3].pcie[0-7] 64 GB/s", "n[0-3].nic[0-31] -- n[0-3].pcie[0-7] 32 GB/s"]
    assert levels_graph_levels([*lines, *beside]) == [("node", (8,), 450), ("network", (32,), 50)]


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


def test_lines_are_written_as_they_are_read() -> None:
    for lines in [
        pod(12),
        leaves(),
        leaves(instead=["leaf[0-2] -- spine0 400 Gb/s x2", "leaf3 -- spine0 33.3 Gb/s roce"]),
    ]:
        links, _ = read_lines(lines)
        again, wrong = read_lines(write_lines(links))
        assert not wrong
        assert {link[:-1] for link in again} == {link[:-1] for link in links}
        assert len(write_lines(links)) <= 8


@given(st.sets(st.integers(0, 40), min_size=1), st.booleans())
def test_names_fold_and_expand(numbers: set[int], padded: bool) -> None:
    names = [f"n{number:03}.gpu1" if padded else f"n{number}.gpu1" for number in sorted(numbers)]
    assert expand(fold(names)) == names


@given(st.text(max_size=60))
def test_any_line_is_links_or_problems(text: str) -> None:
    links, wrong = read_lines([text])
    assert bool(links) != bool(wrong)
