"""`doctor`: exit codes, and what is asked of the machine; nothing is timed here."""

from __future__ import annotations

import json

import pytest

from executor.doctor import examine as examining
from executor.doctor.examine import MATMUL, Examination, HostFacts, Reading


@pytest.fixture
def found(monkeypatch) -> list[int]:
    """Numbers of processes that were examined; the last of them multiplies 1.3 times as slowly."""
    asked: list[int] = []

    def examine(processes: int, *, device: str) -> Examination:
        asked.append(processes)
        slow = [1.0] * (processes - 1) + [1.3 if processes > 2 else 1.0]
        return Examination(
            backend="gloo",
            hosts=tuple(
                HostFacts(rank=rank, host="here", device="cpu", cores=2, free_bytes=2**33)
                for rank in range(processes)
            ),
            readings=tuple(
                Reading(check=MATMUL, ranks=(rank,), seconds=(time, 1.01 * time), work=1e9)
                for rank, time in enumerate(slow)
            ),
        )

    monkeypatch.setattr(examining, "examine", examine)
    return asked


def test_a_slow_process_is_named_and_the_answer_is_no(meshwright, found) -> None:
    answer = meshwright("doctor", "--processes", "4", "--json")
    assert (answer.code, found) == (1, [4])
    record = json.loads(answer.out)
    assert record["passed"] is False
    assert [one["sentence"] for one in record["findings"]] == [
        "rank 3 (here): matmul 30.0 % slower than the median"
    ]


def test_an_even_machine_passes(meshwright, found) -> None:
    answer = meshwright("doctor", "--processes", "2")
    assert answer.code == 0
    assert "No device or link is slower than it should be." in answer.out
    assert meshwright("doctor", "--processes", "0").code == 2
    assert meshwright("doctor", "--plan", "no-plan.yaml").code == 2
