"""The doctor's judgement on recorded timings, and one examination of this machine."""

from __future__ import annotations

import pytest
import torch
from training import plan_for

from executor.doctor.examine import (
    ALL,
    LATENCY,
    LAUNCH,
    LINK,
    MATMUL,
    MEMORY,
    Assumptions,
    Examination,
    HostFacts,
    Reading,
    assumptions_of,
    judge,
)
from executor.doctor.measuring import _clock, rounds_of_pairs
from meshwright.verbs.doctor import sentence

EVEN = (1.02, 1.0, 1.01, 1.03, 1.0, 1.02)
"""Passes of a check on a quiet machine."""
PLENTY = 2**33


def examination(
    ranks: int = 4, slow: dict[tuple[str, tuple[int, ...]], float] | None = None, per_host: int = 8
) -> Examination:
    """Every check of so many ranks and their pairs, some of them so many times as slow."""
    slow = slow or {}
    asked = [(check, (rank,)) for check in (MATMUL, MEMORY, LAUNCH) for rank in range(ranks)]
    pairs = [pair for pairs in rounds_of_pairs(ranks) for pair in pairs]
    asked += [(check, pair) for check in (LINK, LATENCY) for pair in pairs]
    readings = tuple(
        Reading(
            check=check,
            ranks=of,
            seconds=tuple(1e-3 * one * slow.get((check, of), 1.0) for one in EVEN),
            work=1e9,
        )
        for check, of in asked
    )
    hosts = tuple(
        HostFacts(rank=rank, host=f"node{rank // per_host}", device="gpu", cores=8, free_bytes=PLENTY)
        for rank in range(ranks)
    )
    return Examination(backend="gloo", hosts=hosts, readings=readings)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7, 8, 16])
def test_nobody_has_two_partners_and_no_pair_meets_twice(ranks: int) -> None:
    met: list[tuple[int, int]] = []
    for pairs in rounds_of_pairs(ranks):
        members = [rank for pair in pairs for rank in pair]
        assert len(set(members)) == len(members)
        met += pairs
    assert len(set(met)) == len(met)
    assert all(low < high < ranks for low, high in met)
    if ranks >= 4:
        assert all(sum(rank in pair for pair in met) >= 2 for rank in range(ranks))


def test_nothing_is_found_on_an_even_machine() -> None:
    for ranks in (1, 2, 4, 16):
        assert judge(examination(ranks)).passed


@pytest.mark.parametrize("check", [MATMUL, MEMORY, LAUNCH])
def test_a_slow_rank_is_named_with_its_host(check: str) -> None:
    (found,) = judge(examination(16, {(check, (9,)): 1.3})).findings
    assert found.share == pytest.approx(0.3)
    assert sentence(found) == f"rank 9 (node1): {check} 30.0 % slower than the median"


def test_noise_hides_what_it_is_as_large_as() -> None:
    """Passes that vary by 30 % say nothing of a process that takes 30 % longer."""
    wild = (1.0, 1.3, 1.6, 1.1, 1.5, 1.2)
    seen = examination(4)
    readings = [
        one.model_copy(
            update={
                "seconds": tuple(
                    second * (1.3 if one.ranks == (2,) and one.check == MATMUL else 1.0) for second in wild
                )
            }
        )
        for one in seen.readings
    ]
    assert judge(seen.model_copy(update={"readings": tuple(readings)})).passed
    assert judge(examination(4, {(MATMUL, (2,)): 1.08})).passed  # beyond noise, and not worth a word


def test_a_slow_pair_is_named_as_a_pair() -> None:
    (found,) = judge(examination(8, {(LINK, (2, 3)): 1.5})).findings
    assert found.ranks == (2, 3)
    assert "ranks 2-3 (node0): link 50.0 % slower" in sentence(found)


def test_a_member_whose_pairs_are_all_slow_is_named_itself() -> None:
    pairs = [pair for pairs in rounds_of_pairs(8) for pair in pairs if 5 in pair]
    slow = {(LINK, pair): 1.5 for pair in pairs}
    (found,) = judge(examination(8, slow)).findings
    assert found.ranks == (5,)


def test_pairs_between_nodes_are_compared_with_one_another() -> None:
    seen = examination(16)
    apart = [one for one in seen.readings if one.check == LINK and len({rank // 8 for rank in one.ranks}) > 1]
    slow = {(LINK, one.ranks): 10.0 for one in apart}
    judged = judge(examination(16, slow))
    assert judged.passed
    assert [one.check for one in judged.checks].count("link between nodes") == 1
    worse = slow | {(LINK, apart[0].ranks): 20.0}
    (found,) = judge(examination(16, worse)).findings
    assert (found.check, found.ranks) == ("link between nodes", apart[0].ranks)


def test_facts_are_compared_too() -> None:
    seen = examination(4)
    hosts = [
        one.model_copy(update={"free_bytes": PLENTY // 2, "cores": 4}) if one.rank == 3 else one
        for one in seen.hosts
    ]
    found = judge(seen.model_copy(update={"hosts": tuple(hosts)})).findings
    assert [sentence(one) for one in found] == [
        "rank 3 (node0): free memory 50.0 % less than the median",
        "rank 3 (node0): cores 50.0 % less than the median",
    ]


def test_what_the_plan_assumes_is_held_against_all() -> None:
    plan = Assumptions(seconds={MATMUL: 0.5e-3, MEMORY: 1.05e-3}, bytes_needed=2.0 * PLENTY, known=True)
    found = judge(examination(2), plan).findings
    assert (found[0].who, found[0].check, found[0].share) == (ALL, MATMUL, pytest.approx(1.0))
    assert {one.than for one in found[1:]} == {"the plan needs"}
    datasheet = Assumptions(seconds={MATMUL: 0.5e-3}, bytes_needed=1.0, known=False)
    assert judge(examination(2), datasheet).passed


def test_a_plan_says_what_it_counts_on() -> None:
    assumed = assumptions_of(plan_for("dp2 mbs2"))
    assert {MATMUL, MEMORY, LINK, LATENCY} <= set(assumed.seconds)
    assert all(seconds > 0 for seconds in assumed.seconds.values())
    assert not assumed.known  # the datasheet of a core


def test_processes_examine_one_another(processes, tmp_path) -> None:
    """A product that takes three times as long is found, whatever else the machine does; times are not looked at."""
    seen = Examination.model_validate_json(processes.run(2, _examined)[0])
    assert {one.check for one in seen.readings} == {MATMUL, MEMORY, LAUNCH, LINK, LATENCY}
    slow = [one for one in judge(seen).findings if one.check == MATMUL]
    assert [one.ranks for one in slow] == [(1,)]


def _examined():  # type: ignore[no-untyped-def]
    import time

    import torch

    from executor.doctor.measuring import examine_here

    def three_times(check, ranks, call):  # type: ignore[no-untyped-def]
        def slowed() -> None:
            began = time.thread_time()
            call()
            until = time.thread_time() + 2 * (time.thread_time() - began)
            while time.thread_time() < until:
                pass

        return slowed if (check, ranks) == (MATMUL, (1,)) else call

    return examine_here(torch.device("cpu"), three_times).model_dump_json()


def test_a_clock_that_no_library_tells_is_left_out(monkeypatch) -> None:
    """NVML's errors are of its own type: a container without it must not end the examination."""

    class NVMLError(Exception):
        pass

    def untold(device: torch.device) -> int:
        raise NVMLError("Driver Not Loaded")

    monkeypatch.setattr(torch.cuda, "clock_rate", untold)
    assert _clock(torch.device("cuda", 0)) is None
    assert _clock(torch.device("cpu")) is None
