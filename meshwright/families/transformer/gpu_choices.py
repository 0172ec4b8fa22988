"""Numbers of GPUs as `--gpus` says them: one, or several to choose from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cost_models.errors import InputError, Problem
from cost_models.question import Question
from cost_models.specs.cluster import ClusterSpec
from cost_models.specs.pools import MixedCluster
from meshwright.inputs.questions import Inputs, cluster_of, whole_cluster
from planner.space.gpu_counts import SIZES_HINT, parse_sizes


def single_count(gpus: int | str | Sequence[int] | None) -> int | None:
    """The one number of GPUs, or None where there is a choice."""
    if not isinstance(gpus, str):
        return gpus if isinstance(gpus, int) else None
    word = gpus.strip()
    return int(word) if word.removeprefix("-").isdecimal() and len(word) < 100 else None


def sizes_of(inputs: Inputs, gpus: str, question: Question) -> tuple[int, ...]:
    """The numbers of GPUs that a choice names.

    Raises:
        InputError: it cannot be read, or names more than there are.
    """
    whole_nodes(inputs)
    sizes = parse_sizes(gpus, question)
    cluster_of(inputs.cluster, max(sizes))  # a cluster of a file ends where the file says
    return sizes


def sizes_up_to(inputs: Inputs, most: int | None, question: Question) -> tuple[int, ...]:
    """Doublings from one node to the given number of GPUs."""
    whole = whole_nodes(inputs)
    if most is None:
        raise InputError(
            "`--objective gpus` cannot be answered",
            problems=[Problem("--gpus", "missing: which numbers of GPUs there are to choose from")],
            hint=SIZES_HINT,
        )
    return parse_sizes(f"{min(whole.gpus_per_node, most)}..{most}", replace(question, cluster=whole))


def whole_nodes(inputs: Inputs) -> ClusterSpec:
    """The cluster with whole nodes, where the answer may use part of one."""
    cluster = whole_cluster(inputs)
    if isinstance(cluster, MixedCluster):
        raise InputError(
            f"the number of GPUs of `{cluster.name}` is no choice: it has several pools",
            hint="change the pools in its file",
        )
    return cluster
