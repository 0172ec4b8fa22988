"""Loading a cluster or a training job by what the user names: a catalogue name, a file, or flags."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from cost_models.base import MAX_GPUS
from cost_models.documents import Document, printable
from cost_models.errors import InputError, Problem
from cost_models.files import catalog
from cost_models.files.amounts import read_batch, read_sequence, read_tokens
from cost_models.files.local import LOCAL
from cost_models.files.names import TEMPLATE, known_cluster, names_a_file, unknown_cluster
from cost_models.files.parsing import Replacements, load_job, validate
from cost_models.files.reading import is_file, read_document
from cost_models.specs.cluster import MAX_POOLS, ClusterSpec, MixedCluster
from cost_models.specs.training import TrainingSpec
from cost_models.units import counted, grouped

_POOLS = re.compile(r"[^:+]+:[0-9]{1,9}(\+[^:+]+:[0-9]{1,9})+", re.ASCII)
"""Pattern of several clusters with their numbers of GPUs: `dgx-a100-80gb:512+dgx-h100:512`."""
_SIZED = re.compile(r"([^:+]+):([0-9]{1,9})", re.ASCII)
"""Pattern of one cluster with its number of GPUs: `dgx-h100:128`."""


def resolve_cluster(text: str, gpus: int | None = None) -> ClusterSpec | MixedCluster:
    """Load the cluster that a user names, by catalogue name, YAML file or several pools `name:GPUs+name:GPUs`,
    resized to `gpus` GPUs. Names may also be `name:GPUs`.

    Catalogue clusters have any number of nodes (one unless `gpus` says more), `local` any number of
    processes; a file has the nodes it states and no more. `gpus` is whole nodes, or part of one. A cluster of several
    pools has the sizes it states.

    Raises:
        UnknownNameError: neither a known name nor a file.
        InputError: a file with problems, or a number of GPUs that this cluster cannot have.
    """
    if gpus is not None and gpus <= 0:
        raise InputError(f"a cluster of {gpus} GPUs cannot train anything", hint="--gpus must be above zero")
    _require_existing(gpus or 0)
    has_pools = _POOLS.fullmatch(text) is not None
    if text == LOCAL:
        return catalog.local_cluster(gpus)
    if (sizes := _SIZED.fullmatch(text)) and not is_file(text):
        size = int(sizes[2])
        if gpus not in (None, size):
            message = f"`{printable(text)}` has {counted(size, 'GPU')}, --gpus says {grouped(gpus or 0)}"
            raise InputError(message, hint="say it once")
        return resolve_cluster(sizes[1], size)
    if not has_pools and (known := known_cluster(text)) and not is_file(text):
        cluster = catalog.load_cluster(known)
        return sized(cluster, gpus or cluster.num_gpus)
    if not has_pools and not names_a_file(text):
        raise unknown_cluster(text, gpus)
    stated = _pooled(text) if has_pools else _of_file(text)
    if isinstance(stated, MixedCluster):
        if gpus in (None, stated.num_gpus):
            return stated
        hint = "size the pools: `nodes:` in the file, or `dgx-a100-80gb:512+dgx-h100:512`"
        message = f"--gpus {gpus} leaves open which pools of `{stated.name}` they come from"
        raise InputError(message, hint=hint)
    if gpus is not None and gpus > stated.num_gpus:
        hint = f"--gpus {stated.num_gpus} is all of it; `nodes:` in {text} says how many there are"
        message = f"{gpus} GPUs are more than cluster `{stated.name}` has, {stated.num_gpus}"
        raise InputError(message, hint=hint)
    return sized(stated, gpus or stated.num_gpus)


def _of_file(path: str) -> ClusterSpec | MixedCluster:
    """Load a cluster, or a cluster of several pools, from a YAML file. Raises InputError, which says how to get
    one that loads."""
    try:
        document = read_document(path)
        if isinstance(document.value, dict) and "pools" in document.value:
            return _mixed_cluster(document)
        cluster = validate(document, ClusterSpec, replace={"gpu": catalog.gpu_fields})
        return _with_profile_beside(cluster, path)
    except InputError as error:
        error.hint = error.hint or f"a file that loads, to start from: {TEMPLATE}"
        raise


def _pooled(text: str) -> MixedCluster:
    """Build a cluster of several pools from a text such as `dgx-a100-80gb:512+dgx-h100:512`; every wrong part is
    reported."""
    pools: list[ClusterSpec] = []
    problems: list[Problem] = []
    parts = text.split("+")
    if len(parts) > MAX_POOLS:
        raise InputError(f"`{printable(text)}` has {len(parts):,} pools; {MAX_POOLS} are the most")
    for part in parts:
        name, _, size = part.rpartition(":")
        try:
            pool = resolve_cluster(name, int(size))
        except InputError as error:
            problems.append(Problem(printable(part), error.headline))
            continue
        if isinstance(pool, MixedCluster):
            problems.append(Problem(printable(part), "a pool is a cluster of one GPU"))
            continue
        namesakes = sum(pool.name in (known.name, known.name.rpartition(".")[0]) for known in pools)
        name = f"{pool.name}.{namesakes + 1}" if namesakes else pool.name
        pools.append(pool.model_copy(update={"name": name}))
    if problems:
        raise InputError(f"`{printable(text)}` is no cluster", problems=problems)
    fields: dict[str, Any] = {"name": printable("+".join(pool.name for pool in pools), limit=90)}
    fields["pools"] = [pool.model_dump(mode="json") for pool in pools]
    return validate(Document(source=f"`{printable(text)}`", value=fields), MixedCluster)


def _mixed_cluster(document: Document) -> MixedCluster:
    """Validate a cluster file with several `pools`, whose GPUs may be catalogue names."""
    problems = dict(document.problems)
    fields = copy.deepcopy(document.value)
    pools = fields["pools"] if isinstance(fields["pools"], list) else []
    for number, pool in enumerate(pools):
        if isinstance(pool, dict) and isinstance(name := pool.get("gpu"), str):
            key = ("pools", number, "gpu")
            try:
                pool["gpu"] = catalog.gpu_fields(name)
            except InputError as error:
                problems[key] = Problem(document.where(key), error.headline)
    mixed = validate(replace(document, value=fields, problems=problems), MixedCluster)
    pools_with_profiles = tuple(_with_profile_beside(pool, document.source) for pool in mixed.pools)
    return mixed.model_copy(update={"pools": pools_with_profiles})


def _with_profile_beside(cluster: ClusterSpec, path: str) -> ClusterSpec:
    """Resolve a cluster's relative path of a hardware profile against the folder of the cluster file."""
    if cluster.profile and (profile := Path(path).parent / cluster.profile).is_file():
        return cluster.model_copy(update={"profile": str(profile)})
    return cluster


def _require_existing(gpus: int) -> None:
    if gpus > MAX_GPUS:
        raise InputError(f"{gpus:,} GPUs are more than there are", hint=f"{MAX_GPUS:,} are the most")


def sized(cluster: ClusterSpec, gpus: int) -> ClusterSpec:
    """Resize a cluster to `gpus` GPUs, in full nodes or part of one node. Raises InputError where it cannot have
    them."""
    _require_existing(gpus)
    per_node = cluster.gpus_per_node
    if gpus < per_node:
        return cluster.model_copy(update={"nodes": 1, "gpus_per_node": gpus})
    nodes, remainder = divmod(gpus, per_node)
    if remainder:
        message = f"{gpus} GPUs are no whole number of `{cluster.name}` nodes, which have {per_node} each"
        raise InputError(message, hint=f"--gpus {nodes * per_node} or --gpus {(nodes + 1) * per_node}")
    if nodes > 1 and cluster.links.inter_node is None:
        message = f"`{cluster.name}` has no network between nodes, so it ends at {counted(per_node, 'GPU')}"
        raise InputError(message, hint="describe yours in a file with `links.inter_node`")
    if odd := cluster.building_problem(nodes):
        raise InputError(f"{grouped(gpus)} GPUs of `{cluster.name}` leave a building half full: {odd}")
    return cluster.model_copy(update={"nodes": nodes})


def resolve_training(path: str | None, **overrides: Any) -> TrainingSpec:
    """Build a training job from a YAML file, command-line flags, or both. The file has `kind: training`; a flag
    that is None was not given.

    Both may say `8K`, `4M tokens` and `15T` (`cost_models.files.amounts`).

    Raises:
        InputError: all problems of file and flags at once.
    """

    def readers(fields: Mapping[str, Any]) -> Replacements:
        return {
            **dict.fromkeys(("sequence_length", "target_length"), read_sequence),
            "global_batch": lambda text: read_batch(text, _sequence_of(fields)),
            "tokens": lambda text: read_tokens(text) if isinstance(text, str) else text,
        }

    return load_job(path, TrainingSpec, overrides, readers)


def _sequence_of(fields: Mapping[str, Any]) -> Any:
    """Sequence length in tokens from a training job's fields; None where the text cannot be parsed."""
    with suppress(ValueError):
        return read_sequence(fields.get("sequence_length"))
    return None
