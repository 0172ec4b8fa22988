"""Clusters of several pools: files, the short form, their schema and what is told when they are wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from cost_models.axes.layout import parse_layout
from cost_models.defaults import complete_question
from cost_models.errors import InputError
from cost_models.files import catalog
from cost_models.files.catalog import json_schema
from cost_models.files.loading import resolve_cluster
from cost_models.question import SHARED_PARTS, each_pool, parts_of, question_of_parts
from cost_models.specs.cluster import ClusterSpec, LinkSpec, MixedCluster
from cost_models.specs.training import TrainingSpec

TRAINING = TrainingSpec(global_batch=64, sequence_length=2048)


def fields(**changes: Any) -> dict[str, Any]:
    """A file of two pools."""
    inside = {"kind": "nvswitch", "bandwidth": "300 GB/s", "latency": "3 us"}
    pools = [
        {
            "name": name,
            "gpu": gpu,
            "gpus_per_node": 8,
            "nodes": 2,
            "links": {
                "intra_node": dict(inside),
                "inter_node": {"kind": "infiniband", "bandwidth": speed, "latency": latency},
            },
        }
        for name, gpu, speed, latency in (
            ("old", "a100-sxm-80gb", "200 Gb/s", "5 us"),
            ("new", "h100-sxm", "400 Gb/s", "7 us"),
        )
    ]
    return {"kind": "cluster", "name": "both", "pools": pools, **changes}


def written(tmp_path: Path, content: dict[str, Any]) -> str:
    path = tmp_path / "mixed.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return str(path)


def test_a_file_of_pools(tmp_path: Path) -> None:
    mixed = resolve_cluster(written(tmp_path, fields()))
    assert isinstance(mixed, MixedCluster)
    assert [pool.gpu for pool in mixed.pools] == [
        catalog.load_gpu("a100-sxm-80gb"),
        catalog.load_gpu("h100-sxm"),
    ]
    assert mixed.num_gpus == 32
    assert (mixed.link.bandwidth, mixed.link.latency) == (25e9, 7e-6)
    assert MixedCluster.model_validate_json(mixed.model_dump_json()) == mixed


def test_a_given_link_counts(tmp_path: Path) -> None:
    between = {"kind": "ethernet", "bandwidth": "100 Gb/s", "latency": "20 us"}
    mixed = resolve_cluster(written(tmp_path, fields(between=between)))
    assert isinstance(mixed, MixedCluster)
    assert mixed.link == LinkSpec.model_validate(between)


def test_the_short_form() -> None:
    mixed = resolve_cluster("dgx-a100-80gb:512+dgx-h100:256")
    assert isinstance(mixed, MixedCluster)
    assert [(pool.name, pool.num_gpus) for pool in mixed.pools] == [("dgx-a100-80gb", 512), ("dgx-h100", 256)]
    assert mixed.name == "dgx-a100-80gb+dgx-h100"
    twice = resolve_cluster("dgx-h100:8+dgx-h100:16")
    assert isinstance(twice, MixedCluster)
    assert [pool.name for pool in twice.pools] == ["dgx-h100", "dgx-h100.2"]
    assert resolve_cluster("dgx-h100:8+dgx-h100:16", gpus=24) == twice


def test_one_cluster_stays_one(tmp_path: Path) -> None:
    single = {"kind": "cluster", **fields()["pools"][0]}
    cluster = resolve_cluster(written(tmp_path, single))
    assert isinstance(cluster, ClusterSpec)
    assert isinstance(resolve_cluster("dgx-h100", 16), ClusterSpec)


def test_everything_wrong_with_a_file_is_told_at_once_with_its_place(tmp_path: Path) -> None:
    wrong = fields(between={"kind": "infiniband", "bandwidth": "400 Gb", "latency": "5 us"})
    wrong["pools"][0]["gpu"] = "a100-smx-80gb"
    wrong["pools"][1]["nodes"] = 0
    wrong["pools"][1]["railz"] = 4
    with pytest.raises(InputError) as caught:
        resolve_cluster(written(tmp_path, wrong))
    places = [problem.where.partition(":")[2] for problem in caught.value.problems]
    assert places == ["5  pools[0].gpu", "20  pools[1].nodes", "30  pools[1].railz", "33  between.bandwidth"]
    told = str(caught.value)
    assert "did you mean `a100-sxm-80gb`?" in told
    assert "must be above zero" in told
    assert "did you mean `rails`?" in told
    assert "400 Gb/s" in told


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda pools: pools.pop(), "lists 1; a cluster of several has 2 to 4"),
        (lambda pools: pools.extend([pools[0]] * 3), "lists 5; a cluster of several has 2 to 4"),
        (lambda pools: pools[1].update(name="old"), "two pools are called `old`"),
        (lambda pools: pools[1].update(name="the new"), "`the new` is no name of a pool"),
        (
            lambda pools: (pools[1]["links"].pop("inter_node"), pools[1].update(nodes=1)),
            "`between` must say how pools are linked",
        ),
    ],
)
def test_pools_that_do_not_go_together(tmp_path: Path, change: Any, told: str) -> None:
    content = yaml.safe_load(yaml.safe_dump(fields()))
    change(content["pools"])
    with pytest.raises(InputError, match=told):
        resolve_cluster(written(tmp_path, content))


def test_a_profile_beside_the_file_is_found(tmp_path: Path) -> None:
    content = fields()
    content["pools"][1]["profile"] = "mine.yaml"
    (tmp_path / "mine.yaml").write_text(
        yaml.safe_dump(
            catalog.load_profile("h100").model_copy(update={"name": "mine"}).model_dump(mode="json")
        ),
        encoding="utf-8",
    )
    mixed = resolve_cluster(written(tmp_path, content))
    question = complete_question(catalog.load_model("llama3-8b"), mixed, TRAINING)
    assert question.has_pools
    assert [pool.hardware.name for pool in question.pools] == ["a100", "mine"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("dgx-h100:12+dgx-a100:8", "dgx-h100:12: 12 GPUs are no whole number"),
        ("dgx-h100:12+dgx-a100:8", "dgx-a100:8: unknown cluster `dgx-a100`"),
        ("pcie-a100:8+dgx-h100:8", "`between` must say how pools are linked"),
    ],
)
def test_short_forms_that_are_wrong(text: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        resolve_cluster(text)


def test_pools_are_not_pools_of_pools(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a pool is a cluster of one GPU"):
        resolve_cluster(f"dgx-h100:8+{written(tmp_path, fields())}:32")


def test_the_number_of_gpus_does_not_say_which() -> None:
    with pytest.raises(InputError, match="leaves open which pools"):
        resolve_cluster("dgx-h100:8+dgx-a100-80gb:8", gpus=8)


def test_the_schema_of_pools() -> None:
    schema = json_schema("pools")
    assert schema["required"] == ["pools"]
    assert {"type": "string"} in schema["$defs"]["ClusterSpec"]["properties"]["gpu"]["anyOf"]


def test_every_pool_is_asked_the_same() -> None:
    mixed = resolve_cluster("dgx-a100-80gb:16+dgx-h100:16")
    question = complete_question(catalog.load_model("llama3-8b"), mixed, TRAINING, profile="h100")
    assert question.has_pools
    assert [pool.hardware.name for pool in question.pools] == ["a100", "h100"]
    assert {pool.stack.name for pool in question.pools} == {"megatron-core"}
    shared = {name: getattr(question, name) for name in SHARED_PARTS}
    assert question_of_parts(*parts_of(question), **shared) == question
    with pytest.raises(InputError, match="no pool of"):
        complete_question(question.model, resolve_cluster("dgx-h100:8+hgx-h200:8"), TRAINING, profile="a100")


def test_a_change_is_made_to_the_pools_it_means_something_to() -> None:
    question = complete_question(
        catalog.load_model("llama3-8b"), resolve_cluster("dgx-a100-80gb:16+dgx-h100:16"), TRAINING
    )
    assert each_pool(question, lambda pool: None) is None
    changed = each_pool(question, lambda pool: pool if pool.cluster.name == "dgx-h100" else None)
    assert changed == question


def test_layouts_name_the_pool_of_each_rank() -> None:
    text = "tp8 pp4 dp2 mbs1 zero1 layers=10*2,30*2 pools=old*2,new*2"
    layout = parse_layout(text)
    assert layout.pools == ("old", "old", "new", "new")
    assert str(layout) == text
    with pytest.raises(InputError, match="pools names 2 ranks; the pipeline has 4"):
        parse_layout("pp4 pools=old,new")
