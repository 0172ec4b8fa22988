"""Examination of a machine's devices and links, in comparison with the times that a plan assumes.

It starts a process for each device here, or, inside torchrun, is one of those of all nodes.

Readings of an examined machine, judged against one another and against a plan.

Readings are seconds of each check in several passes, and facts of hosts. A device or pair is slow where its time is
more than a tenth and more than three noise widths above the median of its kind: devices of one name, pairs within a
node or between nodes. The noise is the largest of three: how far the least pass is from its next ones in its kind
(`Reading.noise`), how far it is in its own, and how far ordinary ones of its kind are from one another. A rank all of
whose pairs are slow is named in their place.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from cost_models.arrays import MAD_TO_DEVIATION
from cost_models.base import Spec
from cost_models.communication.collectives import point_to_point_seconds
from cost_models.communication.topology import group_of
from cost_models.compute.gemm import device_of, gemm_seconds
from cost_models.errors import HostError
from executor.faults import results
from executor.launch.workers import among_workers, run_workers
from planner.plan import Plan

MATMUL, MEMORY, LAUNCH, LINK, LATENCY = results.MATMUL, results.MEMORY, "launch", "link", "latency"
OF_RANKS = (MATMUL, MEMORY, LAUNCH)
"""Checks of each device on its own."""
OF_PAIRS = (LINK, LATENCY)
"""Checks of two devices: a large message there and back, and a small one."""


class Reading(Spec):
    """Times of one check, on one process or a pair of processes."""

    check: str
    ranks: tuple[int, ...]
    """Rank of the process, or both ranks of a pair."""
    seconds: tuple[float, ...]
    """Shortest seconds of each pass, as other load on a machine only adds time."""
    work: float
    """FLOPs, bytes or calls done in each of these times."""

    @property
    def shortest(self) -> float:
        """Seconds of the fastest pass, as other load on the machine only adds time."""
        return min(self.seconds)

    @property
    def noise(self) -> float:
        """Noise of this reading: relative distance of the lower quartile of its passes from the shortest.

        It estimates how far the shortest is from its value on an idle machine: other load makes passes longer by any
        amount, which would inflate a standard deviation, but a minimum with close neighbours is the device's own speed.
        """
        if len(self.seconds) < 2:
            return 0.0
        return statistics.quantiles(self.seconds, n=4, method="inclusive")[0] / self.shortest - 1


class HostFacts(Spec):
    """Facts that a process reads about its host and device."""

    rank: int
    host: str
    device: str
    cores: int
    """Cores that the process may use."""
    free_bytes: int
    """Free bytes on the device; on a CPU the process's share of the host's free memory."""
    clock: float | None = None
    """Clock of the device now, in Hz; None if unknown."""
    load: float = 0.0
    """Average number of processes that wanted a core of the host in the last minute."""


class Examination(Spec):
    """Facts of all hosts, readings of all checks, and wrong results of devices."""

    backend: str
    hosts: tuple[HostFacts, ...]
    """Facts of each rank's host, in the order of ranks."""
    readings: tuple[Reading, ...]
    wrong: tuple[results.WrongResult, ...] = ()
    seconds: float = 0.0
    """Seconds that the examination took."""


def noise_of(readings: Sequence[Reading]) -> float:
    """Noise of a check: the median of its readings' noise."""
    return statistics.median(reading.noise for reading in readings)


SLOW_SHARE = 0.1
"""Devices slower than the median by at most this share are not reported, as that is no reason to replace a node."""
NOISE_WIDTHS = 3.0
_CALM = 0.15
"""Smallest relative slowness that can be seen on a machine calm enough."""
ALL, FREE_MEMORY = "all ranks", "free memory"
BETWEEN_NODES = " between nodes"
"""Suffix of the name of a check of pairs on two hosts."""
_FEWEST_PAIRS = 2
"""Fewest pairs of a rank that must all be slow for the rank itself to be reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One problem that the examination found."""

    who: str
    """Ranks in words: "rank 2 (gpu17)", "ranks 0-3", "all ranks"."""
    ranks: tuple[int, ...]
    """Ranks that the problem concerns; empty for all ranks."""
    check: str
    share: float
    """How much slower, or how much less: 0.3 is 30 %."""
    than: str
    """Measure of comparison: "the median", "the plan assumes"; empty if a result is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One check over all processes: typical and worst value, and the value that the plan assumes."""

    check: str
    typical: float
    """Value of the median: work per second; seconds for checks of calls; bytes, Hz or cores for facts."""
    worst: float
    worst_of: str
    noise: float | None
    """Relative noise; None for facts of hosts."""
    assumed: float | None = None
    """Value that the plan assumes; None if it assumes none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Checks and findings of an examination."""

    checks: tuple[Judged, ...]
    findings: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        """Whether the examination has no findings."""
        return not self.findings


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """What a plan predicts that a device is examined against: seconds of each check, and memory of the
    fullest rank."""

    seconds: Mapping[str, float]
    """Predicted seconds by check."""
    bytes_needed: float
    """Predicted memory of the fullest rank, in bytes."""
    known: bool
    """Whether the plan's constants were calibrated on this device, so that a slower device is a finding."""


def judge(seen: Examination, plan: Assumptions | None = None) -> Judgement:
    """Compare all readings and facts of an examination with one another, and with what a plan assumes."""
    plan = plan or Assumptions(seconds={}, bytes_needed=0.0, known=False)
    checks: list[Judged] = []
    findings = [_finding(one.ranks, one.check, 1.0, seen, than="") for one in seen.wrong]
    for check, readings in _by_check(seen).items():
        findings += _slow_devices(check, readings, seen)
        assumed, noise = plan.seconds.get(check), noise_of(readings)
        typical = statistics.median_low(reading.shortest for reading in readings)
        worst = max(readings, key=lambda reading: reading.shortest)
        rate = partial(_rate, check, worst.work)
        checks.append(
            Judged(
                check=check,
                typical=rate(typical),
                worst=rate(worst.shortest),
                worst_of=_who(worst.ranks, seen),
                noise=noise,
                assumed=None if assumed is None else rate(assumed),
            )
        )
        if assumed is not None and plan.known:
            share = typical / assumed - 1
            if share > max(SLOW_SHARE, NOISE_WIDTHS * noise):
                findings.append(_finding((), check, share, seen, than="the plan assumes"))
    for name, values in _facts(seen.hosts).items():
        worst_value, typical = min(values), statistics.median_high(values)
        worst_of = _who((values.index(worst_value),), seen)
        needed = plan.bytes_needed or None if name == FREE_MEMORY else None
        checks.append(
            Judged(
                check=name, typical=typical, worst=worst_value, worst_of=worst_of, noise=None, assumed=needed
            )
        )
        for rank, value in enumerate(values):
            if value < (1 - SLOW_SHARE) * typical:
                findings.append(_finding((rank,), name, 1 - value / typical, seen))
    for host in seen.hosts:
        if host.free_bytes < plan.bytes_needed:
            share = 1 - host.free_bytes / plan.bytes_needed
            findings.append(_finding((host.rank,), FREE_MEMORY, share, seen, than="the plan needs"))
    return Judgement(checks=tuple(checks), findings=tuple(findings))


def is_calm(seen: Examination) -> bool:
    """Whether every process has a check with so little noise that it would show a slow device."""
    lowest_noise: dict[tuple[int, ...], float] = {}
    for reading in seen.readings:
        if reading.check in OF_RANKS:
            lowest_noise[reading.ranks] = min(lowest_noise.get(reading.ranks, reading.noise), reading.noise)
    return all(NOISE_WIDTHS * noise <= _CALM for noise in lowest_noise.values())


def _by_check(seen: Examination) -> dict[str, list[Reading]]:
    """Readings by check, with pairs on two hosts as a check of their own."""
    by_check: dict[str, list[Reading]] = {}
    for reading in sorted(seen.readings, key=lambda reading: (*OF_RANKS, *OF_PAIRS).index(reading.check)):
        crosses_nodes = len({seen.hosts[rank].host for rank in reading.ranks}) > 1
        by_check.setdefault(reading.check + BETWEEN_NODES * crosses_nodes, []).append(reading)
    return by_check


def _slow_devices(check: str, readings: Sequence[Reading], seen: Examination) -> Iterator[Finding]:
    """Findings of one check: ranks all of whose pairs are slow, then slow pairs without such a rank; of a check of
    single ranks, the slow ones.
    """
    shares = _slow(readings, seen.hosts)
    slow_ranks = set()
    for rank in sorted({rank for pair in shares for rank in pair}):
        pairs = [reading.ranks for reading in readings if rank in reading.ranks]
        if len(pairs) >= _FEWEST_PAIRS and all(pair in shares for pair in pairs):
            slow_ranks.add(rank)
            yield _finding((rank,), check, min(shares[pair] for pair in pairs), seen)
    for pair, share in shares.items():
        if slow_ranks.isdisjoint(pair):
            yield _finding(pair, check, share, seen)


def _slow(readings: Sequence[Reading], hosts: Sequence[HostFacts]) -> dict[tuple[int, ...], float]:
    """Ranks of the slow readings of one check → relative slowness to the lower median of readings of their kind, the
    names of their devices. Of two processes the faster one is the measure.
    """
    kinds: dict[tuple[str, ...], list[Reading]] = {}
    for reading in readings:
        kind_name = tuple(sorted(hosts[rank].device for rank in reading.ranks))
        kinds.setdefault(kind_name, []).append(reading)
    slow = {}
    for kind in kinds.values():
        median = statistics.median_low(reading.shortest for reading in kind)
        spread = statistics.median_low(abs(reading.shortest / median - 1) for reading in kind)
        noise = max(noise_of(kind), spread * MAD_TO_DEVIATION)
        for reading in kind:
            share = reading.shortest / median - 1
            if share > max(SLOW_SHARE, NOISE_WIDTHS * noise, NOISE_WIDTHS * reading.noise):
                slow[reading.ranks] = share
    return slow


def _finding(
    ranks: tuple[int, ...], check: str, share: float, seen: Examination, *, than: str = "the median"
) -> Finding:
    """A finding about these ranks."""
    return Finding(who=_who(ranks, seen), ranks=ranks, check=check, share=share, than=than)


def _who(ranks: Sequence[int], seen: Examination) -> str:
    """Ranks and their hosts in words."""
    if not ranks:
        return ALL
    hosts = list(dict.fromkeys(seen.hosts[rank].host for rank in ranks))
    names = "-".join(map(str, ranks))
    return f"rank{'s' * (len(ranks) > 1)} {names} ({', '.join(hosts)})"


def _rate(check: str, work: float, seconds: float) -> float:
    """Reported value of a time: seconds of a call or a small message, else work per second."""
    return seconds / work if check.startswith((LAUNCH, LATENCY)) else work / seconds


def _facts(hosts: Sequence[HostFacts]) -> dict[str, list[float]]:
    """Facts of hosts for which more is better, by name, with the value of each rank."""
    facts: dict[str, list[float]] = {FREE_MEMORY: [float(one.free_bytes) for one in hosts]}
    clocks = [one.clock for one in hosts if one.clock is not None]
    if len(clocks) == len(hosts):
        facts["clock"] = clocks
    return facts | {"cores": [float(one.cores) for one in hosts]}


_LONGEST_SECONDS = 300.0


def examine(processes: int, *, device: str) -> Examination:
    """Examine `processes` devices of this machine, or those of the job if the environment has RANK.

    `device`: `cpu` or `cuda`. Started by torchrun or in a SLURM job that sets RANK, this process is that rank, and
    every one of them gets what all found.

    Raises:
        HostError: fewer CUDA devices than processes, or another number of processes than the job has.
        RunError: a process failed; the last lines it wrote are the problems.
    """
    if "RANK" not in os.environ:
        worker, limit = "executor.doctor.measuring", _LONGEST_SECONDS
        texts = run_workers(worker, processes, device, task="the examination", longest_seconds=limit)
        return Examination.model_validate_json(texts[0])
    from executor.doctor.measuring import examine_here

    if (ranks := int(os.environ["WORLD_SIZE"])) != processes:
        raise HostError(
            f"{processes} processes were asked for, and torchrun has started {ranks}",
            hint="leave out --processes, or start as many",
        )
    with among_workers(device) as own_device:
        return examine_here(own_device)


_PAIR = 2


def assumptions_of(plan: Plan) -> Assumptions:
    """Seconds of each check that the plan's profile predicts, and the memory of its fullest rank.

    A plan over several pools of GPUs, each with a profile of its own, says only what memory it needs.
    """
    from executor.doctor.measuring import sizes_of  # imports torch

    needed = max(sum(parts.values()) for parts in plan.prediction.rank_memory)
    question = plan.question
    if question.has_pools:
        return Assumptions(seconds={}, bytes_needed=needed, known=False)
    sizes = sizes_of("cpu" if question.cluster.gpu.kind == "cpu" else "cuda")
    device = device_of(question, uncast=True)
    side = np.array([float(sizes.side)])
    seconds = {MATMUL: float(gemm_seconds(side, side, side, device)[0])}
    seconds[MEMORY] = 2.0 * sizes.copied_bytes / device.memory_rate
    cluster = question.cluster
    pairs = {"": 1, BETWEEN_NODES: cluster.gpus_per_node}
    for level, stride in pairs.items():
        if _PAIR * stride > cluster.num_gpus or (not level and cluster.gpus_per_node < _PAIR):
            continue
        group = group_of(cluster, _PAIR, stride)
        for check, size in ((LINK, sizes.large_bytes), (LATENCY, sizes.small_bytes)):
            seconds[check + level] = float(point_to_point_seconds(float(size), group, question.hardware)[0])
    return Assumptions(seconds=seconds, bytes_needed=needed, known=question.hardware.tier != "datasheet")
