"""The search over what host memory holds: exact, opened by `--allow offload` alone, within the hosts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from brute import Everything, everything
from effort import number
from questions import cluster_of, random_model, without_context
from small import small_question

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout, Offload
from cost_models.axes.offload.residency import host_bytes
from cost_models.axes.words import EVERY
from cost_models.defaults import complete_question
from cost_models.errors import DoesNotFitError, InfeasibleError
from cost_models.memory.device import USABLE
from cost_models.question import Question
from cost_models.specs.cluster import DriveSpec
from cost_models.specs.stack import DriveUse
from cost_models.specs.training import TrainingSpec
from planner.answers import feasibility
from planner.answers.feasibility import with_remedies
from planner.search.search import search
from planner.space.restrictions import Restrictions, parse_restrictions
from planner.space.space import enumerate_layouts

OPEN = parse_restrictions(allow=("offload",))
EVERY_RESIDENCY = ("states", "parked", "streamed", "activations")


def drive_use(rng: np.random.Generator) -> DriveUse:
    return DriveUse(
        zero_stages=((0, 1, 2, 3), (3,), (0, 1))[int(rng.integers(3))],
        overlaps=bool(rng.integers(2)),
        gradients=bool(rng.integers(2)),
        rereads_weights=bool(rng.integers(2)),
        buffers=int(rng.integers(3)),
        chunk=1000,
    )


def random_question(rng: np.random.Generator, drives: np.random.Generator | None = None) -> Question:
    """A small question on GPUs with a slow or a quick host of little or much memory, and with `drives` a drive."""
    worlds = ((1, 1), (2, 1), (2, 2), (4, 1))
    cluster = cluster_of(rng, *worlds[int(rng.integers(len(worlds)))])
    gpu = cluster.gpu.model_copy(update={"host_bandwidth": float(rng.choice([1e8, 1e10]))})
    host = {"gpu": gpu, "host_memory": float(rng.choice([1e8, 1e9, 1e12]))}
    host["host_memory_bandwidth"] = rng.choice([None, 1e9, 1e11])
    if drives is not None:
        capacity, read = drives.choice(["10 MB", "100 MB", "1 TB"]), drives.choice(["0.1 GB/s", "100 GB/s"])
        host["drive"] = DriveSpec.model_validate(
            {"capacity": str(capacity), "read": str(read), "write": "1 GB/s"}
        )
        host["host_memory"] = float(drives.choice([1e7, 3e7, 1e8]))
    model = random_model(rng).model_copy(update={"further_tokens": 0})
    training = TrainingSpec(
        global_batch=int(rng.choice([1, 2, 4])), sequence_length=int(rng.choice([64, 256]))
    )
    question = complete_question(model, cluster.model_copy(update=host), training, stack="deepspeed")
    facts = {
        "residencies": EVERY_RESIDENCY[: int(rng.integers(1, 5))],
        "overlaps_host": bool(rng.integers(2)),
        "offloads_ends": bool(rng.integers(2)),
    }
    if drives is not None:
        facts["residencies"] = (*facts["residencies"], "drive")
        facts["drive"] = drive_use(drives)
    return without_context(replace(question, stack=question.stack.model_copy(update=facts)))


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
    question = small_question(1, stack="deepspeed")
    return replace(question, cluster=question.cluster.model_copy(update={"host_memory": 1e12}))


def test_only_allow_opens_it() -> None:
    closed, opened = enumerate_layouts(asked(), Restrictions()), enumerate_layouts(asked(), OPEN)
    assert not closed.offload_states.any()
    assert len(closed) < len(opened)
    fixed = enumerate_layouts(asked(), parse_restrictions(("offload_states=1",)))
    assert set(fixed.offload_states.tolist()) == {1}


def test_the_search_stays_within_the_host() -> None:
    """A host that holds nothing leaves what the device holds alone."""
    nothing = replace(asked(), cluster=asked().cluster.model_copy(update={"host_memory": 1.0}))
    assert not enumerate_layouts(nothing, OPEN).offload_states.any()


def test_where_nothing_fits_the_host_is_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("SECONDS_OF_REMEDIES", "SECONDS_OF_A_REMEDY"):  # however busy the machine is
        monkeypatch.setattr(feasibility, limit, 60.0)
    question = asked()
    roomy = search(question, top=1, restrictions=Restrictions()).best.peak_bytes
    tight = Restrictions(max_memory=0.6 * roomy)
    assert search(question, top=1, restrictions=replace(OPEN, max_memory=0.6 * roomy)).best.fits
    with pytest.raises(DoesNotFitError) as refused, with_remedies(question, tight):
        search(question, top=1, restrictions=tight)
    assert "--allow offload" in [one.change for one in refused.value.would_fit]


def test_hosts_hold_activations_of_the_microbatches_that_run() -> None:
    """Not of the smallest only."""
    question = asked()
    stack = question.stack.model_copy(update={"residencies": ("activations",)})
    question = replace(question, stack=stack)
    away = [one for one in rows_of(question) if one.offload.activations]
    needed = {one.mbs: float(host_bytes(question, LayoutColumns.of([one]))[0]) / USABLE for one in away}
    between = (needed[1] + needed[max(needed)]) / 2
    assert max(needed) > 1
    tight = replace(question, cluster=question.cluster.model_copy(update={"host_memory": between}))
    fitting = {mbs for mbs, own in needed.items() if own <= between}
    assert {one.mbs for one in rows_of(tight) if one.offload.activations} == fitting


def with_a_drive(host_memory: float) -> Question:
    """One GPU of a host of so much memory, whose stack keeps all states on the host or its drive."""
    question = asked()
    drive = DriveSpec.model_validate({"capacity": "1 TB", "read": "5 GB/s", "write": "3 GB/s"})
    cluster = question.cluster.model_copy(update={"host_memory": host_memory, "drive": drive})
    facts = {"residencies": ("states", "streamed", "drive"), "drive": DriveUse(overlaps=True)}
    return replace(question, cluster=cluster, stack=question.stack.model_copy(update=facts))


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
