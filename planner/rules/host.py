"""The rules that hosts hold what layouts offload to them, in memory and on drives; what nobody says they have holds
nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.axes.offload import offloads
from cost_models.axes.offload.hosts import host_bytes
from cost_models.axes.offload.traffic import drive_bytes
from cost_models.axes.rule import Bools, Rule, Words
from cost_models.errors import InfeasibleError, InputError
from cost_models.memory.device import usable_drive, usable_host_memory
from cost_models.question import Question
from cost_models.units import format_bytes


def _overflows(question: Question, x: LayoutColumns) -> Bools:
    overflows = np.zeros(len(x), dtype=np.bool_)
    for pool in question.by_pool if offloads(x).any() else ():
        overflows |= host_bytes(pool, x) > usable_host_memory(pool.cluster)
    return overflows


def _sentence(question: Question, layout: Layout) -> Words:
    pools = question.by_pool
    columns = LayoutColumns.of([layout])
    pool = next(pool for pool in pools if _overflows(pool, columns)[0])
    cluster, size = pool.cluster, format_bytes(float(host_bytes(pool, columns)[0]))
    what = f"`{layout.brief}` offloads {size} to the memory of each host"
    if cluster.host_memory is None:
        return Words(
            f"{what}, and cluster `{cluster.name}` does not say how much one has",
            "add `host_memory`, or say --host-memory",
        )
    have = f"of the {format_bytes(cluster.host_memory)} of a host of `{cluster.name}`"
    have += f" they may fill {format_bytes(usable_host_memory(cluster))}"
    return Words(f"{what}; {have}", "use more nodes, or offload fewer blocks")


def _overflows_drive(question: Question, x: LayoutColumns) -> Bools:
    overflows = np.zeros(len(x), dtype=np.bool_)
    for pool in question.by_pool if x.offload_drive.any() else ():
        overflows |= drive_bytes(pool, x) > usable_drive(pool.cluster)
    return overflows


def _drive_sentence(question: Question, layout: Layout) -> Words:
    columns = LayoutColumns.of([layout])
    pool = next(pool for pool in question.by_pool if _overflows_drive(pool, columns)[0])
    cluster, size = pool.cluster, format_bytes(float(drive_bytes(pool, columns)[0]))
    what = f"`{layout.brief}` keeps {size} on the drive of each host"
    if cluster.drive is None:
        hint = "add `drive: {capacity: 30 TB, read: 20 GB/s, write: 10 GB/s}` to its file"
        return Words(f"{what}, and cluster `{cluster.name}` does not say that one has any", hint)
    have = f"of the {format_bytes(cluster.drive.capacity)} of a host of `{cluster.name}`"
    have += f" states may fill {format_bytes(usable_drive(cluster))}"
    return Words(f"{what}; {have}", "use more nodes, or offload fewer blocks")


HOST_RULE = Rule(name="hosts hold what is offloaded", broken=_overflows, sentence=_sentence)
DRIVE_RULE = Rule(name="drives hold what lies on them", broken=_overflows_drive, sentence=_drive_sentence)
HOST_RULES = (HOST_RULE, DRIVE_RULE)
"""Asked of layouts that break no other rule: they price their shares."""


def require_hosts(question: Question, layout: Layout) -> None:
    """Raise InputError where memory or drives of hosts do not hold what a layout keeps there."""
    columns = LayoutColumns.of([layout])
    for rule in HOST_RULES:
        if rule.broken(question, columns)[0]:
            words = rule.sentence(question, layout)
            raise InputError(words.what, hint=words.hint)


def needless_drives(question: Question, x: LayoutColumns) -> Bools:
    """(N,): which layouts have on the drive what the memory of their hosts would hold.

    They take as much of the device as without and no less time, so none is the only best one.
    """
    drive = x.offload_drive > 0
    if not drive.any():
        return drive
    return drive & ~_overflows(question, replace(x, offload_drive=np.zeros(len(x), dtype=np.int64)))


def require_two_tiers(question: Question) -> None:
    """Nothing where devices have memory of their own.

    Raises:
        InputError: a device computes in the host's memory.
    """
    for pool in question.by_pool:
        if pool.cluster.gpu.kind == "cpu":
            raise InputError(
                f"`--allow offload` on `{pool.cluster.name}`: its devices' memory is the host's",
                hint="leave out --allow offload: there is nowhere else to keep anything",
            )


def hosts_too_small(question: Question, columns: LayoutColumns) -> InfeasibleError:
    """The error to raise when no host holds what any layout of some offloads: the one that offloads least."""
    least = columns.layout(int(host_bytes(question, columns).argmin()))
    small = next(rule for rule in HOST_RULES if rule.broken(question, LayoutColumns.of([least]))[0])
    words = small.sentence(question, least)
    return InfeasibleError(words.what, hint=words.hint)
