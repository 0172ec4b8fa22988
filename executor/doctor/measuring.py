"""Measures one rank among all: products, memory, launches, and its links with partners that change.

Started by torchrun as `python -m executor.doctor.measuring DIR --device cpu`.

On a CPU the clock of work that a process does alone is its thread's, the fastest of every pass counts, and where
something looks slow there are more passes, so that other load on the machine is not taken for slowness.

In a round of pairs every process has one partner at most.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from itertools import cycle

import psutil
import torch
import torch.distributed as dist
import yaml
from torch.distributed.elastic.multiprocessing.errors import record

from executor.doctor import examine as readings
from executor.doctor.examine import is_calm, judge
from executor.faults.results import wrong_results
from executor.launch.workers import worker_arguments, write_result
from executor.messages import gather_json
from executor.microbenchmarks.links import there_and_back
from executor.microbenchmarks.stopwatch import Stopwatch


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


def batched(pairs: Pairs, at_once: int | None) -> list[Pairs]:
    """Pairs of a round in batches of `at_once` pairs; one batch of all pairs if None."""
    size = at_once or max(1, len(pairs))
    return [pairs[first : first + size] for first in range(0, len(pairs), size)]


Call = Callable[[], object]
Wrap = Callable[[str, tuple[int, ...], Call], Call]
"""Function that replaces a timed call, given its check and ranks; tests use it to slow devices and links."""
Times = dict[tuple[str, tuple[int, ...]], list[float]]
"""(check, ranks) → shortest seconds of each pass."""
RankChecks = dict[tuple[str, tuple[int, ...]], tuple[Call, str]]
"""Timed call, and name of the clock that times it, for each check that this rank does alone."""
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
    rank_checks = _rank_checks(device, sizes, wrap)
    watch = Stopwatch(device=device, budget_seconds=sizes.budget_seconds)
    seconds: Times = {}
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
    """Add the shortest time of every check of this rank, and of the pairs in which it comes first.

    With `turned`, the pairs of a round come in the other order: one that follows a slow one looks slow itself.
    """
    dist.barrier()
    for (check, ranks), (call, clock) in rank_checks.items():
        seconds.setdefault((check, ranks), []).append(getattr(watch, clock)(call).quiet)
    for pairs in rounds_of_pairs(dist.get_world_size()):
        for pairs_at_once in batched(pairs[::-1] if turned else pairs, sizes.pairs_at_once):
            dist.barrier()
            for check, ranks, seconds_taken in _with_partner(watch, sizes, pairs_at_once, wrap):
                seconds.setdefault((check, ranks), []).append(seconds_taken)


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


def _rank_checks(device: torch.device, sizes: Sizes, wrap: Wrap) -> RankChecks:
    """Checks that this rank does alone: matrix product, memory copy, kernel launches."""
    rank = (dist.get_rank(),)
    side = (sizes.side, sizes.side)
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

    calls: dict[str, tuple[Call, str]] = {
        readings.MATMUL: (partial(torch.mm, left, right, out=out), "compute"),
        readings.MEMORY: (copy, "compute"),
        readings.LAUNCH: (launch, "host"),
    }
    return {(check, rank): (wrap(check, rank, call), clock) for check, (call, clock) in calls.items()}


def _with_partner(
    watch: Stopwatch, sizes: Sizes, pairs: Pairs, wrap: Wrap
) -> list[tuple[str, tuple[int, ...], float]]:
    """Seconds of one-way messages with this rank's partner in `pairs`; the first rank of a pair reports them."""
    rank = dist.get_rank()
    measured: list[tuple[str, tuple[int, ...], float]] = []
    for pair in pairs:
        if rank not in pair:
            continue
        latency = readings.LATENCY, sizes.small_bytes, sizes.small_repeats
        link = readings.LINK, sizes.large_bytes, sizes.large_repeats
        for check, size, repeats in (latency, link):
            message = torch.ones(size // 4, device=watch.device)
            call = wrap(check, pair, partial(there_and_back, message, pair))
            pair_seconds = watch.elapsed(call, repeats).quiet / 2
            if rank == pair[0]:
                measured.append((check, pair, pair_seconds))
    return measured


def _facts(device: torch.device) -> readings.HostFacts:
    """Facts of this rank's host and device."""
    on_gpu = device.type == "cuda"
    sharing = int(os.environ.get("LOCAL_WORLD_SIZE", dist.get_world_size()))
    free = torch.cuda.mem_get_info(device)[0] if on_gpu else psutil.virtual_memory().available // sharing
    return readings.HostFacts(
        rank=dist.get_rank(),
        host=socket.gethostname(),
        device=torch.cuda.get_device_name(device) if on_gpu else "cpu",
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        free_bytes=int(free),
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
    write_result(worker_arguments(__doc__), lambda device, _: examine_here(device).model_dump_json())


if __name__ == "__main__":
    main()
