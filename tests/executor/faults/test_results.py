"""Wrong results of a device or link are laid to their rank, and a host that gave them twice is left out."""

from __future__ import annotations

import pytest

from cost_models.errors import HostError
from executor.doctor.examine import Examination, HostFacts, judge
from executor.faults.results import ALL_REDUCE, ALL_TO_ALL, MATMUL, MEMORY, WrongResult
from executor.launch.launch import require_not_left_out
from executor.launch.rendezvous import failed_nodes
from executor.run_config import FAILED_CHECKS
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


def test_a_host_that_failed_twice_is_not_let_in_again(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "gpu17")
    require_not_left_out(tmp_path)
    failed = [
        f'{{"launch": "{launch}", "host": "{host}"}}\n' for launch, host in (("a", "gpu17"), ("b", "gpu18"))
    ]
    (tmp_path / FAILED_CHECKS).write_text("".join(failed))
    require_not_left_out(tmp_path)
    line = '{"launch": "a", "host": "gpu17"}\n'
    (tmp_path / FAILED_CHECKS).write_text(line * 2)
    with pytest.raises(HostError, match=r"this node \(gpu17\) gave wrong results twice and is left out"):
        require_not_left_out(tmp_path)
