"""Measures one rank among all: products, memory, launches, and its links with partners that change.

Started by torchrun as `python -m executor.doctor.measuring DIR cpu`.

On a CPU the clock of work that a process does alone is its thread's, the fastest of every pass counts, and where
something looks slow there are more passes, so that other load on the machine is not taken for slowness.

In a round of pairs every process has one partner at most.
"""

from __future__ import annotations

import os
import socket
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from itertools import cycle

import torch
import torch.distributed as dist
import yaml
from torch.distributed.elastic.multiprocessing.errors import record

from executor.doctor import examine as readings
from executor.doctor.examine import is_calm, judge
from executor.faults.results import wrong_results
from executor.launch.workers import write_result
from executor.messages import gather_json
from executor.microbenchmarks.links import there_and_back
from executor.microbenchmarks.stopwatch import Stopwatch, Timing
from executor.requirements import free_bytes, name_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes and repetitions of every check of the examination."""

    dtype: torch.dtype
    side: int
    """Rows, columns and inner dimension of the matrix product."""
    copied_bytes: int
    places: int
    """Number of buffer pairs that are copied in turn, as on a CPU some pages are slower for as long as they
    are kept.
    """
    launches: int
    """Kernel launches in one timed call."""
    small_bytes: int
    large_bytes: int
    small_repeats: int
    large_repeats: int
    passes: int
    """Passes over all checks; the shortest time counts, and the spread of passes is the noise."""
    pairs_at_once: int | None
    """Pairs that talk at the same time; None: all. Processes of a CPU would wait for its cores."""
    budget_seconds: float
    """Seconds for the repetitions of one check in a pass."""


def sizes_of(device: str) -> Sizes:
    """Sizes of checks for a kind of device: `cpu` or `cuda`."""
    fields = yaml.safe_load((files("executor.doctor") / "sizes.yaml").read_text(encoding="utf-8"))[device]
    return Sizes(**fields | {"dtype": getattr(torch, fields["dtype"])})


Pairs = tuple[tuple[int, int], ...]


def rounds_of_pairs(ranks: int) -> list[Pairs]:
    """Rounds of pairs of ranks: neighbours, then two rounds of other pairs, so that the slow rank of a pair shows.

    0-1 2-3 …, then 1-2 3-4 … round the end, then each with the one half the way round; no pair twice.
    """
    half = (ranks + 1) // 2
    rounds = [
        [(first, first + 1) for first in range(0, ranks - 1, 2)],
        [(first, (first + 1) % ranks) for first in range(1, ranks, 2)],
        [(first, first + half) for first in range(ranks // 2)],
    ]
    seen: set[tuple[int, int]] = set()
    new_rounds: list[Pairs] = []
    for pairs in rounds:
        new_pairs = [(min(pair), max(pair)) for pair in pairs if pair[0] != pair[1]]
        new_rounds.append(tuple(pair for pair in new_pairs if pair not in seen))
        seen.update(new_pairs)
    return list(filter(None, new_rounds))


Call = Callable[[], object]
Wrap = Callable[[str, tuple[int, ...], Call], Call]
"""Function that replaces a timed call, given its check and ranks; tests use it to slow devices and links."""
Times = defaultdict[tuple[str, tuple[int, ...]], list[float]]
"""(check, ranks) → shortest seconds of each pass."""
RankChecks = dict[str, tuple[Call, Callable[[Call], Timing]]]
"""Timed call, and the clock that times it, for each check that this rank does alone."""
_MAX_LOOKS, _AGREEING = 6, 3
"""Most rounds of measuring, and how many rounds in a row must agree. If a device looks slow or a process is noisy,
everything is measured again until they do; passes add up."""


def as_it_is(check: str, ranks: tuple[int, ...], call: Call) -> Call:
    """Return the timed call unchanged."""
    return call


def examine_here(device: torch.device, wrap: Wrap = as_it_is) -> readings.Examination:
    """Measure this rank of the process group, and gather the readings of all ranks; every rank calls it."""
    began = time.monotonic()
    sizes = sizes_of(device.type)
    watch = Stopwatch(device=device, budget_seconds=sizes.budget_seconds)
    rank_checks = _rank_checks(watch, sizes, wrap)
    seconds: Times = defaultdict(list)
    earlier_findings, agree = set[tuple[str, tuple[int, ...]]](), 0
    for look in range(_MAX_LOOKS):
        for number in range(sizes.passes):
            _one_pass(watch, sizes, rank_checks, wrap, seconds, turned=bool(number % 2))
        seen = _gathered(device, sizes, seconds, time.monotonic() - began)
        findings = {(one.check, one.ranks) for one in judge(seen).findings}
        agree = agree + 1 if findings == earlier_findings else 1
        if agree == _AGREEING or (look == 0 and not findings and is_calm(seen)):
            break
        earlier_findings = findings
    return seen.model_copy(update={"wrong": wrong_results(device)})


def _one_pass(
    watch: Stopwatch, sizes: Sizes, rank_checks: RankChecks, wrap: Wrap, seconds: Times, *, turned: bool
) -> None:
    """Add the shortest time of every check of this rank, and of one-way messages of the pairs in which it comes first.

    With `turned`, the pairs of a round come in the other order: one that follows a slow one looks slow itself.
    """
    rank = dist.get_rank()
    messages = (
        (readings.LATENCY, sizes.small_bytes, sizes.small_repeats),
        (readings.LINK, sizes.large_bytes, sizes.large_repeats),
    )
    dist.barrier()
    for check, (call, clock) in rank_checks.items():
        seconds[check, (rank,)].append(clock(call).quiet)
    for pairs in rounds_of_pairs(dist.get_world_size()):
        at_once, pairs = sizes.pairs_at_once or len(pairs), pairs[::-1] if turned else pairs
        for first in range(0, len(pairs), at_once):
            dist.barrier()
            for pair in pairs[first : first + at_once]:
                for check, size, repeats in messages if rank in pair else ():
                    message = torch.ones(size // 4, device=watch.device)
                    call = wrap(check, pair, partial(there_and_back, message, pair))
                    taken = watch.elapsed(call, repeats).quiet / 2
                    if rank == pair[0]:
                        seconds[check, pair].append(taken)


def _gathered(device: torch.device, sizes: Sizes, seconds: Times, took: float) -> readings.Examination:
    """Examination with the readings of all ranks, gathered on every rank."""
    work = {
        readings.MATMUL: 2.0 * sizes.side**3,
        readings.MEMORY: 2.0 * sizes.copied_bytes,
        readings.LAUNCH: float(sizes.launches),
        readings.LINK: float(sizes.large_bytes),
        readings.LATENCY: 1.0,
    }
    own_readings = [
        readings.Reading(check=check, ranks=ranks, seconds=tuple(found), work=work[check])
        for (check, ranks), found in seconds.items()
    ]
    own = readings.Examination(
        backend=dist.get_backend(), hosts=(_facts(device),), readings=tuple(own_readings), seconds=took
    )
    everyone = [readings.Examination.model_validate_json(text) for text in gather_json(own.model_dump_json())]
    return own.model_copy(
        update={
            "hosts": tuple(host for one in everyone for host in one.hosts),
            "readings": tuple(reading for one in everyone for reading in one.readings),
            "seconds": max(one.seconds for one in everyone),
        }
    )


def _rank_checks(watch: Stopwatch, sizes: Sizes, wrap: Wrap) -> RankChecks:
    """Checks that this rank does alone: matrix product, memory copy, kernel launches."""
    device, side = watch.device, (sizes.side, sizes.side)
    left, right = (torch.randn(side, device=device).to(sizes.dtype) for _ in range(2))
    out = torch.empty(side, device=device, dtype=sizes.dtype)
    count = sizes.copied_bytes // 4
    pairs = [[torch.full((count,), end, device=device) for end in (0.0, 1.0)] for _ in range(sizes.places)]
    places = cycle(pairs)
    tiny = torch.zeros(16, device=device)

    def launch() -> None:
        """Launch many tiny kernels."""
        for _ in range(sizes.launches):
            tiny.add_(1.0)

    def copy() -> None:
        """Copy the next pair of buffers."""
        target, source = next(places)
        target.copy_(source)

    calls: RankChecks = {
        readings.MATMUL: (partial(torch.mm, left, right, out=out), watch.compute),
        readings.MEMORY: (copy, watch.compute),
        readings.LAUNCH: (launch, watch.host),
    }
    return {check: (wrap(check, (dist.get_rank(),), call), clock) for check, (call, clock) in calls.items()}


def _facts(device: torch.device) -> readings.HostFacts:
    """Facts of this rank's host and device."""
    sharing = int(os.environ.get("LOCAL_WORLD_SIZE", dist.get_world_size())) if device.type == "cpu" else 1
    return readings.HostFacts(
        rank=dist.get_rank(),
        host=socket.gethostname(),
        device=name_of(device),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        free_bytes=int(free_bytes(device)) // sharing,
        clock=_clock(device),
        load=os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0,
    )


def _clock(device: torch.device) -> float | None:
    """Clock of a GPU in Hz; None if its library does not tell, and on a CPU."""
    if device.type != "cuda":
        return None
    try:
        return 1e6 * torch.cuda.clock_rate(device)
    except Exception:  # NVMLError is of no type of Python's, and its library may not be installed
        return None


@record
def main() -> None:
    """Measure as one worker process among others, and write the gathered readings."""
    write_result(lambda device, _: examine_here(device).model_dump_json())


if __name__ == "__main__":
    main()
