"""The search equals brute force over all layouts and placements, and its certificate adds up."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from asking import change
from brute import EVERY_POLICY, everything
from effort import few
from small import every_axis, small_question

from cost_models.defaults import complete_question
from cost_models.errors import InfeasibleError, NothingPlacedError, RunError
from cost_models.files.catalog import load_profile
from cost_models.files.loading import resolve_cluster
from cost_models.operators.accumulation import chunks_loss
from cost_models.question import Question
from cost_models.specs.hardware import CurvePoint, HardwareProfile, OperatorCurve
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec
from planner.exact import labels
from planner.exact.solvers import SolverName
from planner.placement.leaf import TOLERANCE
from planner.search import branching
from planner.search import search as search_module
from planner.search.branching import BranchAndBound, SearchResult, SearchSettings, by_speed
from planner.search.candidates import UniformCandidates
from planner.search.search import Budget, close_proof, search, search_on, search_policies
from planner.space.restrictions import Restrictions, parse_restrictions
from planner.space.space import legal_space

QUESTIONS = [
    {"gpus": 4, "memory": "1 GiB"},
    {"gpus": 4, "memory": "220 MiB"},
    {"gpus": 4, "memory": "220 MiB", "optimizer": "lamb"},
    {"gpus": 8, "memory": "150 MiB", "global_batch": 16},
    {"gpus": 2, "memory": "400 MiB", "sequence_length": 512},
    {"gpus": 1, "memory": "8 GiB"},
]

STOPPED = [small_question(memory="220 MiB"), every_axis(small_question(4, "300 MiB", stack="meshwright"))]


def brute_force(question: Question) -> list[float]:
    """The least step time of every layout that fits, best first."""
    found = everything(question)
    return found.best(np.arange(len(found)), EVERY_POLICY, math.inf)[0]


def seconds_of(result: SearchResult) -> list[float]:
    return [found.step_seconds for found in result.estimates]


@pytest.mark.parametrize("settings", QUESTIONS)
def test_search_is_brute_force(settings: dict[str, Any]) -> None:
    question = small_question(**settings)
    exact = brute_force(question)
    result = search(question, top=5)
    assert seconds_of(result) == pytest.approx(exact[:5], rel=10 * TOLERANCE)
    assert all(found.fits for found in result.estimates)
    proof = result.certificate
    assert (proof.gap, proof.undecided) == (0, 0)
    assert proof.bound == pytest.approx(exact[0])
    assert proof.layouts == proof.infeasible + proof.pruned + proof.solved
    assert proof.layouts - proof.infeasible >= len(exact) - proof.pruned


@pytest.mark.parametrize("memory", ["1 GiB", "150 MiB"])
def test_search_is_brute_force_with_the_loss_in_chunks(memory: str) -> None:
    """Which some layouts have and others have not, so bounds must hold for both prices."""
    question = every_axis(small_question(4, memory, stack="meshwright"))
    question = change(question, stack={"loss_chunk": 300})
    result = search(question, top=5)
    assert seconds_of(result) == pytest.approx(brute_force(question)[:5], rel=10 * TOLERANCE)
    assert len(set(chunks_loss(question, everything(question).columns).tolist())) == 2


@pytest.mark.parametrize("settings", QUESTIONS)
def test_what_is_faster_than_a_known_time_is_the_best_or_nothing(settings: dict[str, Any]) -> None:
    question = small_question(**settings)
    least = brute_force(question)[0]
    faster = small_question(**settings | {"memory": "2 GiB"})  # the same layouts with more room
    space = legal_space(question, Restrictions())
    for asked, known in ((question, None), (question, space), (faster, space.with_question(faster))):
        best = brute_force(asked)[0]
        found = Budget().faster_than(least * 1.001, asked, Restrictions(), space=known)
        assert found is not None
        assert found.step_seconds == pytest.approx(best, rel=1e-9)
        assert Budget().faster_than(best * (1 - 1e-6), asked, Restrictions(), space=known) is None


@pytest.mark.parametrize("question", STOPPED)
def test_the_same_question_has_the_same_answer(question: Question) -> None:
    first, second = (search(question) for _ in range(2))
    assert first.estimates == second.estimates
    assert first.certificate.model_copy(update={"seconds": 0.0}) == second.certificate.model_copy(
        update={"seconds": 0.0}
    )


def stands(result: SearchResult, exact: list[float]) -> None:
    """What the certificate of an unfinished search says is so."""
    proof, best = result.certificate, result.best.step_seconds
    assert proof.layouts == proof.infeasible + proof.pruned + proof.solved + proof.undecided
    assert proof.bound <= exact[0] * (1 + TOLERANCE)
    assert exact[0] <= best * (1 + TOLERANCE)
    assert proof.gap == pytest.approx(1 - proof.bound / best)
    assert all(found.fits for found in result.estimates)


@pytest.mark.parametrize("reports", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("question", STOPPED)
def test_interrupted_it_returns_the_best_so_far_with_its_gap(question: Question, reports: int) -> None:
    seen = 0

    def interrupt(_done: int, _total: int, best: float, _bound: float) -> None:
        nonlocal seen
        seen += math.isfinite(best)
        if seen >= reports:
            raise KeyboardInterrupt

    result = search(question, top=3, on_progress=interrupt, keep_on_interrupt=True)
    stands(result, brute_force(question))
    assert result.certificate.undecided > 0 or reports > 1
    assert result.interrupted or seen < reports


@pytest.mark.parametrize("question", STOPPED)
@few(1)
def test_out_of_time_it_has_the_best_so_far(question: Question, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that ticks whenever it is read, so that time runs out everywhere."""
    ticks = count()
    clock = SimpleNamespace(monotonic=lambda: float(next(ticks)))
    for module in (search_module, branching, labels):
        monkeypatch.setattr(module, "time", clock)
    exact, unfinished = brute_force(question), 0
    for limit in (5, 8, 13, 21, 34, 55, 89, 144, 233):
        try:
            result = search(question, top=3, time_limit=float(limit))
        except RunError:
            continue
        stands(result, exact)
        unfinished += result.certificate.undecided > 0
        if not result.certificate.undecided:
            assert seconds_of(result) == pytest.approx(exact[:3], rel=10 * TOLERANCE)
    assert unfinished


def test_a_policy_without_time_leaves_the_others_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its layouts are undecided, and nothing is proven."""
    question, limits = small_question(), parse_restrictions(trainer="torchtitan")
    first, *others = limits.by_recompute(question)
    best = min((search(question, restrictions=one).best for one in others), key=by_speed)
    whole, alone = (search(question, restrictions=one).certificate for one in (limits, first))

    def part(settings: SearchSettings, asked: Question, within: Restrictions) -> SearchResult:
        return search_on(replace(settings, time_limit=0.0 if within == first else math.inf), asked, within)

    monkeypatch.setattr(search_module, "search_on", part)
    found = search_policies(SearchSettings(top=5), question, [first, *others])
    assert found.best == best
    proof = found.certificate
    assert (proof.layouts, proof.space) == (whole.layouts, whole.space)
    assert proof.undecided == alone.layouts
    assert (proof.bound, proof.gap) == (0, 1)
    with pytest.raises(NothingPlacedError, match="time ran out before any layout was placed"):
        search_policies(SearchSettings(top=5), question, [first])


@pytest.mark.parametrize("trainer", [None, "megatron"])
def test_a_search_below_some_seconds(trainer: str | None) -> None:
    question, limits = small_question(), parse_restrictions(trainer=trainer)
    best = search(question, top=1, restrictions=limits)
    seconds = best.best.compared_seconds
    above = search_on(
        SearchSettings(must_beat_seconds=seconds * 1.001, closes_with_ilp=False), question, limits
    )
    assert above.estimates == best.estimates
    assert (above.certificate.gap, above.certificate.settled) == (0, None)
    assert close_proof(above).certificate.settled is not None
    below = search_on(SearchSettings(must_beat_seconds=seconds * 0.999), question, limits)
    assert below.estimates == ()
    proof = below.certificate
    assert (proof.layouts, proof.undecided) == (best.certificate.layouts, 0)
    assert proof.bound == pytest.approx(seconds * 0.999, rel=1e-6)  # not the best that was placed


def test_a_batch_no_layout_divides() -> None:
    with pytest.raises(InfeasibleError, match="is legal with global batch 8"):
        search(small_question(gpus=7))


@pytest.mark.parametrize("solver", ["highs", "cbc"])
def test_a_solver_overlooks_no_byte(solver: SolverName) -> None:
    question = small_question(memory="400 MiB")
    limits = {"fix": ["pp=2", "vpp=2"]}
    best = search(question, top=1, restrictions=parse_restrictions(**limits), solver=solver).best
    less = replace(parse_restrictions(**limits), max_memory=best.peak_bytes * (1 - TOLERANCE))
    second = search(question, top=1, restrictions=less, solver=solver)
    assert second.best.peak_bytes < best.peak_bytes
    assert second.certificate.settled is not None


def test_too_many_rounds_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """GPT-3 with pp64 on 1,024 GPUs, where placements of one or two blocks a stage are countless, never ended."""
    monkeypatch.setattr(branching, "MAX_ROUNDS", 0)
    monkeypatch.setattr(branching, "MIN_ROUNDS", 0)
    question, pipelines = small_question(4, "220 MiB"), parse_restrictions(["pp=2"])
    given_up = search(question, top=1, restrictions=pipelines)
    monkeypatch.undo()
    proved = search(question, top=1, restrictions=pipelines)
    assert proved.certificate.gap == 0
    assert given_up.certificate.undecided > 0
    assert 0 < given_up.certificate.gap < 0.2
    assert given_up.certificate.bound <= proved.best.step_seconds <= given_up.best.step_seconds


MODEL = TransformerSpec.model_validate(
    {"num_layers": 4, "hidden_size": 64, "num_heads": 4, "vocab_size": 256}
)


def measured(**changes: float) -> HardwareProfile:
    points = tuple(CurvePoint(size=size, seconds=1e-9 * size) for size in (1e3, 1e7))
    operators = tuple(OperatorCurve(operator=name, forward=points) for name in ("copy", "add"))
    return load_profile("datasheet-cpu").model_copy(
        update={"tier": "measured", "gpu": "cpu", "stack": "meshwright", "operators": operators}
        | {"measured_peak": 1e11, "measured_bandwidth": 2e10, "contention": 0.1}
        | changes
    )


@pytest.mark.parametrize("processes", [2, 4])
@pytest.mark.parametrize("sharded", [0.0, 3e-3])
def test_the_best_layout_of_a_measured_cpu_is_the_best_of_all(processes: int, sharded: float) -> None:
    cluster = resolve_cluster("local", processes).model_copy(update={"host_cores": 2})
    training = TrainingSpec(global_batch=4, sequence_length=64, precision="fp32")
    question = complete_question(MODEL, cluster, training, profile=measured(sharded_host_seconds=sharded))
    best = min(float(np.min(placed.seconds)) for placed in everything(question).placed)
    assert search(question).best.step_seconds == pytest.approx(best)


def test_layouts_that_are_closed_keep_a_search_open_and_its_bound_low() -> None:
    question = small_question(memory="220 MiB")
    candidates = UniformCandidates(question, Restrictions(), legal_space(question, Restrictions()))
    least = candidates.least_unopened()
    assert least <= brute_force(question)[0] * (1 + TOLERANCE)
    for share, is_open in ((1.05, True), (0.99, False)):
        one = BranchAndBound(candidates, SearchSettings(top=1, must_beat_seconds=share * least))
        assert one.is_unfinished == is_open
        assert one.certificate().bound == pytest.approx(min(1.0, share) * least)
