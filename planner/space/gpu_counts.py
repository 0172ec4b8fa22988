"""Numbers of GPUs to choose from: parsing of `--gpus`, numbers that a cluster can have, and the question at each."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.base import MAX_GPUS
from cost_models.errors import InputError, Problem
from cost_models.files import catalog
from cost_models.files.local import LOCAL
from cost_models.question import Question
from cost_models.recommender.question import RecommenderQuestion
from cost_models.specs.cluster import ClusterSpec
from planner.rules.legality import legal_rows
from planner.space.limits import tensor_degrees

Q = TypeVar("Q", Question, RecommenderQuestion)

MOST_SIZES = 1000
"""Maximum number of sizes in one question."""
SIZES_HINT = (
    "write it like 64,128 or 64..1024 (doublings), 64..1024:64 (every 64th) or 64..1024x20 (20 of them)"
)
_WORD = re.compile(r"(\d{1,12})(?:\.\.(\d{1,12})(?::(\d{1,12})|x(\d{1,4}))?)?$", re.ASCII)


def parse_sizes(
    text: str, question: Question | RecommenderQuestion, *, skip_impossible: bool = False
) -> tuple[int, ...]:
    """Numbers of GPUs in rising order, from words between commas.

    `64` is itself, `64..1024` doubles from the first to the last, `64..1024:64` takes every 64th, and `64..1024x20`
    takes 20 in even ratios, each moved to the whole number of nodes near it with most layouts of equal stages. With
    `skip_impossible`, sizes that the cluster cannot have are left out.

    Raises:
        InputError: every word that cannot be read, and every size the cluster cannot have.
    """
    problems: list[Problem] = []
    sizes: set[int] = set()
    for word in text.split(","):
        match = _WORD.match(word.strip())
        complaint = "is not a number of GPUs" if match is None else _out_of_range(match)
        if match is None or complaint:
            problems.append(Problem("--gpus", f"`{word}` {complaint}"))
            continue
        first, last, step, points = (None if group is None else int(group) for group in match.groups())
        assert first is not None
        if last is None:
            sizes.add(first)
        elif step is not None:
            sizes.update(range(first, last + 1, step))
        elif points is not None:
            sizes.update(_in_even_ratios(question, first, last, points))
        else:
            sizes.update(_doublings(first, last))
    if problems:
        raise InputError("the numbers of GPUs cannot be read", problems=problems, hint=SIZES_HINT)
    if skip_impossible:
        return tuple(sorted(size for size in sizes if possible(size, question.cluster)))
    require_possible(question.cluster, sorted(sizes))
    return tuple(sorted(sizes))


def _out_of_range(match: re.Match[str]) -> str:
    """Complaint about the numbers of one word; empty if there is none."""
    first, last, step, points = (None if group is None else int(group) for group in match.groups())
    assert first is not None
    if first == 0:
        return "is not a number of GPUs"
    if match[1].startswith("0"):
        return "begins with a zero; commas stand between several numbers, so write 1024, not 1,024"
    if max(first, last or 0) > MAX_GPUS:
        return f"is more than there are; {MAX_GPUS:,} are the most"
    if last is None:
        return ""
    if last < first:
        return f"runs from {first} down to {last}"
    if step == 0 or points == 0:
        return "takes steps of nothing"
    count = points or (0 if step is None else (last - first) // step + 1)
    return f"names {count:,} sizes; {MOST_SIZES:,} are the most" if count > MOST_SIZES else ""


def _doublings(first: int, last: int) -> list[int]:
    """first, 2·first, 4·first … below the last, and the last."""
    sizes = [first]
    while 2 * sizes[-1] < last:
        sizes.append(2 * sizes[-1])
    return sorted({*sizes, last})


def _in_even_ratios(
    question: Question | RecommenderQuestion, first: int, last: int, points: int
) -> list[int]:
    """Sizes near `first · (last / first)^(i / (points − 1))`: near each the one with most layouts of equal stages."""
    unit = question.cluster.gpus_per_node if first >= question.cluster.gpus_per_node else 1
    targets = np.geomspace(first, last, max(points, 2))[: max(points, 1)]
    spread = (last / first) ** (0.5 / max(points - 1, 1))
    picks: list[int] = []
    for target in targets.tolist():
        low, high = math.ceil(target / spread / unit), math.floor(target * spread / unit)
        around = range(max(low, 1), max(high, round(target / unit)) + 1)
        sizes = [count * unit for count in around if first <= count * unit <= last]
        sizes = [size for size in sizes if size not in picks]
        offers = {size: plain_layouts(question, size) for size in sizes}
        best = max(sizes, key=lambda size: (*offers[size], -abs(math.log(size / target))), default=0)
        if best and offers[best][1]:
            picks.append(best)
    return picks


def plain_layouts(question: Question | RecommenderQuestion, gpus: int) -> tuple[int, int]:
    """Numbers of legal plain pipelines (no ZeRO; `mbs1`, or one microbatch) on `gpus` GPUs: with equal stages, and all.

    For a recommender 1 if the GPUs divide its batch, else 0.
    """
    if isinstance(question, RecommenderQuestion):
        even = int(question.training.global_batch % gpus == 0)
        return even, even
    sized = resized(question, gpus)
    plain = [
        Layout(tp=tp, pp=pp, dp=dp, mbs=mbs)
        for tp in tensor_degrees(sized.cluster)
        for pp in range(1, sized.model.num_layers + 1)
        if gpus % (tp * pp) == 0 and sized.training.global_batch % (dp := gpus // (tp * pp)) == 0
        for mbs in {1, sized.training.global_batch // dp}
    ]
    if not plain:
        return 0, 0
    columns = LayoutColumns.of(plain)
    legal = columns.rows(np.flatnonzero(legal_rows(sized, columns)))
    pipelines = {*zip(legal.tp.tolist(), legal.pp.tolist(), strict=True)}
    return sum(sized.model.num_layers % pp == 0 for _, pp in pipelines), len(pipelines)


def possible(count: int, cluster: ClusterSpec) -> bool:
    """Whether a number of GPUs is part of a node, or whole connected nodes."""
    per_node, connected = cluster.gpus_per_node, cluster.links.inter_node is not None
    whole_nodes = connected and count % per_node == 0 and not cluster.odd_buildings(count // per_node)
    return count <= per_node or whole_nodes


def require_possible(cluster: ClusterSpec, counts: Sequence[int]) -> None:
    """Require that the cluster can have each of these numbers of GPUs.

    Raises:
        InputError: names the numbers that it cannot have.
    """
    reason = (
        "no whole number of nodes or buildings"
        if cluster.buildings
        else "no whole number of nodes"
        if cluster.links.inter_node
        else "more than a node, and nodes are not connected"
    )
    problems = [
        Problem("", f"{count:,} GPUs are {reason}; a node has {cluster.gpus_per_node}")
        for count in counts
        if not possible(count, cluster)
    ]
    if problems:
        raise InputError(f"`{cluster.name}` cannot have these numbers of GPUs", problems=problems)


def on_whole_nodes(question: Q) -> Q:
    """The question on one whole node, if it has only part of a node of a catalogue cluster."""
    cluster = question.cluster
    if cluster.nodes > 1 or cluster.name == LOCAL or cluster.name not in catalog.names("clusters"):
        return question
    original = catalog.load_cluster(cluster.name)
    fits = original.gpu.name == cluster.gpu.name and original.gpus_per_node >= cluster.gpus_per_node
    node = {"gpus_per_node": original.gpus_per_node if fits else cluster.gpus_per_node}
    return replace(question, cluster=cluster.model_copy(update=node))


def resized(question: Q, gpus: int, global_batch: int | None = None) -> Q:
    """The question on another number of GPUs, and with another batch if given."""
    cluster = question.cluster
    per_node = min(gpus, cluster.gpus_per_node)
    training = question.training
    if global_batch is not None:
        training = training.model_copy(update={"global_batch": global_batch})
    sized = cluster.model_copy(update={"gpus_per_node": per_node, "nodes": gpus // per_node})
    return replace(question, cluster=sized, training=training)
