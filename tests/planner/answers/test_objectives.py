"""Objectives and frontiers against every plan of small questions."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from asking import change
from small import small_question

from cost_models.axes.stages import mix_of
from cost_models.errors import InfeasibleError, InputError, RunError
from cost_models.estimate import Estimate
from cost_models.files.catalog import load_operations
from cost_models.pipeline.pricing import estimate
from cost_models.question import Question
from cost_models.reliability import forecast, job_of
from cost_models.specs.choices import RECOMPUTE_POLICIES
from cost_models.specs.cluster import OperationsSpec
from planner.answers import frontier
from planner.answers.frontier import exact_frontier, frontier_frame, heatmap_frame, pareto_frame
from planner.answers.optimum import answered_question, optimise
from planner.objectives import Objective, training_steps
from planner.plan import load_plan, make_plan, save_plan
from planner.search import search as search_module
from planner.search.search import Budget, search, search_on
from planner.space import space
from planner.space.restrictions import Restrictions, parse_restrictions
from planner.space.sizes import resized
from planner.space.space import enumerate_layouts

FEW = ("vpp=1", "mbs=1", "zero=1", "schedule=1f1b", "pp=1,2")
"""Axes fixed so that everything can be priced."""


def few_layouts(memory: str = "220 MiB") -> tuple[Question, Restrictions]:
    """A question and restrictions that leave some thousand plans."""
    return small_question(memory=memory), parse_restrictions(FEW, ["sp=0"])


def every_plan(question: Question, restrictions: Restrictions) -> list[Estimate]:
    """All placements of all layouts, every stage with every number of blocks under every policy."""
    columns = enumerate_layouts(question, restrictions)
    found = []
    for row in range(len(columns)):
        layout = columns.layout(row)
        for layers in _sizes(question.model.num_layers, layout.num_stages):
            for recompute in product(*(_mixes(blocks) for blocks in layers)):
                placed = layout.model_copy(update={"layers": layers, "recompute": recompute})
                found.append(estimate(question, type(layout)(**placed.model_dump())))
    return found


def _sizes(blocks: int, stages: int) -> list[tuple[int, ...]]:
    if stages == 1:
        return [(blocks,)]
    return [(first, *rest) for first in range(1, blocks) for rest in _sizes(blocks - first, stages - 1)]


def _mixes(blocks: int) -> list[str]:
    counts = product(range(blocks + 1), repeat=len(RECOMPUTE_POLICIES))
    return [mix_of(each) for each in counts if sum(each) == blocks]


SIZES = (1, 2, 4)
PLAIN = Objective()


def with_tokens(question: Question, tokens: float = 1e9) -> Question:
    return change(question, training={"tokens": tokens})


@pytest.fixture(scope="module")
def asked() -> Question:
    return with_tokens(small_question(memory="220 MiB"))


@pytest.fixture(scope="module")
def roomy() -> Question:
    """One that fits on a single GPU."""
    return with_tokens(small_question(memory="500 MiB"))


def test_the_last_step_may_be_part_full(asked: Question) -> None:
    """8 x 256 tokens a step: 1e9 of them take 488,281.25 steps, so one more than 488,281."""
    assert training_steps(asked) == 488_282
    assert PLAIN.gpu_hours(asked, 3600.0) == 4 * 488_282


@pytest.mark.parametrize("memory", ["220 MiB", "130 MiB"])
def test_least_memory_is_that_of_all_plans(memory: str) -> None:
    question, few = few_layouts(memory)
    found = optimise(question, Objective(name="memory"), restrictions=few)
    least = min(plan.peak_bytes for plan in every_plan(question, few))
    assert found.value == pytest.approx(least, rel=1e-9)
    assert found.gap <= 2e-9
    assert found.result.best.memory_limit == search(question, restrictions=few).best.memory_limit


def test_least_memory_within_a_deadline(asked: Question) -> None:
    """Between the extremes: not the least of all plans, and in time."""
    _, few = few_layouts()
    plans = every_plan(asked, few)
    seconds = sorted(PLAIN.training_seconds(asked, plan.step_seconds) for plan in plans if plan.fits)
    deadline = seconds[len(seconds) // 4]
    objective = Objective(name="memory", deadline=deadline)
    found = optimise(asked, objective, restrictions=few)
    in_time = [
        p.peak_bytes for p in plans if p.fits and PLAIN.training_seconds(asked, p.step_seconds) <= deadline
    ]
    assert found.value == pytest.approx(min(in_time), rel=1e-9)


def test_highest_mfu_counts_the_padding_of_the_vocabulary() -> None:
    question, few = few_layouts()
    found = optimise(question, Objective(name="mfu"), restrictions=few)
    best = max(plan.mfu for plan in every_plan(question, few) if plan.fits)
    assert found.value == pytest.approx(best, rel=1e-9)
    assert found.gap == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("name", ["time", "gpu-hours", "mfu", "memory"])
def test_the_best_number_of_gpus(roomy: Question, name: str) -> None:
    objective = Objective(name=name)  # type: ignore[arg-type]
    few = parse_restrictions(["vpp=1", "schedule=1f1b", "mbs=1", "cp=1", "zero=0,1"], ["sp"])
    found = optimise(roomy, objective, sizes=SIZES, top=3, restrictions=few)
    each = [optimise(resized(roomy, gpus), objective, top=3, restrictions=few) for gpus in SIZES]
    losses = [objective.measure.loss(one.value) for one in each]
    assert objective.measure.loss(found.value) == min(losses)
    assert found.question.cluster.num_gpus == SIZES[losses.index(min(losses))]
    assert found.result.certificate.layouts == sum(one.result.certificate.layouts for one in each)
    values = [objective.measure.loss(found.value_of(one)) for one in found.result.estimates]
    assert values == sorted(values)
    assert found.gap <= 2e-9


def test_fewest_gpus_that_meet_a_deadline(roomy: Question) -> None:
    days = {
        gpus: PLAIN.training_seconds(roomy, search(resized(roomy, gpus)).best.step_seconds) for gpus in (2, 4)
    }
    objective = Objective(name="gpus", deadline=(days[2] + days[4]) / 2)
    found = optimise(roomy, objective, sizes=SIZES)
    assert found.value == found.bound == 4
    assert [gpus for gpus, _ in found.left_out] == [1, 2]
    assert "at least" in found.left_out[-1][1]
    with pytest.raises(InfeasibleError, match="no plan of small trains on 1 B tokens within") as caught:
        optimise(roomy, Objective(name="gpus", deadline=days[4] / 2), sizes=SIZES)
    assert [problem.where for problem in caught.value.problems] == ["1 GPU", "2 GPUs", "4 GPUs"]


def test_what_an_objective_needs() -> None:
    for objective, missing in [
        (Objective(name="gpu-hours"), ["--tokens"]),
        (Objective(name="cost"), ["--tokens", "--price"]),
        (Objective(name="gpus"), ["--deadline"]),
        (Objective(name="time", price=1.0), ["--price"]),
        (Objective(name="time", deadline=1.0), ["--tokens"]),
    ]:
        with pytest.raises(InputError) as caught:
            optimise(small_question(), objective)
        assert [problem.where for problem in caught.value.problems] == missing


def interrupt_after(searches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    left = [searches]

    def interrupted(*args: object, **kwargs: object) -> object:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return search_on(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(search_module, "search_on", interrupted)


@pytest.mark.parametrize("name", ["gpu-hours", "memory", "mfu"])
def test_interrupts_keep_the_best(roomy: Question, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt_after(1, monkeypatch)
    objective = Objective(name=name)  # type: ignore[arg-type]
    found = optimise(roomy, objective, sizes=SIZES, budget=Budget(keep_on_interrupt=True))
    assert found.result.best.fits
    assert found.gap == 1
    assert found.left_out == ((2, "interrupted"), (4, "interrupted"))
    interrupt_after(1, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        optimise(roomy, objective, sizes=SIZES)


@pytest.mark.parametrize("name", ["time", "mfu", "gpu-hours"])
@pytest.mark.parametrize("operations", [None, "llama3"])
def test_an_unproved_search_leaves_the_answer_open(
    roomy: Question, name: str, operations: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a recompute policy of a trainer had no time."""
    whole = search(roomy)
    proof = whole.certificate.model_copy(update={"undecided": 1, "bound": 0.0, "gap": 1.0})
    monkeypatch.setattr(search_module, "search_on", lambda *_, **__: replace(whole, certificate=proof))
    failures = None if operations is None else load_operations(operations)
    objective = Objective(name=name, operations=failures)  # type: ignore[arg-type]
    found = optimise(roomy, objective)
    assert found.result.best == whole.best
    assert found.gap == 1
    days = objective.training_seconds(roomy, whole.best.step_seconds)
    with pytest.raises(RunError, match="faster ones are not ruled out"):
        optimise(roomy, replace(objective, deadline=days / 2))


def test_an_objective_is_kept_in_the_plan(roomy: Question, tmp_path: Path) -> None:
    found = optimise(roomy, Objective(name="gpu-hours"), sizes=SIZES, top=1)
    plan = make_plan(found.question, found.result.best, found.result.certificate, None, found.for_file(4))
    save_plan(plan, tmp_path / "plan.yaml")
    read = load_plan(tmp_path / "plan.yaml")
    assert read.objective == plan.objective
    again = optimise(answered_question(read), read.objective.terms, sizes=read.objective.gpus, top=1)
    assert again.value == found.value
    assert optimise(roomy, Objective()).for_file(4) is None


def test_failures_lengthen_training_and_the_choice_of_gpus_counts_them(roomy: Question) -> None:
    """More GPUs fail more often, so that a deadline may need more of them than without failures."""
    times = {"detection": "1 min", "restart": "5 min", "storage_write": "10 GB/s"}
    rare, often = (
        OperationsSpec.model_validate({"name": "some", "mtbf": mtbf} | times) for mtbf in ("100000 h", "8 h")
    )
    steps = {gpus: search(resized(roomy, gpus)).best.step_seconds for gpus in SIZES}
    for gpus in SIZES:
        asked = resized(roomy, gpus)
        plain, few, many = (
            Objective(operations=one).training_seconds(asked, steps[gpus]) for one in (None, rare, often)
        )
        assert plain < few < many
        assert few == pytest.approx(forecast(job_of(asked, steps[gpus]), rare).seconds)
    deadline = 1.02 * PLAIN.training_seconds(resized(roomy, 2), steps[2])
    assert optimise(roomy, Objective(name="gpus", deadline=deadline), sizes=SIZES).value == 2
    counted = Objective(name="gpus", deadline=deadline, operations=often)
    found = optimise(roomy, counted, sizes=SIZES)
    assert found.value == 4
    assert found.gap == 0


def test_a_bound_with_failures_is_a_bound(asked: Question) -> None:
    often = load_operations("llama3").model_copy(update={"mtbf": 60 * 3600.0, "spares": 1})
    objective = Objective(name="gpu-hours", operations=often)
    seconds = np.geomspace(1e-3, 300.0, 40)
    hours = [objective.gpu_hours(asked, float(step)) for step in seconds]
    assert hours == sorted(hours)
    found = optimise(asked, objective)
    assert found.value >= found.bound > 0
    assert found.gap <= 2e-9


TIME, MEMORY, HOURS = Objective(name="time"), Objective(name="memory"), Objective(name="gpu-hours")


def unbeaten(pairs: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Those that no other beats, the first rising."""
    kept: list[tuple[float, float]] = []
    for pair in sorted(pairs):
        if not kept or pair[1] < kept[-1][1] * (1 - 1e-9):
            if kept and pair[0] <= kept[-1][0] * (1 + 1e-9):
                kept.pop()
            kept.append(pair)
    return kept


def test_time_against_memory_is_the_frontier_of_all_plans() -> None:
    question, few = few_layouts()
    found = exact_frontier(question, (TIME, MEMORY), points=None, restrictions=few)
    fitting = [plan for plan in every_plan(question, few) if plan.fits]
    expected = unbeaten([(plan.step_seconds, plan.peak_bytes) for plan in fitting])
    walked = [(point.estimate.step_seconds, point.estimate.peak_bytes) for point in found.points]
    assert found.complete
    assert len(walked) == len(expected) > 3
    for mine, right in zip(walked, expected, strict=True):
        assert mine == pytest.approx(right, rel=1e-8)


def test_a_few_points_are_some_of_all_with_both_ends() -> None:
    question, few = few_layouts()
    everything = exact_frontier(question, (TIME, MEMORY), points=None, restrictions=few)
    some = exact_frontier(question, (TIME, MEMORY), points=4, restrictions=few)
    layouts = [str(point.estimate.layout) for point in everything.points]
    chosen = [layouts.index(str(point.estimate.layout)) for point in some.points]
    assert not some.complete
    assert len(chosen) <= 5
    assert (chosen[0], chosen[-1]) == (0, len(layouts) - 1)


def test_time_against_gpu_hours_has_the_fastest_of_each_size() -> None:
    question = with_tokens(small_question(memory="500 MiB"))
    found = exact_frontier(question, (TIME, HOURS), sizes=SIZES)
    each = [(resized(question, gpus), search(resized(question, gpus), top=1).best) for gpus in SIZES]
    pairs = [(one.step_seconds, HOURS.value(there, one)) for there, one in each]
    frame = pareto_frame(found)
    assert list(zip(frame["time"], frame["gpu-hours"], strict=True)) == unbeaten(pairs)
    assert frame["proven"].all()


def test_no_layout_of_the_cloud_lies_above_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that look better are priced in full; of more than there is time for none is shown."""
    question, few = few_layouts()
    chosen = search(question, top=1, restrictions=few).best
    for most in (frontier.MAX_PRICED, 0):
        monkeypatch.setattr(frontier, "MAX_PRICED", most)
        frame = frontier_frame(question, chosen, few, Budget(), exact=True, points=2)
        fits = frame[frame["fits"]]
        line = fits[fits["pareto"]]
        for row in fits[~fits["pareto"]].itertuples():
            as_small = line[line["peak_bytes"] <= row.peak_bytes]
            assert (as_small["step_seconds"] <= row.step_seconds).any(), row
        assert line["proven"].any()
        assert most == 0 or not line["proven"].all()


def test_layouts_are_enumerated_once_for_all_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    question, limits = small_question(4, "220 MiB"), parse_restrictions(forbid=["zero3"])
    chosen = search(question, top=1, restrictions=limits).best.layout
    enumerated = Mock(wraps=space._legal_space)
    monkeypatch.setattr(space, "_legal_space", enumerated)
    cells = heatmap_frame(question, chosen, limits, Budget())
    assert enumerated.call_count == 1
    found = cells[cells["reason"] == ""]
    assert len(found) > 1
    for cell in found.itertuples():
        own = parse_restrictions([f"tp={cell.tp}", f"pp={cell.pp}"], ["zero3"])
        best = search(question, top=1, restrictions=own).best
        assert (cell.layout, cell.step_seconds) == (best.layout.brief, best.step_seconds)


def test_what_a_plan_is_not_searched_for_has_no_cell() -> None:
    """Tensor groups over slow links: no cell is better than the plan, unless the plan itself has such a group."""
    question = small_question(2, "2 GiB")
    links = question.cluster.links
    slow = links.model_copy(update={"inter_node": links.intra_node.faster(0.1)})  # type: ignore[union-attr]
    question = change(question, cluster={"nodes": 2, "links": slow})
    best = search(question, top=1).best
    cells = heatmap_frame(question, best.layout, Restrictions(), Budget())
    over_nodes = cells[cells["tp"] == 4]
    assert set(over_nodes["reason"]) == {"limit", "rule"}
    assert over_nodes["why"].iloc[0].startswith("`tp4` spreads tensor groups over nodes")
    assert cells["step_seconds"].min() == pytest.approx(best.step_seconds)
    asked = search(question, top=1, restrictions=parse_restrictions(["tp=4"])).best
    cells = heatmap_frame(question, asked.layout, Restrictions(), Budget())
    assert "" in set(cells.query("tp == 4")["reason"])
