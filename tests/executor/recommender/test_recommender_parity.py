"""Every sharding trains the model that one process trains, to the bit where no sum changes its order, and resumes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from effort import few
from recommending import BATCH, RATE, STEPS, engine_and_clicks, model, save_and_resume, trained

from cost_models.arrays import Array
from cost_models.files.catalog import load_recommender
from cost_models.files.loading import resolve_cluster
from cost_models.recommender.options import STAGES
from cost_models.recommender.prices import fixed_seconds, links_of, reduction_seconds
from cost_models.recommender.question import complete_recommender
from cost_models.specs.recommender.training import RecommenderTraining

ALONE = "table:0-5=whole@0,0,0,0,0,0"
EXACT = {
    "whole": "table:0-5=whole@0,1,0,0,1,0",
    "whole, a rank without a table": "table:0-5=whole@1,1,1,1,1,1",
    "column": "table:0=column2@1,0 table:1=column3@0,1,0 table:2-3=column8@0,1,0,1,0,1,0,1,1,0,1,0,1,0,1,0"
    " table:4-5=whole@1,0",
    "host": "table:0-3=whole@0,1,0,1/host table:4-5=whole@1,1/cached(0.3)",
}
NEAR = {
    "row": "table:0-5=row",
    "copy": "table:0-5=copy",
    "node-row": "table:0-3=node-row@0,0,0,0 table:4-5=whole@0,1",
    "hot": "table:0=hot(0.1)+row table:1=hot(0.4)+whole@1 table:2-3=hot(0.3)+column2@0,1,1,0 table:4=copy"
    " table:5=hot(0.2)+row/cached(0.5)",
    "some rows": "table:0=row3@1,0,1 table:1=row2@0,0 table:2-3=hot(0.1)+row2@1,0,0,1/cached(0.4) table:4=row2@0,1"
    " table:5=node-row@0",
    "row/host": "table:0-5=row/host",
}
TOLERANCE = 1e-6
Run = tuple[list[float], dict[str, Array]]


def stray(got: Run, wanted: Run) -> float:
    """How far losses or any element of any table, or dense weight, ended from where they should."""
    apart = [float(abs(got[1][name] - rows).max()) for name, rows in wanted[1].items()]
    return max([*apart, *(abs(a - b) for a, b in zip(got[0], wanted[0], strict=True))])


@pytest.mark.parametrize("optimizer", ["sgd", "rowwise-adagrad", "adagrad", "adam"])
@pytest.mark.parametrize("combiner", ["sum", "mean", "concat"])
@few(2)
def test_two_processes_train_what_one_does(combiner: str, optimizer: str, processes) -> None:
    spec = model(combiner)
    shardings = [*EXACT.values(), *NEAR.values()]
    (alone,) = processes.run(1, trained, spec, [ALONE], optimizer, None, 2)[0]
    assert min(abs(way).max() for way in alone[1].values()) > 10 * TOLERANCE
    runs = dict(zip([*EXACT, *NEAR], processes.run(2, trained, spec, shardings, optimizer)[0], strict=True))
    strays = {name: stray(run, alone) for name, run in runs.items()}
    assert {name: apart for name, apart in strays.items() if name in EXACT} == dict.fromkeys(EXACT, 0.0)
    assert max(strays.values()) <= TOLERANCE, strays


def test_four_processes_in_two_nodes_train_what_one_does(processes) -> None:
    """Rows inside a node, ranks without a table, slices on some of the ranks; and products of pairs of vectors."""
    spec = model("mean", "dot")
    shardings = [
        "table:0=node-row2@1,0 table:1-3=node-row@0,0,1 table:4=whole@3 table:5=row3@3,1,0",
        "table:0=hot(0.1)+node-row@1/cached(0.2) table:1=copy table:2-3=column2@3,0,1,2 table:4-5=whole@2,2",
    ]
    (alone,) = processes.run(1, trained, spec, [ALONE], "rowwise-adagrad", None, 4)[0]
    for run in processes.run(4, trained, spec, shardings, "rowwise-adagrad", 2)[0]:
        assert stray(run, alone) <= TOLERANCE


def test_eight_processes_train_what_one_does(processes) -> None:
    """Cross layers; more ranks than tables, and than rows of one."""
    spec = model("sum", "dcn-v2")
    exact, near = (
        "table:0-5=whole@7,5,0,2,1,3",
        "table:0=row table:1=row table:2-3=column8@0,1,2,3,4,5,6,7,7,6,5,4,3,2,1,0 table:4=node-row@1 table:5=copy",
    )
    (alone,) = processes.run(1, trained, spec, [ALONE], "adagrad", None, 8)[0]
    runs = processes.run(8, trained, spec, [exact, near], "adagrad", 4)[0]
    assert stray(runs[0], alone) == 0.0
    assert stray(runs[1], alone) <= TOLERANCE


def test_clipping_is_by_the_norm_over_all_ranks(processes) -> None:
    """Two processes and one clip alike, to the bit; the dense network goes no farther than the norm lets it."""
    spec, clip = model("sum"), 0.01
    (alone,) = processes.run(1, trained, spec, [ALONE], "sgd", None, 2, BATCH, clip)[0]
    (together,) = processes.run(2, trained, spec, [EXACT["whole"]], "sgd", None, 1, BATCH, clip)[0]
    (free,) = processes.run(1, trained, spec, [ALONE], "sgd", None, 2)[0]
    assert stray(together, alone) == 0.0
    dense = [name for name in alone[1] if name not in spec.table_names]

    def way(run: Run) -> float:
        return float(sum((run[1][name] ** 2).sum() for name in dense)) ** 0.5

    assert way(alone) <= STEPS * RATE * clip * (1 + TOLERANCE) < way(free)
    assert abs(alone[1]["many"] - free[1]["many"]).max() < abs(free[1]["many"]).max()


_LONGEST = 20.0


def test_sums_arrive_while_the_tables_are_at_work(processes) -> None:
    """Rank 1 stays away from the tables' exchange, and from its rows, until the dense network's messages are here: so
    they travel while rank 0 is in that exchange, and while rows are updated."""
    assert processes.run(2, _held_back, model())[1] == ["shares", "sums"]


def _held_back(spec: Any) -> list[str]:
    import torch.distributed as dist

    training = RecommenderTraining(global_batch=BATCH, precision="fp32")
    engine, clicks = engine_and_clicks(spec, "table:0-5=whole@0,1,0,0,1,0", training, jagged=False)
    arrived: list[str] = []

    def after(what: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def held(*arguments: Any) -> Any:
            work, until = engine._sums._message[1], time.monotonic() + _LONGEST
            assert work is not None
            while not work.is_completed():
                assert time.monotonic() < until, f"{what} do not travel beside the tables"
                time.sleep(1e-3)
            arrived.append(what)
            return call(*arguments)

        return held

    if dist.get_rank() == 1:
        tables = engine.embeddings
        tables.backward_exchange = after("shares", tables.backward_exchange)  # type: ignore[method-assign]
        tables.update = after("sums", tables.update)  # type: ignore[method-assign]
    engine.set_rate(0.1)
    engine.step(clicks(0))
    return arrived


def test_the_price_has_them_behind_the_update_where_devices_have_links_of_their_own() -> None:
    training, update = RecommenderTraining(global_batch=4096), STAGES.index(STAGES.update)
    for cluster, hidden in (("dgx-h100", True), ("local", False)):
        question = complete_recommender(
            load_recommender("dlrm-tiny"), resolve_cluster(cluster, 8), training, stack="meshwright"
        )
        fixed, beside = (of[update] for of in fixed_seconds(question, links_of(question)))
        seconds = reduction_seconds(question, links_of(question))
        assert (beside == seconds) if hidden else (beside == 0 and fixed > seconds), cluster


MIXED = (
    "table:0=hot(0.1)+row table:1=row/cached(0.3) table:2-3=column2@1,0,0,0 table:4=copy table:5=whole@1/host"
)
NODES = (
    "table:0=row table:1=row2@2,2 table:2=node-row2@1,0 table:3=node-row@1 table:4=hot(0.3)+column3@3,0,1"
    " table:5=row"
)


@few(2)
@pytest.mark.parametrize("optimizer", ["sgd", "rowwise-adagrad", "adagrad", "adam"])
def test_any_sharding_goes_on_where_another_stopped(optimizer: str, processes, tmp_path) -> None:
    """One process → two → four in two nodes → one, against one process throughout; and the second once more."""
    spec, folder = model("mean"), tmp_path / "saved"
    expected, _, _ = processes.run(1, save_and_resume, spec, ALONE, optimizer, tmp_path / "alone", False, 8)[
        0
    ]
    curve = processes.run(1, save_and_resume, spec, ALONE, optimizer, folder, False, 2)[0][0]
    two = processes.run(2, save_and_resume, spec, MIXED, optimizer, folder, True, 2)[0]
    four = processes.run(4, save_and_resume, spec, NODES, optimizer, folder, True, 2, 2)[0]
    curve += two[0] + four[0]
    last = processes.run(1, save_and_resume, spec, ALONE, optimizer, folder, True, 2)[0]
    curve += last[0]
    assert curve == pytest.approx(expected, abs=TOLERANCE)
    assert two[2][0].endswith(f"after step 2, saved as {ALONE} on 1 GPUs")


def test_resuming_is_exact(processes, tmp_path) -> None:
    """The same ranks and sharding, stopped in the middle: every loss and every row to the bit."""
    spec = model("sum")
    whole = processes.run(4, save_and_resume, spec, NODES, "adam", tmp_path / "whole", False, 6, 2)[0]
    first = processes.run(4, save_and_resume, spec, NODES, "adam", tmp_path / "parts", False, 3, 2)[0]
    then = processes.run(4, save_and_resume, spec, NODES, "adam", tmp_path / "parts", True, 3, 2)[0]
    assert first[0] + then[0] == whole[0]
    assert all((then[1][name] == rows).all() for name, rows in whole[1].items())
