"""Offload: the search over what hosts and drives hold is exact, boxes of counts have true bounds, rules refuse."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from agreeing import Weighed, with_scenarios
from asking import ask, change
from brute import Everything, everything
from effort import number, some_of
from questions import cluster_of, random_model, without_context
from small import small_question

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout, Offload
from cost_models.axes.offload.residency import drive_bytes, host_bytes
from cost_models.axes.words import EVERY, UNSAID
from cost_models.errors import InfeasibleError, InputError
from cost_models.memory.device import USABLE
from cost_models.pipeline.pricing import scenarios_of, weighed_costs
from cost_models.pipeline.stage_costs import COLUMNS
from cost_models.question import Question
from cost_models.risk import RISKS
from cost_models.specs.cluster import DriveSpec
from cost_models.specs.stack import DriveUse
from planner.bounds.cores import least_costs
from planner.placement.leaf import TOLERANCE
from planner.rules.legality import check, require_legal
from planner.search.candidates import UniformCandidates
from planner.search.search import search
from planner.space.axes import Boxes
from planner.space.restrictions import Restrictions, parse_restrictions
from planner.space.space import enumerate_layouts, legal_space

OPEN = parse_restrictions(allow=("offload",))
EVERY_RESIDENCY = ("states", "parked", "streamed", "activations")


def drive_use(rng: np.random.Generator) -> DriveUse:
    stages = ((0, 1, 2, 3), (3,), (0, 1))[int(rng.integers(3))]
    switches = {name: bool(rng.integers(2)) for name in ("overlaps", "gradients", "rereads_weights")}
    return DriveUse(zero_stages=stages, buffers=int(rng.integers(3)), chunk=1000, **switches)


def random_question(rng: np.random.Generator, drives: np.random.Generator | None = None) -> Question:
    """A small question on GPUs with a slow or a quick host of little or much memory, and with `drives` a drive."""
    worlds = ((1, 1), (2, 1), (2, 2), (4, 1))
    cluster = cluster_of(rng, *worlds[int(rng.integers(len(worlds)))])
    gpu = cluster.gpu.model_copy(update={"host_bandwidth": float(rng.choice([1e8, 1e10]))})
    host = {"gpu": gpu, "host_memory": float(rng.choice([1e8, 1e9, 1e12]))}
    host["host_memory_bandwidth"] = rng.choice([None, 1e9, 1e11])
    if drives is not None:
        capacity, read = drives.choice(["10 MB", "100 MB", "1 TB"]), drives.choice(["0.1 GB/s", "100 GB/s"])
        rates = {"capacity": str(capacity), "read": str(read), "write": "1 GB/s"}
        host["drive"] = DriveSpec.model_validate(rates)
        host["host_memory"] = float(drives.choice([1e7, 3e7, 1e8]))
    model = random_model(rng).model_copy(update={"further_tokens": 0})
    job = {"global_batch": int(rng.choice([1, 2, 4])), "sequence_length": int(rng.choice([64, 256]))}
    question = ask(model, cluster.model_copy(update=host), stack="deepspeed", **job)
    facts: dict[str, Any] = {"residencies": EVERY_RESIDENCY[: int(rng.integers(1, 5))]}
    facts |= {name: bool(rng.integers(2)) for name in ("overlaps_host", "offloads_ends")}
    if drives is not None:
        facts["residencies"] = (*facts["residencies"], "drive")
        facts["drive"] = drive_use(drives)
    return without_context(change(question, stack=facts))


def test_halves_hold_every_combination_once() -> None:
    low = np.array([[0, 0, 0], [1, 0, 1], [EVERY, 0, 1], [0, EVERY, 0]])
    high = np.array([[0, 0, 0], [6, 0, 6], [EVERY, 0, 7], [0, EVERY, 0]])
    left = Boxes(low, high, room=np.full(4, 7))
    known = left.singles(LayoutColumns.of([Layout()] * len(left)))[2].low.tolist()
    found: list[list[int]] = []
    while len(left):
        found += left.low[left.is_single].tolist()
        _, left = left.rows(np.flatnonzero(~left.is_single)).halves()
    assert sorted(found) == sorted(known)


def drawn(seed: int, *, drive: bool = False) -> Everything:
    rng, drives = np.random.default_rng(seed), np.random.default_rng(seed) if drive else None
    while not (found := everything(random_question(rng, drives), offload=True)).placed:
        pass
    return found


@pytest.mark.parametrize("seed", sorted({*range(number(0, 320)), 61, 152}))
def test_search_is_brute_force(seed: int) -> None:
    require_the_best(drawn(seed))


@pytest.mark.parametrize("seed", range(number(1, 100)))
def test_search_over_drives_is_brute_force(seed: int) -> None:
    """Which leaves out drives where memory would do."""
    require_the_best(drawn(seed, drive=True))


def require_the_best(found: Everything) -> None:
    peaks = np.concatenate([own.peak for own in found.placed])
    for most in (np.inf, float(np.quantile(peaks, 0.02)), 0.99 * float(peaks.min())):
        rows = np.flatnonzero(found.columns.tp % found.columns.etp == 0)
        wanted, _ = found.best(rows, 0b111, most)
        limits = replace(OPEN, max_memory=None if np.isinf(most) else most)
        if not wanted:
            with pytest.raises(InfeasibleError):
                search(found.question, top=1, restrictions=limits)
            continue
        answer = search(found.question, top=1, restrictions=limits)
        assert answer.certificate.gap == 0
        assert answer.best.step_seconds == pytest.approx(wanted[0], rel=1e-9)


def asked() -> Question:
    return change(small_question(1, stack="deepspeed"), cluster={"host_memory": 1e12})


def with_a_drive(host_memory: float) -> Question:
    """One GPU of a host of so much memory, whose stack keeps all states on the host or its drive."""
    drive = DriveSpec.model_validate({"capacity": "1 TB", "read": "5 GB/s", "write": "3 GB/s"})
    facts = {"residencies": ("states", "streamed", "drive"), "drive": DriveUse(overlaps=True)}
    return change(asked(), cluster={"host_memory": host_memory, "drive": drive}, stack=facts)


def rows_of(question: Question) -> list[Layout]:
    columns = enumerate_layouts(question, OPEN)
    return [columns.layout(row) for row in range(len(columns))]


def test_a_drive_is_tried_where_memory_does_not_do() -> None:
    """Which leaves it out of searches that need none, unless it is asked for."""
    assert not any(one.offload.drive for one in rows_of(with_a_drive(1e12)))
    whole = Layout(offload=Offload(states=EVERY))
    needed = float(host_bytes(with_a_drive(1e12), LayoutColumns.of([whole]))[0]) / USABLE
    tight = rows_of(with_a_drive(0.9 * needed))
    assert any(one.offload == Offload(states=EVERY, drive=EVERY) for one in tight)
    assert not any(one.offload == Offload(states=EVERY) for one in tight)
    assert any(one.offload == Offload(states=1) for one in tight)
    assert not any(one.offload == Offload(states=1, drive=EVERY) for one in tight)
    fixed = enumerate_layouts(with_a_drive(1e12), parse_restrictions((f"offload_drive={EVERY}",)))
    assert set(fixed.offload_drive.tolist()) == {EVERY}


COMPARED = 250
"""Boxes that are compared with all that they hold, and halved, each time."""
HALVINGS = 6


def _some_that_fit(rng: np.random.Generator) -> Everything:
    """All layouts of the next question in which some fit."""
    while True:
        found = everything(random_question(rng), offload=True)
        if any((one.peak <= one.limit).any() for one in found.placed):
            return found


@pytest.mark.parametrize("risk", ["none", "mean"])
def test_no_coefficient_of_a_box_is_above_one_that_it_holds(risk: str) -> None:
    """Nor is the update of a rank's blocks, of which the device leaves those that counts name to the host."""
    facts = {"residencies": EVERY_RESIDENCY, "offloads_ends": True}
    base = change(random_question(np.random.default_rng(18)), stack=facts)
    mixture = {"num_experts": 4, "experts_per_token": 1, "moe_ffn_hidden_size": 128, "num_moe_layers": 4}
    for model in (base.model, base.model.model_copy(update=mixture)):
        question = with_scenarios(replace(base, model=model), np.random.default_rng(1), risk)
        rows = LayoutColumns.of(
            [
                Layout(dp=4, zero=zero, offload=Offload(**{part: 1}))  # type: ignore[arg-type]
                for zero, part in product(range(4), ("states", "parked", "streamed"))
            ]
        )
        boxes = Boxes.from_minimum(question, rows)
        assert not boxes.is_single.any()
        box, layouts, _ = boxes.singles(rows)
        least = least_costs(question, rows, boxes).rows(box)
        own = weighed_costs(question, layouts)
        for name in COLUMNS:
            one, other = (getattr(costs, name) for costs in (least, own))
            if name == "rank_optimizer":
                one, other = (rank + 5 * own.layer_optimizer for rank in (one, other))
            assert (one <= other + 1e-9 * np.abs(other)).all(), name


@pytest.mark.parametrize("seed", range(number(3, 40)))
def test_bounds_hold_for_all_that_a_box_holds(seed: int) -> None:
    rng = np.random.default_rng(900 + seed)
    found = _some_that_fit(rng)
    space = legal_space(found.question, OPEN)
    candidates = UniformCandidates(found.question, OPEN, space)
    candidates.open_cores(np.arange(len(space.cores)), threshold=0.0)
    names = [*("tp", "pp", "cp", "dp", "ep", "etp", "mbs", "sp", "order", "context", "zero", "shard")]
    names += ["vpp", "schedule", "offload_activations"]
    away = [f"offload_{part}" for part in ("states", "parked", "streamed")]
    counts = np.stack([getattr(found.columns, name) for name in away], axis=1)
    fastest = np.array(
        [placed.seconds[placed.peak <= placed.limit].min(initial=np.inf) for placed in found.placed]
    )
    rows_of: dict[tuple[int, ...], list[int]] = {}
    for row, key in enumerate(np.stack([getattr(found.columns, name) for name in names], axis=1).tolist()):
        rows_of.setdefault(tuple(key), []).append(row)
    compared = 0
    for _ in range(HALVINGS):
        closed = candidates.unopened
        some = rng.permutation(len(closed.core))[:COMPARED]
        priced = space.rows(closed.core[some], closed.choice[some])
        keys = np.stack([getattr(priced, name) for name in names], axis=1).tolist()
        for at, key in zip(some.tolist(), keys, strict=True):
            rows = np.array(rows_of.get(tuple(key), []), dtype=np.int64)
            inside = (closed.counts.low[at, :3] <= counts[rows]) & (
                counts[rows] <= closed.counts.high[at, :3]
            )
            best = fastest[rows[inside.all(axis=1)]].min(initial=np.inf)
            assert closed.bound[at] <= best * (1 + 1e-9)
            compared += bool(np.isfinite(best))
        boxes = np.flatnonzero(~closed.counts.is_single)
        candidates.halve(rng.permutation(boxes)[:COMPARED], threshold=0.0)
    assert compared


@pytest.mark.parametrize("seed", some_of(range(40), 3))
def test_search_is_brute_force_where_scenarios_are_weighed(seed: int) -> None:
    plain, rng = drawn(seed), np.random.default_rng(seed + 1_000_000)
    question = with_scenarios(plain.question, rng, RISKS[1 + seed % 2])
    each = [everything(one, offload=True) for one in scenarios_of(question)]
    found = Weighed(question=question, columns=plain.columns, placed=plain.placed, each=each)
    rows = np.flatnonzero(found.columns.tp % found.columns.etp == 0)
    wanted, _ = found.best(rows, 0b111, np.inf)
    if not wanted:
        with pytest.raises(InfeasibleError):
            search(question, top=1, restrictions=OPEN)
        return
    answer = search(question, top=1, restrictions=OPEN)
    assert answer.certificate.gap == 0
    assert answer.best.weighed_seconds == pytest.approx(wanted[0], rel=10 * TOLERANCE)


WHOLE = Layout(dp=4, zero=0, offload=Offload(states=EVERY))
SHARED = WHOLE.model_copy(update={"zero": 1})


def offloading(host_memory: float | None, stack: str = "deepspeed") -> Question:
    """Four GPUs of one host of that memory."""
    return change(small_question(4, stack=stack), cluster={"host_memory": host_memory})


def needed_by(layout: Layout) -> float:
    return float(host_bytes(offloading(None), LayoutColumns.of([layout]))[0]) / USABLE


def test_a_layout_needs_hosts_that_hold_what_it_offloads() -> None:
    needed = needed_by(WHOLE)
    require_legal(offloading(needed), WHOLE)
    (problem,) = check(offloading(0.99 * needed), WHOLE)
    assert "offloads" in problem.what
    assert "to the memory of each host" in problem.what
    assert not check(offloading(0.99 * needed), SHARED)  # which shares what the others repeat
    assert not check(offloading(0.0), Layout(dp=4))


def test_a_host_of_unknown_memory_is_asked_about() -> None:
    with pytest.raises(InputError, match="does not say how much one has") as refused:
        require_legal(offloading(None), WHOLE)
    assert refused.value.hint == "add `host_memory`, or say --host-memory"


STATES_ON_DRIVE = Layout(dp=4, zero=3, offload=Offload(states=EVERY, drive=EVERY))


def driven(capacity: str | None) -> Question:
    """Four GPUs of one host with a drive of that capacity."""
    said = {"capacity": capacity, "read": "5 GB/s", "write": "3 GB/s"}
    drive = None if capacity is None else DriveSpec.model_validate(said)
    return change(offloading(1e15), cluster={"drive": drive})


def test_a_layout_needs_drives_that_hold_what_lies_there() -> None:
    needed = float(drive_bytes(driven("1 TB"), LayoutColumns.of([STATES_ON_DRIVE]))[0]) / USABLE
    require_legal(driven(f"{1.001 * needed:.0f} B"), STATES_ON_DRIVE)
    (problem,) = check(driven(f"{0.99 * needed:.0f} B"), STATES_ON_DRIVE)
    assert "on the drive of each host" in problem.what
    with pytest.raises(InputError, match="does not say that one has any") as refused:
        require_legal(driven(None), STATES_ON_DRIVE)
    assert "drive: {capacity:" in refused.value.hint


def test_what_a_drive_cannot_hold_is_said() -> None:
    for layout, said in [
        (STATES_ON_DRIVE.model_copy(update={"zero": 1}), "on the drive under `zero3` only"),
        (Layout(dp=4, zero=3, offload=Offload(drive=EVERY)), "none that the CPU updates"),
        (Layout(dp=4, zero=3, offload=Offload(states=EVERY, drive=2)), "lie on the drive, or none"),
    ]:
        assert said in " ".join(problem.what for problem in check(driven("1 TB"), layout))


OVERLAP_OPEN = parse_restrictions(allow=("overlap",))


def test_only_words_open_overlap() -> None:
    question = small_question(4)
    closed, opened = enumerate_layouts(question, Restrictions()), enumerate_layouts(question, OVERLAP_OPEN)
    assert (closed.overlap_dp == UNSAID).all()
    assert len(closed) < len(opened)
    fixed = enumerate_layouts(question, parse_restrictions(("overlap_dp",)))
    assert (set(fixed.overlap_dp.tolist()), (fixed.replicas > 1).all()) == ({1}, True)
    apart = enumerate_layouts(question, parse_restrictions(("overlap_dp=0",), ("overlap_pp=1",)))
    assert (set(apart.overlap_dp.tolist()), set(apart.overlap_pp.tolist())) == ({0}, {0})
