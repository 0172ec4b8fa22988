"""The timeline against closed forms, against a naive simulation, and its critical path as a bound."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from test_actions import tables

from cost_models.schedules.actions import ActionTable, peak_moments
from cost_models.schedules.registry import build, shortened_table
from cost_models.schedules.timeline import compile_timeline

SECONDS = st.floats(0.0, 10.0, allow_subnormal=False)


Durations = tuple[np.ndarray, np.ndarray, np.ndarray, float]
"""(S,) forward, (S,) backward or its input half, (S,) weight half, and the transfer delay."""


@st.composite
def durations(draw: st.DrawFn, stages: int) -> Durations:
    """What every pass takes."""
    each = arrays(float, stages, elements=SECONDS)
    return draw(each), draw(each), draw(each), draw(SECONDS)


@st.composite
def priced_tables(draw: st.DrawFn) -> tuple[ActionTable, Durations]:
    """A table with durations for its stages and a transfer delay."""
    table = draw(tables())
    return table, draw(durations(table.num_stages))


def naive_spans(table: ActionTable, priced: Durations) -> list[list[tuple[float, float]]]:
    """Start and end of each rank's actions: run whichever rank can go on, action by action, rules written out."""
    forward, backward, weight, p2p = priced
    takes = {"F": forward, "B": backward + weight, "I": backward, "W": weight}
    on = table.rank_of_stage.tolist()
    left: dict[tuple[str, int, int], float] = {}
    orders = [table.actions(rank) for rank in range(table.pp)]
    spans: list[list[tuple[float, float]]] = [[] for _ in orders]
    clock = [0.0] * table.pp
    while any(len(span) < len(order) for span, order in zip(spans, orders, strict=True)):
        before = [len(span) for span in spans]
        for rank, order in enumerate(orders):
            while len(spans[rank]) < len(order):
                place = len(spans[rank])
                kind, k, mb = order[place]
                other = {"F": k - 1, "B": k + 1, "I": k + 1}.get(kind, -1)
                start = clock[rank]
                if 0 <= other < table.num_stages and on[other] != rank:
                    arrives = left.get(("F" if kind == "F" else "back", other, mb))
                    if arrives is None:
                        break
                    start = max(start, arrives + p2p)
                clock[rank] = start + takes[kind][k]
                spans[rank].append((start, clock[rank]))
                hands_on = {"F": "F", "B": "back", "I": "back"}.get(kind)
                first_of_pair = kind == "F" and table.overlapped[rank, place]
                if hands_on and not first_of_pair:
                    left[hands_on, k, mb] = clock[rank]
                if kind == "B" and table.overlapped[rank, place]:
                    _, k_before, mb_before = order[place - 1]
                    left["F", k_before, mb_before] = clock[rank]
        assert [len(span) for span in spans] != before, "deadlock"
    return spans


@given(priced_tables())
def test_spans_are_those_of_a_naive_simulation(priced: tuple[ActionTable, Durations]) -> None:
    table, (forward, backward, weight, p2p) = priced
    timeline = compile_timeline(table)
    starts, ends = timeline.spans(forward, backward, p2p, weight)
    for rank, expected in enumerate(naive_spans(table, (forward, backward, weight, p2p))):
        actions = len(expected)
        np.testing.assert_allclose(starts[rank, :actions], [start for start, _ in expected], atol=1e-9)
        np.testing.assert_allclose(ends[rank, :actions], [end for _, end in expected], atol=1e-9)
        assert (ends[rank, actions:] == ends[rank, actions - 1]).all()  # idle entries take no time
    np.testing.assert_array_equal(timeline.rank_ends(forward, backward, p2p, weight), ends[:, -1])


@given(priced_tables(), st.data())
def test_critical_path_is_tight_and_a_bound(
    priced: tuple[ActionTable, Durations], data: st.DataObject
) -> None:
    table, (forward, backward, weight, p2p) = priced
    timeline = compile_timeline(table)
    tail = data.draw(arrays(float, table.pp, elements=SECONDS))
    path = timeline.critical_path(forward, backward, p2p, tail, weight)

    def length(forward: np.ndarray, backward: np.ndarray, weight: np.ndarray, p2p: float) -> float:
        counted = path.forward_counts @ forward + path.backward_counts @ backward
        counted += path.weight_counts @ weight + path.p2p_count * p2p
        return float(counted + tail[path.rank])

    makespan = (timeline.rank_ends(forward, backward, p2p, weight) + tail).max()
    assert length(forward, backward, weight, p2p) == pytest.approx(makespan, rel=1e-12, abs=1e-12)
    f, b, w, delay = data.draw(durations(table.num_stages))
    assert length(f, b, w, delay) <= (timeline.rank_ends(f, b, delay, w) + tail).max() * (1 + 1e-12) + 1e-12


@given(tables(), st.data())
def test_a_batch_is_its_rows(table: ActionTable, data: st.DataObject) -> None:
    timeline = compile_timeline(table)
    forward, backward, weight = (
        data.draw(arrays(float, (2, 3, table.num_stages), elements=SECONDS)) for _ in "fbw"
    )
    p2p = data.draw(arrays(float, (2, 3), elements=SECONDS))
    ends = timeline.rank_ends(forward, backward, p2p, weight)
    starts, stops = timeline.spans(forward, backward, p2p, weight)
    assert ends.shape == (2, 3, table.pp)
    for row in np.ndindex(2, 3):
        alone = timeline.rank_ends(forward[row], backward[row], p2p[row], weight[row])
        np.testing.assert_array_equal(ends[row], alone)
        np.testing.assert_array_equal(stops[row][:, -1], alone)
        takes = [forward[row], backward[row] + weight[row], backward[row], weight[row], 0 * weight[row]]
        np.testing.assert_allclose(
            stops[row] - starts[row], np.stack(takes)[table.kind, table.stage], atol=1e-9
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


@pytest.mark.parametrize(("pp", "microbatches"), [(2, 4), (4, 12), (8, 32)])
@pytest.mark.parametrize(
    ("f", "i", "w"), [(2.0, 2.0, 2.0), (2.0, 3.0, 1.0), (2.0, 2.0, 1.0), (3.0, 4.0, 2.0)]
)
def test_bubble_of_zero_bubble(pp: int, microbatches: int, f: float, i: float, w: float) -> None:
    """ZB-H1's bubble is (p − 1)(F + I − W) where W ≤ F, I (Qi et al. 2023, table 2)."""
    ends = compile_timeline(build("zero-bubble", pp, 1, microbatches)).rank_ends(
        *(np.full(pp, seconds) for seconds in (f, i)), 0.0, np.full(pp, w)
    )
    assert ends.max() == pytest.approx(microbatches * (f + i + w) + (pp - 1) * (f + i - w))


def test_a_large_batch_is_evaluated_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    timeline = compile_timeline(build("1f1b", 3, 1, 5))
    forward = np.arange(21.0).reshape(7, 3)
    whole = timeline.rank_ends(forward, forward, 1.0)
    monkeypatch.setattr("cost_models.schedules.timeline._BATCH_ROWS", 70)
    np.testing.assert_array_equal(timeline.rank_ends(forward, forward, 1.0), whole)


LONG_SHAPES = [
    ("gpipe", 4, 1, 513), ("1f1b", 4, 1, 1001), ("interleaved", 5, 3, 515), ("interleaved", 2, 2, 900),
    ("zero-bubble", 4, 2, 512), ("zbv", 3, 2, 700), ("dualpipev", 3, 2, 700),
]  # fmt: skip


@pytest.mark.parametrize("shape", LONG_SHAPES, ids=str)
@pytest.mark.parametrize("spread", [1.0, 1e-3, 0.0])
def test_a_short_table_is_the_whole(shape: tuple[str, int, int, int], spread: float) -> None:
    """Memory, ends and critical paths, whether ranks are equally busy, nearly, or not at all."""
    whole, short = build(*shape), shortened_table(*shape)
    assert short.left_out
    for every, some in zip(peak_moments(whole), peak_moments(short), strict=True):
        for of_whole, of_short in zip(every, some, strict=True):
            np.testing.assert_array_equal(of_short, of_whole)
    random, slow = np.random.default_rng(sum(shape[1:])), np.array([1.0, 2.0, 1.0])[:, None]
    drawn = slow + spread * random.random((4, 3, whole.num_stages))
    delays = random.random(4)
    long, brief = compile_timeline(whole), compile_timeline(short)
    forward, backward, weight = drawn.swapaxes(0, 1)
    np.testing.assert_allclose(
        brief.rank_ends(forward, backward, delays, weight),
        long.rank_ends(forward, backward, delays, weight),
        rtol=1e-8,
    )
    for (forward, backward, weight), delay in zip(drawn, delays.tolist(), strict=True):
        tail = random.random(whole.pp)
        path = brief.critical_path(forward, backward, delay, tail, weight)
        for number, takes in enumerate([(forward, backward, weight), random.random((3, whole.num_stages))]):
            counts = (path.forward_counts, path.backward_counts, path.weight_counts)
            length = sum(count @ seconds for count, seconds in zip(counts, takes, strict=True))
            length += path.p2p_count * delay + tail[path.rank]
            longest = (long.rank_ends(takes[0], takes[1], delay, takes[2]) + tail).max()
            assert length <= longest * (1 + 1e-9)
            assert number or length == pytest.approx(longest, rel=1e-8)


@pytest.mark.parametrize("shape", LONG_SHAPES, ids=str)
def test_bursts_are_priced_by_a_short_table(
    shape: tuple[str, int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some ranks and their transfers make the slowest way round, which a few microbatches share: single rounds differ
    for ever, and repeat after a few."""
    whole, short = compile_timeline(build(*shape)), compile_timeline(shortened_table(*shape))
    monkeypatch.setattr("cost_models.schedules.timeline._MOST_ACTIONS", 2 * short.table.kind.size)
    random = np.random.default_rng(sum(shape[1:]))
    forward = random.choice([1.0, 1.0, 1.0, 0.9, 0.3], size=(16, short.table.num_stages))
    backward, delays = 2 * forward, random.choice([0.0, 0.3, 1.0, 3.0], size=16)
    ends = whole.rank_ends(forward, backward, delays, forward)
    np.testing.assert_allclose(short.rank_ends(forward, backward, delays, forward), ends, rtol=1e-9)
    for f, b, delay, end in zip(forward, backward, delays.tolist(), ends.max(axis=1), strict=True):
        path = short.critical_path(f, b, delay, 0.0, f)
        length = path.forward_counts @ f + path.backward_counts @ b + path.weight_counts @ f
        assert length + path.p2p_count * delay == pytest.approx(end, rel=1e-9)


def test_two_ranks_nearly_as_busy_are_priced_from_above() -> None:
    """Millions of microbatches, of which no table is made; the first ranks are slower by less than tables show."""
    table = shortened_table("1f1b", 8, 1, 10**7)
    timeline, busy = compile_timeline(table), np.where(np.arange(8) == 0, 1 + 1e-7, 1.0)
    ends = timeline.rank_ends(busy, 2 * busy)
    work = 10**7 * 3 * busy.max()
    assert work <= ends.max() <= work + 8 * 3 * busy.max()
