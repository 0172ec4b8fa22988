"""Links written level by level: what they mean, what is told when they are wrong, and that nothing is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from cost_models.communication.topology import levels_of
from cost_models.errors import InputError
from cost_models.files import catalog
from cost_models.files.loading import resolve_cluster
from cost_models.specs.cluster import ClusterSpec, LinkLevels, Links, LinkSpec

HEAD = "kind: cluster\nname: mine\ngpu: a40\ngpus_per_node: 8\nnodes: {nodes}\nlinks:\n"
PAIR = "  - {name: pair, gpus: 2, kind: nvlink, bandwidth: 56.25 GB/s, latency: 3 us}\n"
BOX = "  - {name: box, nodes: 1, kind: pcie, bandwidth: 32 GB/s, latency: 8 us}\n"
LEAF = "  - {name: leaf, nodes: 4, kind: roce, bandwidth: 25 Gb/s, latency: 9 us}\n"
SPINE = "  - {name: spine, kind: roce, bandwidth: 5 Gb/s, latency: 12 us}\n"
LEVELLED = [
    name for name in catalog.names("clusters") if isinstance(catalog.load_cluster(name).links, LinkLevels)
]


def read(tmp_path: Path, *levels: str, nodes: int = 8) -> ClusterSpec:
    file = tmp_path / "mine.yaml"
    file.write_text(HEAD.format(nodes=nodes) + "".join(levels))
    found = resolve_cluster(str(file))
    assert isinstance(found, ClusterSpec)
    return found


def test_levels_go_from_the_gpus_outwards(tmp_path: Path) -> None:
    levels = levels_of(read(tmp_path, PAIR, BOX, LEAF, SPINE))
    assert [(one.name, one.gpus, one.network, one.opens) for one in levels] == [
        ("pair", 2, False, True),
        ("box", 8, False, True),
        ("leaf", 32, True, True),
        ("spine", None, True, False),
    ]
    assert [one.bandwidth for one in levels] == [56.25e9, 32e9, 25e9 / 8, 5e9 / 8]


def test_two_levels_mean_what_intra_node_and_inter_node_mean(tmp_path: Path) -> None:
    levels = read(tmp_path, BOX, SPINE)
    links = Links(
        intra_node=LinkSpec(kind="pcie", bandwidth="32 GB/s", latency="8 us"),
        inter_node=LinkSpec(kind="roce", bandwidth="5 Gb/s", latency="12 us"),
    )
    named = {"node": "box", "network": "spine"}
    for mine, plain in zip(
        levels_of(levels), levels_of(levels.model_copy(update={"links": links})), strict=True
    ):
        assert mine.name == named[plain.name]
        assert (mine.bandwidth, mine.latency, mine.gpus, mine.sharers) == (
            plain.bandwidth,
            plain.latency,
            plain.gpus,
            plain.sharers,
        )


@pytest.mark.parametrize(
    ("levels", "nodes", "problem"),
    [
        (
            (PAIR.replace("bandwidth", "bandwith"), BOX),
            1,
            "links[0].bandwith: unknown field `bandwith`; did you mean",
        ),
        (
            (PAIR, BOX.replace("32 GB/s", "32 Gb")),
            1,
            "mine.yaml:8  links[1].bandwidth: `32 Gb` is not a bandwidth",
        ),
        ((PAIR, BOX.replace("32 GB/s", "1 B/s")), 1, "must be between 1 KB/s and 100000 TB/s"),
        ((PAIR, BOX.replace("box", "pair")), 1, "two levels are called `pair`"),
        ((" []\n",), 1, "links: lists 0; at least 1 is needed"),
        ((BOX * 17,), 1, "links: tuple should have at most 16 items"),
        ((PAIR,), 1, "one level is the node: it has `nodes: 1`"),
        ((BOX, PAIR), 1, "level `pair` is inside the node and stands after `box`: begin at the GPUs"),
        ((PAIR.replace("gpus: 2", "gpus: 2, nodes: 3"), BOX), 1, "level `pair` has `gpus` and `nodes`"),
        (
            (BOX, LEAF, SPINE.replace("kind", "nodes: 6, kind")),
            4,
            "of 6 nodes does not hold several whole levels `leaf` of 4",
        ),
        (
            (BOX, SPINE, LEAF),
            4,
            "level `spine` has no size; only the last, which joins all, may leave it out",
        ),
        (
            (BOX, LEAF, SPINE.replace("5 Gb", "50 Gb")),
            8,
            "`spine` has more bandwidth a GPU, 6.25 GB/s, than `leaf`, 3.125 GB/s",
        ),
        (
            (BOX, LEAF, SPINE.replace("kind", "sharers: 2, kind")),
            8,
            "level `spine` has `sharers`, and all GPUs below share",
        ),
        (
            (BOX.replace("kind", "sharers: 2, kind"),),
            1,
            "level `box` has `sharers`, and every GPU has a link of its own",
        ),
        ((PAIR.replace("2", "3"), BOX, SPINE), 2, "`gpus` 3 of level `pair` do not divide a node of 8 GPUs"),
        (
            (BOX, SPINE.replace("kind", "sharers: 3, kind")),
            2,
            "`sharers` 3 of level `spine` do not divide a node of 8 GPUs",
        ),
        (
            (PAIR, BOX.replace("kind", "sharers: 4, kind")),
            1,
            "`sharers` 4 of level `box` do not divide a `pair` of 2 GPUs",
        ),
        ((PAIR, BOX), 2, "2 nodes need a level of `links` beyond `box`"),
        ((BOX, LEAF), 8, "level `leaf` joins 4 of 8 nodes; a last one without `nodes` joins all"),
        (
            (BOX, SPINE, "rails: 4\noversubscription: 2.0\n"),
            2,
            "`oversubscription` goes with `intra_node` and `inter_node`",
        ),
    ],
)
def test_what_is_told_of_levels_that_contradict_themselves(
    tmp_path: Path, levels: tuple[str, ...], nodes: int, problem: str
) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, *levels, nodes=nodes)
    assert problem in str(caught.value)


def test_all_of_it_at_once(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, PAIR, BOX.replace("box", "pair"), LEAF, SPINE.replace("5 Gb", "50 Gb"))
    assert "two levels are called `pair`" in str(caught.value)
    assert "`spine` has more bandwidth" in str(caught.value)


@pytest.mark.parametrize("name", LEVELLED)
def test_levels_of_the_catalogue_hold_for_any_number_of_nodes(name: str) -> None:
    for gpus in (2, 3, *(catalog.load_cluster(name).gpus_per_node * nodes for nodes in (1, 2, 64, 1024))):
        sized = resolve_cluster(name, gpus)
        assert ClusterSpec.model_validate_json(sized.model_dump_json()) == sized


def test_faster_links_are_faster_on_every_level_of_their_class(tmp_path: Path) -> None:
    links = read(tmp_path, PAIR, BOX, LEAF, SPINE).links
    inside, beyond = links.faster(intra_node=2.0), links.faster(inter_node=0.5)
    assert isinstance(inside, LinkLevels)
    assert isinstance(beyond, LinkLevels)
    assert [one.bandwidth for one in inside.root] == [112.5e9, 64e9, 25e9 / 8, 5e9 / 8]
    assert [one.bandwidth for one in beyond.root] == [56.25e9, 32e9, 25e9 / 16, 5e9 / 16]


def test_a_pool_under_one_leaf_stays_under_it_in_a_larger_job(tmp_path: Path) -> None:
    links = read(tmp_path, PAIR, BOX, LEAF, SPINE).links
    assert isinstance(links, LinkLevels)
    assert [(one.name, one.nodes) for one in links.levels_for(4).root] == [
        ("pair", None),
        ("box", 1),
        ("leaf", None),
    ]
    assert links.levels_for(5).root == links.root
