"""Rows of tables: hashed keys find theirs again; caches have the vectors of the table and the predicted hits."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from effort import few
from recommending import model, save_and_resume, trained
from test_recommender_parity import ALONE, EXACT, NEAR, TOLERANCE, stray

from cost_models.defaults import OWN_STACK
from cost_models.errors import InputError
from cost_models.files.catalog import load_cluster
from cost_models.recommender.accesses import accesses_of, lru_curve
from cost_models.recommender.question import complete_recommender
from cost_models.specs.recommender.model import Interaction, RecommenderSpec, TableSpec
from cost_models.specs.recommender.sharding import parse_sharding
from cost_models.specs.recommender.training import RecommenderTraining
from executor.data.clicks import RecordedClicks
from executor.embeddings.bags import Bags, CachedSets, HottestRows, pooled
from executor.embeddings.collection import all_slices
from executor.embeddings.exchanges import Places
from executor.embeddings.holding import EMPTY, LOAD, KeyTable
from executor.emulate.dry_run import build_shards_without_devices
from planner.recommender.plan import make_recommender_plan

WITHOUT_HOT_ROWS = {name: sharding for name, sharding in NEAR.items() if "hot" not in sharding}
MIXED = (
    "table:0=row3@1,0,1 table:1=row2@0,0 table:2-3=column2@1,0,0,1/cached(0.4) table:4=row/host"
    " table:5=node-row@0"
)


def test_keys_find_the_rows_that_they_got() -> None:
    """As a dict would, batch after batch until every row is taken, keys of both signs and any size among them."""
    draw, table, known = torch.Generator().manual_seed(0), KeyTable(500, torch.device("cpu"), name="t"), {}
    pool = torch.randint(-(1 << 62), 1 << 62, (500,), generator=draw)
    for first in range(0, 500, 50):
        keys = pool[: first + 50][torch.randperm(first + 50, generator=draw)]
        found = table.find(keys)
        assert found.tolist() == [known.get(key, -1) for key in keys.tolist()]
        new = keys[found < 0]
        known |= dict(zip(new.tolist(), table.add(new).tolist(), strict=True))
    assert sorted(known.values()) == list(range(500))
    assert dict(zip(table.by_row().tolist(), range(500), strict=True)) == known
    assert table.nbytes == 500 / LOAD * 16
    with pytest.raises(InputError, match="`t` has no row left for 1 new keys: all 500"):
        table.add(torch.tensor([7]))
    table.clear()
    assert (table.by_row() == EMPTY).all()


@few(1)
@pytest.mark.parametrize(
    ("combiner", "optimizer"), [("sum", "sgd"), ("mean", "rowwise-adagrad"), ("concat", "adam")]
)
def test_keys_train_what_direct_rows_train(combiner: str, optimizer: str, processes) -> None:
    """Ids are row numbers here, so that every key has a direct row with which it begins."""
    (direct,) = processes.run(1, trained, model(combiner), [ALONE], optimizer, None, 2)[0]
    spec, shardings = model(combiner, hashed=True), EXACT | WITHOUT_HOT_ROWS | {"mixed": MIXED}
    (alone,) = processes.run(1, trained, spec, [ALONE], optimizer, None, 2)[0]
    assert stray(alone, direct) == 0.0
    runs = processes.run(2, trained, spec, [*shardings.values()], optimizer)[0]
    strays = dict(zip(shardings, (stray(run, direct) for run in runs), strict=True))
    assert {name: strays[name] for name in EXACT} == dict.fromkeys(EXACT, 0.0)
    assert max(strays.values()) <= TOLERANCE, strays


def test_keys_go_on_in_any_sharding(processes, tmp_path) -> None:
    """One process → two → four → one, against direct rows in one process throughout."""
    spec, folder = model("mean", hashed=True), tmp_path / "saved"
    nodes = (
        "table:0=row table:1=row2@2,2 table:2=node-row2@1,0 table:3=copy table:4=column3@3,0,1 table:5=row"
    )
    stages = [(1, ALONE, False, None), (2, MIXED, True, None), (4, nodes, True, 2), (1, ALONE, True, None)]
    job = ("adam", tmp_path / "direct")
    expected = processes.run(1, save_and_resume, model("mean"), ALONE, *job, False, 8, None)[0]
    curve: list[float] = []
    for ranks, sharding, resume, per_node in stages:
        run = processes.run(ranks, save_and_resume, spec, sharding, "adam", folder, resume, 2, per_node)[0]
        curve += run[0]
    assert curve == pytest.approx(expected[0], abs=TOLERANCE)
    assert max(float(abs(run[1][name] - rows).max()) for name, rows in expected[1].items()) <= TOLERANCE


@pytest.mark.parametrize(
    "layout",
    [
        "table:0-1=whole@0,1",
        "table:0-1=row",
        "table:0-1=copy",
        "table:0=whole@0/host table:1=row/cached(0.25)",
    ],
)
def test_bytes_of_keys_are_those_that_are_priced(layout: str) -> None:
    """Rows, and 32 B for the key of each: on the device also of rows in host memory."""
    spec = RecommenderSpec(
        tables=tuple(TableSpec(name=name, rows=4096, width=8, hashed=True) for name in "ab"),
        interaction=Interaction(kind="none"),
        dense_features=4,
        top_mlp=(8, 1),
    )
    cluster = load_cluster("dgx-h100").model_copy(update={"nodes": 1, "gpus_per_node": 2})
    job = RecommenderTraining(global_batch=64, precision="fp32")
    question = complete_recommender(spec, cluster, job, stack=OWN_STACK)
    plan = make_recommender_plan(question, parse_sharding(layout, 2))
    for one in build_shards_without_devices(plan):
        assert one.table_bytes == one.predicted_table_bytes
        keys = one.rows * 2 * 16
        assert one.table_bytes + one.host_bytes == one.rows * 8 * 4 + keys


def test_recorded_ids_of_any_size_are_keys(tmp_path) -> None:
    tables = TableSpec(name="c", rows=10, width=4, count=26, hashed=True)
    spec = RecommenderSpec(tables=(tables,), bottom_mlp=(4,), top_mlp=(8, 1))
    fields = ["1", *(str(number) for number in range(13)), *(f"{0xFFFFFF00 + at:x}" for at in range(26))]
    (tmp_path / "a.tsv").write_text("\t".join(fields) + "\n", "utf-8")
    ids = RecordedClicks(tmp_path / "a.tsv", spec, 1).slice(0, 0, 1).ids
    assert [bags.values.tolist() for bags in ids] == [[0xFFFFFF00 + at] for at in range(26)]


def test_hot_rows_of_keys_are_refused() -> None:
    spec = model(hashed=True)
    tables = [spec.classes[index] for index in spec.class_of_table]
    sharding = parse_sharding("table:0=hot(0.1)+row table:1-5=row", 6)
    with pytest.raises(InputError, match="which keys are hot"):
        all_slices(tables, sharding, Places(2, 2))


ROWS, HELD, BATCH = 50_000, 4096, 512
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Batches are small: threads would wait for one another longer than they work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def zipf_ids(exponent: float, count: int, seed: int = 0) -> np.ndarray:
    weights = np.arange(1.0, ROWS + 1) ** -exponent
    rng = np.random.default_rng(seed)
    return rng.permutation(ROWS)[rng.choice(ROWS, count, p=weights / weights.sum())]


def table() -> torch.Tensor:
    return torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(0))


def each(ids: torch.Tensor) -> Bags:
    """Bags of one id."""
    return Bags(ids, torch.ones(len(ids), dtype=torch.int32))


def replay(cache: HottestRows | CachedSets, ids: np.ndarray, warm: int) -> None:
    """All ids in batches; the first `warm` of them are not counted."""
    for place, batch in enumerate(torch.from_numpy(ids).split(BATCH)):
        if place * BATCH >= warm > 0:
            cache.counts.clear()
            warm = 0
        cache.look_up(each(batch))


def shares(cache: HottestRows | CachedSets) -> tuple[float, float]:
    """(lookups of rows that the cache had when their batch came, lookups that caused no copy) of all."""
    counts = cache.counts
    return counts["hits"] / counts["lookups"], 1 - counts["fetched"] / counts["lookups"]


@pytest.mark.parametrize("kind", ["hottest", "lru", "lfu"])
def test_vectors_are_those_of_the_table(kind: str) -> None:
    rows = table()
    ids = zipf_ids(1.0, 20_000)
    cache = (
        HottestRows(rows, 300, CPU) if kind == "hottest" else CachedSets(rows, 300, kind, CPU, ways=4)  # type: ignore[arg-type]
    )
    for batch in torch.from_numpy(ids).split(501):
        assert torch.equal(cache.look_up(each(batch)), rows[batch])
    assert cache.counts["lookups"] == 20_000
    assert 0 < cache.counts["hits"] < 20_000


@pytest.mark.parametrize("kind", ["hottest", "lru"])
def test_bags_add_up_what_the_cache_has_and_what_it_lacks(kind: str) -> None:
    rows = table()
    cache = CachedSets(rows, 320, "lru", CPU) if kind == "lru" else HottestRows(rows, 300, CPU)
    ids = torch.from_numpy(zipf_ids(1.0, 3000)) % 900
    bags = Bags(ids, torch.tensor([0, 1, 2, 7, 0] * 300, dtype=torch.int32))
    for _ in range(2):
        torch.testing.assert_close(cache.look_up(bags), pooled(rows, bags))
    assert 0 < cache.counts["hits"] < 6000


def test_an_empty_cache_and_an_empty_batch() -> None:
    rows = table()
    nothing = HottestRows(rows, 0, CPU)
    ids = torch.tensor([5, 5, 9])
    assert torch.equal(nothing.look_up(each(ids)), rows[ids])
    assert nothing.counts["fetched"] == 2
    assert nothing.look_up(each(ids[:0])).shape == (0, 4)
    assert CachedSets(rows, 64, "lru", CPU).look_up(each(ids[:0])).shape == (0, 4)


@pytest.mark.parametrize("exponent", [0.8, 0.9, 1.0, 1.1, 1.2])
def test_hits_under_zipf_are_within_a_point_of_the_prediction(exponent: float) -> None:
    accesses = accesses_of(TableSpec(name="a", rows=ROWS, width=4, zipf=exponent))
    ids = zipf_ids(exponent, 120_000)
    by_rank = np.random.default_rng(0).permutation(ROWS)  # as `zipf_ids` deals numbers to ranks
    hottest = HottestRows(table(), HELD, CPU)
    replay(hottest, np.argsort(by_rank)[ids], 0)
    assert shares(hottest)[0] == pytest.approx(accesses.hits(HELD), abs=0.01)

    last = CachedSets(table(), HELD, "lru", CPU)
    replay(last, ids, 60_000)
    assert shares(last)[1] == pytest.approx(lru_curve(accesses).hits(HELD), abs=0.01)

    most = CachedSets(table(), HELD, "lfu", CPU)
    replay(most, ids, 60_000)
    assert shares(last)[1] < shares(most)[1] < accesses.hits(HELD) + 0.01
