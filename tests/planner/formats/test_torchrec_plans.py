"""Shardings as TorchRec's plans: back they are what they were, and what TorchRec lacks is refused by table."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed._shard.metadata import ShardMetadata

from cost_models.errors import InputError
from cost_models.files.loading import resolve_cluster
from cost_models.recommender.question import complete_recommender
from cost_models.specs.recommender.model import Interaction, RecommenderSpec, TableSpec
from cost_models.specs.recommender.sharding import Sharding, parse_sharding
from cost_models.specs.recommender.training import RecommenderTraining
from meshwright.verbs.export import export, import_plan
from planner.formats.torchrec import MODULE, export_sharding, import_sharding
from planner.recommender.plan import RecommenderPlan, make_recommender_plan

TABLES = 4
KEYS = ("sharding_type", "compute_kernel", "ranks")
MODEL = RecommenderSpec(
    tables=(
        TableSpec(name="a", rows=1001, width=64, count=2, pooling=2),
        TableSpec(name="b", rows=7, width=32),
        TableSpec(name="c", rows=10**6, width=64, zipf=1.0),
    ),
    interaction=Interaction(kind="none"),
)


def plan_of(layout: str, gpus: int = 16) -> RecommenderPlan:
    cluster = resolve_cluster("dgx-h100", gpus)
    question = complete_recommender(MODEL, cluster, RecommenderTraining(global_batch=1024))
    return make_recommender_plan(question, parse_sharding(layout, TABLES))


WORDS = st.one_of(
    st.builds("whole@{}".format, st.integers(0, 15)),
    st.builds("column2@{},{}".format, st.integers(0, 15), st.integers(0, 15)),
    st.builds("node-row@{}".format, st.integers(0, 1)),
    st.sampled_from(["row", "copy", "row/host", "whole@3/cached(0.1)", "row/cached(0.25)"]),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(WORDS, min_size=TABLES, max_size=TABLES))
def test_back_it_is_what_it_was(words: list[str]) -> None:
    sharding = parse_sharding(" ".join(f"table:{n}={word}" for n, word in enumerate(words)), TABLES)
    assert _back(_Tables(sharding)) == (sharding, 16)


@dataclass
class _Held:
    """TorchRec's ParameterSharding, as far as a plan says it."""

    sharding_type: str
    compute_kernel: str
    ranks: list[int] | None
    sharding_spec: dict[str, list[ShardMetadata]] | None
    cache_params: dict[str, float] | None = None


def test_the_script_of_the_guide_saves_what_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of torch's own classes, whose placements are no text."""
    monkeypatch.chdir(tmp_path)
    layout = "table:0=row/cached(0.25) table:1=whole@1 table:2=column2@0,3 table:3=copy"
    held, text = {}, export_sharding(_Tables(parse_sharding(layout, TABLES))).text
    for name, said in json.loads(text)["plan"][MODULE].items():
        if said["sharding_spec"]:
            shards = [ShardMetadata(**shard) for shard in said["sharding_spec"]["shards"]]
            said = said | {"sharding_spec": {"shards": shards}}
        held[name] = _Held(**said)
    guide = Path(__file__).parents[3] / "docs/guides/serving-recommenders.md"
    script = re.search(r"```python\n(.*?)```", guide.read_text("utf-8"), re.DOTALL)
    model = SimpleNamespace(plan=SimpleNamespace(plan={"tables": held}))
    exec(script[1], {"model": model, "dist": SimpleNamespace(get_world_size=lambda: 16)})
    sharding, world = import_sharding("today.json", MODEL)
    assert (str(sharding), world) == (str(parse_sharding(layout, TABLES)), 16)


class _Tables:
    """What an exporter asks of a plan, without its price."""

    model = MODEL
    cluster = resolve_cluster("dgx-h100", 16)

    def __init__(self, sharding: Sharding) -> None:
        self.sharding = sharding


def _back(tables: Any) -> tuple[Sharding, int]:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        path.write_text(export_sharding(tables).text)
        return import_sharding(path, MODEL)


def test_shards_by_hand() -> None:
    """1,001 rows over 16 ranks: ⌈1001 / 16⌉ = 63 each, and 56 on the last; 7 rows: one each, then none."""
    text = export_sharding(plan_of("table:0=row table:1=column2@3,9 table:2=row table:3=copy")).text
    tables = json.loads(text)["plan"]["embedding_bag_collection"]
    row = tables["a_0"]["sharding_spec"]["shards"]
    assert [one["shard_sizes"][0] for one in row] == [63] * 15 + [56]
    assert row[9]["placement"] == "rank:9/cuda:1"
    assert [one["shard_sizes"][0] for one in tables["b"]["sharding_spec"]["shards"]] == [1] * 7 + [0] * 9
    column = tables["a_1"]
    assert [column[key] for key in KEYS] == ["column_wise", "fused", [3, 9]]
    assert [one["shard_offsets"] for one in column["sharding_spec"]["shards"]] == [[0, 0], [0, 32]]
    copies = dict(zip(KEYS, ("data_parallel", "dense", list(range(16))), strict=True))
    assert tables["c"] == copies | {"sharding_spec": None}


def test_what_torchrec_lacks_is_refused_by_table() -> None:
    with pytest.raises(InputError) as raised:
        export(plan_of("table:0=hot(0.1)+row table:1=row table:2=row2@0,1 table:3=whole@0"), "torchrec")
    assert [one.where for one in raised.value.problems] == ["table:0", "table:2"]


def test_files_that_say_otherwise_are_refused(tmp_path: Path) -> None:
    for change, says in [
        (lambda plan: plan.pop("b"), "not of the plan"),
        (lambda plan: plan.update(z=plan["b"]), "not of the model"),
        (lambda plan: plan["b"].update(sharding_type="grid_shard"), "no way to shard"),
        (lambda plan: plan["b"].update(ranks=[99]), "ranks beyond"),
        (lambda plan: plan["b"].update(compute_kernel="key_value"), "not known here"),
        (lambda plan: plan["b"]["sharding_spec"]["shards"].pop(), "no equal cut"),
        (lambda plan: plan["b"].pop("ranks"), "ParameterSharding"),
    ]:
        fields = json.loads(export_sharding(plan_of("table:0-3=row")).text)
        change(fields["plan"]["embedding_bag_collection"])
        (tmp_path / "plan.json").write_text(json.dumps(fields))
        with pytest.raises(InputError) as raised:
            import_sharding(tmp_path / "plan.json", MODEL)
        assert says in str(raised.value)


def test_what_runs_today_is_priced_beside_the_best(tmp_path: Path) -> None:
    today = plan_of("table:0-3=whole@0,0,0,0", gpus=4)
    (path := tmp_path / "today.json").write_text(export(today, "torchrec").text)
    answer = import_plan(path, MODEL, "dgx-h100", global_batch=1024)
    assert str(answer.today.sharding) == str(today.sharding)
    assert answer.today.estimate.step_seconds == pytest.approx(today.prediction.step_seconds)
    assert answer.best.estimate.step_seconds <= answer.today.estimate.step_seconds
