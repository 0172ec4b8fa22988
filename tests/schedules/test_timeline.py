"""The timeline against closed forms, against a naive simulation, and its critical path as a bound."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cost_models.schedules import ActionTable, build, compile_timeline
from tests.schedules.test_actions import LEGAL_SHAPES, tables

SECONDS = st.floats(0.0, 10.0, allow_subnormal=False)


@st.composite
def priced_tables(draw: st.DrawFn) -> tuple[ActionTable, np.ndarray, np.ndarray, float]:
    """A table with durations for its stages and a transfer delay."""
    table = draw(tables())
    durations = arrays(float, table.num_stages, elements=SECONDS)
    return table, draw(durations), draw(durations), draw(SECONDS)


def naive_spans(table: ActionTable, forward: np.ndarray, backward: np.ndarray, p2p: float) -> np.ndarray:
    """(R, A, 2) start and end: run whichever rank can go on, action by action, rules written out in full."""
    ended: dict[tuple[str, int, int], float] = {}
    orders = [table.actions(rank) for rank in range(table.pp)]
    done, clock = [0] * table.pp, [0.0] * table.pp
    spans = np.zeros((table.pp, len(orders[0]), 2))
    last = table.num_stages - 1
    delay = p2p if table.pp > 1 else 0.0
    while min(done) < len(orders[0]):
        before = list(done)
        for rank, order in enumerate(orders):
            while done[rank] < len(order):
                kind, k, mb = order[done[rank]]
                needs = [(("F", k, mb), 0.0)] if kind == "B" else []
                if kind == "F" and k > 0:
                    needs.append((("F", k - 1, mb), delay))
                if kind == "B" and k < last:
                    needs.append((("B", k + 1, mb), delay))
                if any(need not in ended for need, _ in needs):
                    break
                start = max([clock[rank], *(ended[need] + wait for need, wait in needs)])
                clock[rank] = ended[kind, k, mb] = start + (forward[k] if kind == "F" else backward[k])
                spans[rank, done[rank]] = start, clock[rank]
                done[rank] += 1
        assert done != before, "deadlock"
    return spans


@given(priced_tables())
def test_spans_are_those_of_a_naive_simulation(
    priced: tuple[ActionTable, np.ndarray, np.ndarray, float],
) -> None:
    table, forward, backward, p2p = priced
    timeline = compile_timeline(table)
    starts, ends = timeline.spans(forward, backward, p2p)
    expected = naive_spans(table, forward, backward, p2p)
    np.testing.assert_allclose(starts, expected[..., 0], atol=1e-9)
    np.testing.assert_allclose(ends, expected[..., 1], atol=1e-9)
    np.testing.assert_array_equal(timeline.rank_ends(forward, backward, p2p), ends[:, -1])


@pytest.mark.parametrize("shape", LEGAL_SHAPES, ids=str)
def test_no_legal_schedule_deadlocks(shape: tuple[str, int, int, int]) -> None:
    table = build(*shape)
    ones = np.ones(table.num_stages)
    assert np.isfinite(compile_timeline(table).rank_ends(ones, ones, 1.0)).all()


@given(priced_tables(), st.data())
def test_critical_path_is_tight_where_found_and_a_bound_elsewhere(
    priced: tuple[ActionTable, np.ndarray, np.ndarray, float], data: st.DataObject
) -> None:
    table, forward, backward, p2p = priced
    timeline = compile_timeline(table)
    tail = data.draw(arrays(float, table.pp, elements=SECONDS))
    path = timeline.critical_path(forward, backward, p2p, tail)

    def length(forward: np.ndarray, backward: np.ndarray, p2p: float) -> float:
        counted = path.forward_counts @ forward + path.backward_counts @ backward + path.p2p_count * p2p
        return float(counted + tail[path.rank])

    makespan = (timeline.rank_ends(forward, backward, p2p) + tail).max()
    assert length(forward, backward, p2p) == pytest.approx(makespan, rel=1e-12, abs=1e-12)
    durations = arrays(float, table.num_stages, elements=SECONDS)
    other = data.draw(durations), data.draw(durations), data.draw(SECONDS)
    assert length(*other) <= (timeline.rank_ends(*other) + tail).max() * (1 + 1e-12) + 1e-12


@given(tables(), st.data())
def test_a_batch_is_its_rows(table: ActionTable, data: st.DataObject) -> None:
    timeline = compile_timeline(table)
    forward, backward = (data.draw(arrays(float, (2, 3, table.num_stages), elements=SECONDS)) for _ in "fb")
    p2p = data.draw(arrays(float, (2, 3), elements=SECONDS))
    ends = timeline.rank_ends(forward, backward, p2p)
    starts, stops = timeline.spans(forward, backward, p2p)
    assert ends.shape == (2, 3, table.pp)
    for row in np.ndindex(2, 3):
        alone = timeline.rank_ends(forward[row], backward[row], p2p[row])
        np.testing.assert_array_equal(ends[row], alone)
        np.testing.assert_array_equal(stops[row][:, -1], alone)
        np.testing.assert_allclose(
            stops[row] - starts[row],
            np.where(table.is_backward, backward[row][table.stage], forward[row][table.stage]),
            atol=1e-9,
        )


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("pp", "microbatches"), [(1, 4), (4, 4), (4, 12), (8, 64)])
def test_uniform_stages_have_the_closed_form_bubble(schedule: str, pp: int, microbatches: int) -> None:
    """(m + p − 1)(f + b): Huang et al. 2019; Narayanan et al. 2021, section 2.2.1."""
    ends = compile_timeline(build(schedule, pp, 1, microbatches)).rank_ends(
        np.full(pp, 1.0), np.full(pp, 2.0)
    )
    assert ends.max() == pytest.approx((microbatches + pp - 1) * 3.0)


@pytest.mark.parametrize(("pp", "vpp", "microbatches"), [(2, 2, 4), (4, 2, 8), (4, 3, 16), (8, 6, 96)])
def test_interleaving_divides_the_bubble_by_the_chunks(pp: int, vpp: int, microbatches: int) -> None:
    """(m + (p − 1)/v)(f + b) with f + b of a whole rank: Narayanan et al. 2021, section 2.2.2."""
    stages = np.ones(pp * vpp)
    ends = compile_timeline(build("interleaved", pp, vpp, microbatches)).rank_ends(
        stages / vpp, 2 * stages / vpp
    )
    assert ends.max() == pytest.approx((microbatches + (pp - 1) / vpp) * 3.0)


@pytest.mark.parametrize("pp", [2, 4, 8])
def test_1f1b_exposes_about_two_transfers_per_microbatch(pp: int) -> None:
    """pp microbatches go round the whole pipeline in p(f + b) + 2(p − 1)c: each pays 2(p − 1)/p transfers."""
    delay, stages = 0.25, np.ones(pp)

    def makespan(microbatches: int) -> float:
        ends = compile_timeline(build("1f1b", pp, 1, microbatches)).rank_ends(stages, 2 * stages, delay)
        return float(ends.max())

    assert (makespan(20 * pp) - makespan(10 * pp)) / (10 * pp) == pytest.approx(
        3.0 + 2 * (pp - 1) / pp * delay
    )


def test_a_slow_last_stage_sets_the_pace() -> None:
    """With the head on the last stage every microbatch waits for it: fill, m times the slow stage, drain."""
    forward, backward = np.array([1.0, 1.0, 1.0, 2.0]), np.array([2.0, 2.0, 2.0, 4.0])
    ends = compile_timeline(build("1f1b", 4, 1, 16)).rank_ends(forward, backward)
    assert ends.max() == pytest.approx(3 * 1.0 + 16 * 6.0 + 3 * 2.0)


def test_a_large_batch_is_evaluated_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    timeline = compile_timeline(build("1f1b", 3, 1, 5))
    forward = np.arange(21.0).reshape(7, 3)
    whole = timeline.rank_ends(forward, forward, 1.0)
    monkeypatch.setattr("cost_models.schedules.timeline._BATCH_ROWS", 70)
    np.testing.assert_array_equal(timeline.rank_ends(forward, forward, 1.0), whole)
