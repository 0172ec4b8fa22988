"""Clusters and questions as files give them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from calling import refusal
from tables import unnamed

from cost_models.communication.topology import levels_of
from cost_models.defaults import complete_question
from cost_models.errors import InputError
from cost_models.files import catalog
from cost_models.files.loading import resolve_cluster, resolve_model
from cost_models.operators.parameters import total_parameters
from cost_models.question import SHARED_PARTS, parts_of, question_of_parts
from cost_models.specs.cluster import ClusterSpec, LinkLevels, Links, LinkSpec, MixedCluster
from cost_models.specs.kinds import kinds_of
from cost_models.specs.training import TrainingSpec

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
    return resolve_cluster(str(file))


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
    both = (levels_of(own) for own in (levels, levels.model_copy(update={"links": links})))
    for mine, plain in zip(*both, strict=True):
        assert mine.name == named[plain.name]
        for field in ("bandwidth", "latency", "gpus", "sharers"):
            assert getattr(mine, field) == getattr(plain, field)


def test_levels_that_contradict_themselves(tmp_path: Path) -> None:
    for levels, nodes, problem in [
        ((PAIR.replace("bandwidth", "bandwith"), BOX), 1, "links[0].bandwith: unknown field"),
        ((PAIR, BOX.replace("32 GB/s", "32 Gb")), 1, "mine.yaml:8  links[1].bandwidth: `32 Gb` is"),
        ((PAIR, BOX.replace("32 GB/s", "1 B/s")), 1, "must be between 1 KB/s and 100000 TB/s"),
        ((PAIR, BOX.replace("box", "pair")), 1, "two levels are called `pair`"),
        ((" []\n",), 1, "links: lists 0; at least 1 is needed"),
        ((BOX * 17,), 1, "links: tuple should have at most 16 items"),
        ((PAIR,), 1, "one level is the node: it has `nodes: 1`"),
        ((BOX, PAIR), 1, "level `pair` is inside the node and stands after `box`: begin at the GPUs"),
        ((PAIR.replace("gpus: 2", "gpus: 2, nodes: 3"), BOX), 1, "level `pair` has `gpus` and `nodes`"),
        ((BOX, LEAF, SPINE.replace("kind", "nodes: 6, kind")), 4, "of 6 nodes does not hold several whole"),
        ((BOX, SPINE, LEAF), 4, "level `spine` has no size"),
        ((BOX, LEAF, SPINE.replace("5 Gb", "50 Gb")), 8, "a GPU, 6.25 GB/s, than `leaf`"),
        ((BOX, LEAF, SPINE.replace("kind", "sharers: 2, kind")), 8, "`spine` has `sharers`, and all GPUs"),
        ((BOX.replace("kind", "sharers: 2, kind"),), 1, "level `box` has `sharers`, and every"),
        ((PAIR.replace("2", "3"), BOX, SPINE), 2, "`gpus` 3 of level `pair` do not divide a node of 8 GPUs"),
        ((BOX, SPINE.replace("kind", "sharers: 3, kind")), 2, "`sharers` 3 of level `spine` do not"),
        ((PAIR, BOX.replace("kind", "sharers: 4, kind")), 1, "`sharers` 4 of level `box` do not"),
        ((PAIR, BOX), 2, "2 nodes need a level of `links` beyond `box`"),
        ((BOX, LEAF), 8, "level `leaf` joins 4 of 8 nodes; a last one without `nodes` joins all"),
        ((BOX, SPINE, "rails: 4\noversubscription: 2.0\n"), 2, "`oversubscription` goes with"),
    ]:
        assert problem in refusal(read, tmp_path, *levels, nodes=nodes)


@pytest.mark.parametrize("name", LEVELLED)
def test_levels_of_the_catalogue_hold_for_any_number_of_nodes(name: str) -> None:
    for gpus in (2, 3, *(catalog.load_cluster(name).gpus_per_node * nodes for nodes in (1, 2, 64, 1024))):
        sized = resolve_cluster(name, gpus)
        assert ClusterSpec.model_validate_json(sized.model_dump_json()) == sized


def test_faster_links_are_faster_on_every_level_of_their_class(tmp_path: Path) -> None:
    links = read(tmp_path, PAIR, BOX, LEAF, SPINE).links
    inside, beyond = links.faster(intra_node=2.0), links.faster(inter_node=0.5)

    assert [one.bandwidth for one in inside.root] == [112.5e9, 64e9, 25e9 / 8, 5e9 / 8]
    assert [one.bandwidth for one in beyond.root] == [56.25e9, 32e9, 25e9 / 16, 5e9 / 16]


def test_a_pool_under_one_leaf_stays_under_it_in_a_larger_job(tmp_path: Path) -> None:
    links = read(tmp_path, PAIR, BOX, LEAF, SPINE).links
    assert [(one.name, one.nodes) for one in links.levels_for(4).root] == [
        ("pair", None),
        ("box", 1),
        ("leaf", None),
    ]
    assert links.levels_for(5).root == links.root


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
AS_LEVELS = """kind: cluster
name: mine
gpu: h100-sxm
gpus_per_node: 8
nodes: 64
links:
  - {name: node, nodes: 1, kind: nvswitch, bandwidth: 450 GB/s, latency: 3 us}
  - {name: building, nodes: 32, kind: roce, bandwidth: 400 Gb/s, latency: 6 us}
  - {name: campus, kind: ethernet, bandwidth: 25 Gb/s, latency: 60 us}
"""


def read_text(tmp_path: Path, text: str, gpus: int | None = None) -> ClusterSpec:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    return resolve_cluster(str(file), gpus)


def written(nodes: int = 64, each: int = 32, link: str = "25 Gb/s", more: str = "") -> str:
    return PLAIN.format(nodes=nodes) + more + BUILDINGS.format(each=each, link=link)


def test_buildings_are_a_level_more(tmp_path: Path) -> None:
    assert levels_of(read_text(tmp_path, written())) == levels_of(read_text(tmp_path, AS_LEVELS))


def test_what_is_wrong_with_buildings_is_told(tmp_path: Path) -> None:
    for text, told in [
        (written(nodes=65), "65 nodes are no whole number of buildings of 32; 64 or 96 would be"),
        (written(link="0 Gb/s"), "buildings.link.bandwidth: `0 Gb/s` must be above zero"),
        (written(link="800 Gb/s"), "more bandwidth a GPU, 100 GB/s, than the network of a building, 50 GB/s"),
        (written(each=0), "buildings.nodes: must be above zero"),
        (written(each=-4), "buildings.nodes: must be above zero"),
        (written(more="oversubscription: 2.0\nnodes_per_leaf: 3\n"), "3 does not divide a building of 32"),
        (AS_LEVELS + BUILDINGS.format(each=32, link="25 Gb/s"), "a list of levels has a level for them"),
    ]:
        assert told in refusal(read_text, tmp_path, text)


TRAINING = TrainingSpec(global_batch=64, sequence_length=2048)


def fields(**changes: Any) -> dict[str, Any]:
    """A file of two pools."""
    inside = {"kind": "nvswitch", "bandwidth": "300 GB/s", "latency": "3 us"}
    pools = []
    for name, gpu, speed, latency in (
        ("old", "a100-sxm-80gb", "200 Gb/s", "5 us"),
        ("new", "h100-sxm", "400 Gb/s", "7 us"),
    ):
        network = {"kind": "infiniband", "bandwidth": speed, "latency": latency}
        links = {"intra_node": dict(inside), "inter_node": network}
        pools.append({"name": name, "gpu": gpu, "gpus_per_node": 8, "nodes": 2, "links": links})
    return {"kind": "cluster", "name": "both", "pools": pools, **changes}


def written_pools(tmp_path: Path, content: dict[str, Any]) -> str:
    path = tmp_path / "mixed.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return str(path)


def test_a_file_of_pools(tmp_path: Path) -> None:
    mixed = resolve_cluster(written_pools(tmp_path, fields()))
    assert [pool.gpu for pool in mixed.pools] == list(map(catalog.load_gpu, ("a100-sxm-80gb", "h100-sxm")))
    assert mixed.num_gpus == 32
    assert (mixed.link.bandwidth, mixed.link.latency) == (25e9, 7e-6)
    assert MixedCluster.model_validate_json(mixed.model_dump_json()) == mixed


def test_the_short_form() -> None:
    mixed = resolve_cluster("dgx-a100-80gb:512+dgx-h100:256")
    assert [(pool.name, pool.num_gpus) for pool in mixed.pools] == [("dgx-a100-80gb", 512), ("dgx-h100", 256)]
    assert mixed.name == "dgx-a100-80gb+dgx-h100"
    twice = resolve_cluster("dgx-h100:8+dgx-h100:16")
    assert [pool.name for pool in twice.pools] == ["dgx-h100", "dgx-h100.2"]
    assert resolve_cluster("dgx-h100:8+dgx-h100:16", gpus=24) == twice


def test_everything_wrong_with_a_file_is_told_at_once_with_its_place(tmp_path: Path) -> None:
    wrong = fields(between={"kind": "infiniband", "bandwidth": "400 Gb", "latency": "5 us"})
    wrong["pools"][0]["gpu"] = "a100-smx-80gb"
    wrong["pools"][1]["nodes"] = 0
    wrong["pools"][1]["railz"] = 4
    problems = refusal(resolve_cluster, written_pools(tmp_path, wrong)).splitlines()[1:-1]
    for problem, place, words in zip(
        problems,
        ("5  pools[0].gpu", "20  pools[1].nodes", "30  pools[1].railz", "33  between.bandwidth"),
        ("did you mean `a100-sxm-80gb`?", "must be above zero", "did you mean `rails`?", "400 Gb/s"),
        strict=True,
    ):
        assert unnamed(problem, f".yaml:{place}", words) == []


def test_pools_that_do_not_go_together(tmp_path: Path) -> None:
    for change, told in [
        (lambda pools: pools.pop(), "lists 1; a cluster of several has 2 to 4"),
        (lambda pools: pools.extend([pools[0]] * 3), "lists 5; a cluster of several has 2 to 4"),
        (lambda pools: pools[1].update(name="old"), "two pools are called `old`"),
        (lambda pools: pools[1].update(name="the new"), "`the new` is no name of a pool"),
        (lambda pools: (pools[1]["links"].pop("inter_node"), pools[1].update(nodes=1)), "`between` must say"),
    ]:
        content = yaml.safe_load(yaml.safe_dump(fields()))
        change(content["pools"])
        with pytest.raises(InputError, match=told):
            resolve_cluster(written_pools(tmp_path, content))


def test_a_profile_beside_the_file_is_found(tmp_path: Path) -> None:
    content = fields()
    content["pools"][1]["profile"] = "mine.yaml"
    profile = catalog.load_profile("h100").model_copy(update={"name": "mine"})
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(profile.model_dump(mode="json")), encoding="utf-8")
    mixed = resolve_cluster(written_pools(tmp_path, content))
    question = complete_question(catalog.load_model("llama3-8b"), mixed, TRAINING)
    assert [pool.hardware.name for pool in question.pools] == ["a100", "mine"]


def test_short_forms_that_are_wrong(tmp_path: Path) -> None:
    for text, told in [
        ("dgx-h100:12+dgx-a100:8", "dgx-h100:12: 12 GPUs are no whole number"),
        ("dgx-h100:12+dgx-a100:8", "dgx-a100:8: unknown cluster `dgx-a100`"),
        ("pcie-a100:8+dgx-h100:8", "`between` must say how pools are linked"),
        ("dgx-h100:8+FILE:32", "a pool is a cluster of one GPU"),
    ]:
        with pytest.raises(InputError, match=told):
            resolve_cluster(text.replace("FILE", written_pools(tmp_path, fields())))
        with pytest.raises(InputError, match="leaves open which pools"):
            resolve_cluster("dgx-h100:8+dgx-a100-80gb:8", gpus=8)


def test_every_pool_is_asked_the_same() -> None:
    mixed = resolve_cluster("dgx-a100-80gb:16+dgx-h100:16")
    question = complete_question(catalog.load_model("llama3-8b"), mixed, TRAINING, profile="h100")
    assert [pool.hardware.name for pool in question.pools] == ["a100", "h100"]
    assert {pool.stack.name for pool in question.pools} == {"megatron-core"}
    shared = {name: getattr(question, name) for name in SHARED_PARTS}
    assert question_of_parts(*parts_of(question), **shared) == question
    with pytest.raises(InputError, match="no pool of"):
        complete_question(question.model, resolve_cluster("dgx-h100:8+hgx-h200:8"), TRAINING, profile="a100")


def test_blocks_by_kind() -> None:
    for name, sequence, counts, classes in [
        ("llama3-8b", 8192, (32,), 1),
        ("deepseek-v3", 4096, (3, 58), 4),  # three dense blocks, then mixtures
        ("gemma2-2b", 8192, (13, 13), 2),  # every second block has a window of 4,096
        ("gemma2-2b", 4096, (26,), 1),
        ("gemma3-1b", 4096, (22, 4), 6),
        ("llama4-maverick", 16384, (24, 12, 12), 4),
    ]:
        model = resolve_model(name).spec
        known, each = kinds_of(model, sequence)
        assert known.counts == counts
        assert known.classes == classes
        alone = [(total_parameters(one) - total_parameters(model)) / model.num_layers for one in each]
        assert sum(count * more for count, more in zip(counts, alone, strict=True)) == pytest.approx(0, abs=1)
