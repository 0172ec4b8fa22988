"""What a device or link gives back: a wrong result is found and laid to the rank that it comes from."""

from __future__ import annotations

import pytest

from executor.doctor.examine import Examination, HostFacts, judge
from executor.faults.results import ALL_REDUCE, ALL_TO_ALL, MATMUL, MEMORY, WrongResult
from executor.launch.rendezvous import failed_nodes
from meshwright.verbs.doctor import sentence

SPOILT = {
    "nothing": ([], []),
    "a product": ([(1, MATMUL, 0)], [(MATMUL, (1,))]),
    "memory of two": ([(0, MEMORY, 7), (2, MEMORY, 0)], [(MEMORY, (0,)), (MEMORY, (2,))]),
    "a sum": ([(2, ALL_REDUCE, 0)], [(ALL_REDUCE, (2,))]),
    "every sum": ([(rank, ALL_REDUCE, 0) for rank in range(3)], [(ALL_REDUCE, ())]),
    "what rank 2 sends": ([(0, ALL_TO_ALL, 2), (1, ALL_TO_ALL, 2)], [(ALL_TO_ALL, (2,))]),
    "a link": ([(0, ALL_TO_ALL, 2)], [(ALL_TO_ALL, (0, 2))]),
}
"""(rank, check, row of its result that is spoilt), and what is to be found."""


def test_a_wrong_result_is_laid_to_its_rank(processes) -> None:
    found = processes.run(3, _checked, [spoilt for spoilt, _ in SPOILT.values()])
    assert found[0] == found[1] == found[2]
    for seen, (_, wanted) in zip(found[0], SPOILT.values(), strict=True):
        assert seen == wanted


def _checked(every):  # type: ignore[no-untyped-def]
    import torch
    import torch.distributed as dist

    from executor.faults.results import wrong_results

    def spoiling(spoilt):  # type: ignore[no-untyped-def]
        def spoil(check, result):  # type: ignore[no-untyped-def]
            for rank, of, row in spoilt:
                if (rank, of) == (dist.get_rank(), check):
                    result[row] += 1
            return result

        return spoil

    seen = [wrong_results(torch.device("cpu"), spoiling(spoilt)) for spoilt in every]
    return [[(one.check, one.ranks) for one in some] for some in seen]


def test_the_doctor_says_so() -> None:
    hosts = tuple(
        HostFacts(rank=rank, host="gpu17", device="gpu", cores=8, free_bytes=2**33) for rank in (0, 1)
    )
    wrong = (WrongResult(check=MATMUL, ranks=(1,)), WrongResult(check=ALL_REDUCE, ranks=()))
    judged = judge(Examination(backend="nccl", hosts=hosts, readings=(), wrong=wrong))
    assert not judged.passed
    said = ["rank 1 (gpu17): matmul gives wrong results", "all ranks: all-reduce gives wrong results"]
    assert [sentence(one) for one in judged.findings] == said


@pytest.mark.parametrize(("ranks", "nodes"), [((1,), ["a"]), ((0, 1), ["a"]), ((1, 2), []), ((), [])])
def test_a_link_of_two_nodes_is_neithers(ranks: tuple[int, ...], nodes: list[str]) -> None:
    homes = [["a", 0, "h0"], ["a", 0, "h0"], ["b", 1, "h1"]]
    assert [home[0] for home in failed_nodes([WrongResult(check=ALL_TO_ALL, ranks=ranks)], homes)] == nodes
