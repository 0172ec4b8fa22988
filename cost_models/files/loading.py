"""Loading what the user names: a catalogue name, a file of ours, or a Hugging Face config → specs."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from cost_models.base import MAX_GPUS, Spec
from cost_models.documents import Document, Key, printable
from cost_models.errors import InputError, Problem
from cost_models.families import FAMILIES, RECOMMENDER, TRANSFORMER, Family
from cost_models.files import catalog
from cost_models.files.amounts import read_batch, read_sequence, read_tokens
from cost_models.files.local import LOCAL
from cost_models.files.names import (
    is_hub_id,
    known_cluster,
    known_model,
    known_recommender,
    unknown_cluster,
    unknown_model,
)
from cost_models.files.parsing import check_kind, load_spec, parse_spec, validate
from cost_models.files.pipes import is_pipe
from cost_models.files.reading import is_file, read_document
from cost_models.files.recommender_files import is_foreign_recommender
from cost_models.files.schema import json_schema
from cost_models.hugging_face.config import read_config
from cost_models.hugging_face.dropout import Dropout, dropout_of
from cost_models.hugging_face.windows import in_turns
from cost_models.specs.cluster import ClusterSpec
from cost_models.specs.pools import MAX_POOLS, MixedCluster
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec
from cost_models.units import counted, grouped

__all__ = [
    "LoadedModel",
    "json_schema",
    "load_spec",
    "parse_spec",
    "resolve_cluster",
    "resolve_model",
    "resolve_training",
]

M = TypeVar("M")

HUGGING_FACE_FILE = "config.json"
_FILE_SUFFIXES = (".yaml", ".yml", ".json")
_POOLS = re.compile(r"[^:+]+:[0-9]{1,9}(\+[^:+]+:[0-9]{1,9})+", re.ASCII)
"""Pattern of several clusters with their numbers of GPUs: `dgx-a100-80gb:512+dgx-h100:512`."""
_SIZED = re.compile(r"([^:+]+):([0-9]{1,9})", re.ASCII)
"""Pattern of one cluster with its number of GPUs: `dgx-h100:128`."""
_FLAGS = {"sequence_length": "--sequence"}
"""Field → its flag, where that is spelt otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model, with what was assumed about its shape."""

    spec: TransformerSpec
    assumptions: tuple[str, ...] = ()
    """Assumed facts that the file does not say, and simplifications of its prices, in words."""
    dropout: Dropout | None = None
    """What its config says of training, which is no part of its shape."""


def resolve_model(text: str | Document) -> LoadedModel:
    """The model of a catalogue name, a Hugging Face id, our YAML (`kind: transformer`) or a config.json, or of what
    one of these holds.

    Raises:
        UnknownNameError: neither a known name nor a file.
        InputError: a file that does not describe a model; all problems at once.
    """
    if isinstance(text, Document):
        return _loaded(validate(text, TransformerSpec))
    if text in catalog.names("models"):
        return _loaded(catalog.load_model(text))
    path = Path(text)
    if is_file(path / HUGGING_FACE_FILE):
        path = path / HUGGING_FACE_FILE
    elif not is_file(path):
        if known := known_model(text):
            return _loaded(catalog.load_model(known), (f"`{printable(text)}` is {known} of the catalogue",))
        if is_hub_id(text) or not _names_a_file(text):
            raise unknown_model(text)
    document = read_document(path)
    if isinstance(document.value, dict) and "kind" not in document.value and path.suffix == ".json":
        fields, assumptions = read_config(document)
        loaded = _loaded(validate(fields, TransformerSpec), assumptions)
        return replace(loaded, dropout=dropout_of(document.value))
    return _loaded(validate(document, TransformerSpec))


def read_once(model: M) -> M | Document:
    """What a pipe holds, which gives it once; any other model as it is. Raises InputError where it cannot be read."""
    return read_document(model) if isinstance(model, str) and is_pipe(model) else model


def family_of_model(model: str | Spec | Document) -> Family:
    """The family of a model by its name, its file or itself; of what is no model, the transformers', which says so."""
    kind = getattr(model, "kind", None)
    if isinstance(model, str):
        kind = _kind_of(model)
    if isinstance(model, Document):
        kind = _kind_in(model)
    return FAMILIES.get(str(kind), FAMILIES[TRANSFORMER])


def _kind_of(text: str) -> object:
    """The kind that a file states or shows; of a name that is none, of the catalogue."""
    if is_file(text):
        with suppress(InputError):
            return _kind_in(read_document(text))
    return RECOMMENDER if known_recommender(text) and not known_model(text) else None


def _kind_in(document: Document) -> object:
    if is_foreign_recommender(document):
        return RECOMMENDER
    return document.value.get("kind") if isinstance(document.value, dict) else None


def _loaded(spec: TransformerSpec, assumptions: tuple[str, ...] = ()) -> LoadedModel:
    """The model with its assumptions and what its prices leave out."""
    remarks = []
    if 0 < spec.windowed_share < 1:
        turns = in_turns(spec.window_pattern)
        remarks.append(f"every block is the mean of those with a window and without ({turns}), for prices")
    if spec.untrained:
        remarks.append(f"a model without {', '.join(spec.untrained)}, for prices; `run` refuses it")
    return LoadedModel(spec=spec, assumptions=(*assumptions, *remarks))


def resolve_cluster(text: str, gpus: int | None = None) -> ClusterSpec | MixedCluster:
    """A catalogue name or a YAML file, cut or grown to `gpus` GPUs in all (also `name:GPUs`), or several clusters as
    `name:GPUs+name:GPUs`.

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
    if _POOLS.fullmatch(text):
        return _as_stated(_pooled(text), gpus)
    if text == LOCAL:
        return catalog.local_cluster(gpus)
    if (stated := _SIZED.fullmatch(text)) and not is_file(text):
        return resolve_cluster(stated[1], _agreed(text, int(stated[2]), gpus))
    if (known := known_cluster(text)) and not is_file(text):
        cluster = catalog.load_cluster(known)
        return sized(cluster, gpus or cluster.num_gpus)
    if not _names_a_file(text):
        raise unknown_cluster(text, gpus)
    document = read_document(text)
    if isinstance(document.value, dict) and "pools" in document.value:
        return _as_stated(_mixed_cluster(document), gpus)
    cluster = _with_profile_beside(validate(document, ClusterSpec, replace={"gpu": catalog.gpu_fields}), text)
    if gpus is not None and gpus > cluster.num_gpus:
        raise InputError(
            f"{gpus} GPUs are more than cluster `{cluster.name}` has, {cluster.num_gpus}",
            hint=f"--gpus {cluster.num_gpus} is all of it; `nodes:` in {text} says how many there are",
        )
    return sized(cluster, gpus or cluster.num_gpus)


def _agreed(text: str, said: int, gpus: int | None) -> int:
    """The number of GPUs in `dgx-h100:128`, unless `--gpus` says another. Raises InputError."""
    if gpus not in (None, said):
        raise InputError(
            f"`{printable(text)}` has {counted(said, 'GPU')}, --gpus says {grouped(gpus or 0)}",
            hint="say it once",
        )
    return said


def _pooled(text: str) -> MixedCluster:
    """A cluster of pools from `dgx-a100-80gb:512+dgx-h100:512`; every wrong part is reported."""
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
        before = sum(pool.name in (known.name, known.name.rpartition(".")[0]) for known in pools)
        pools.append(pool.model_copy(update={"name": f"{pool.name}.{before + 1}"}) if before else pool)
    if problems:
        raise InputError(f"`{printable(text)}` is no cluster", problems=problems)
    document = Document(
        source=f"`{printable(text)}`",
        value={
            "name": printable("+".join(pool.name for pool in pools), limit=90),
            "pools": [pool.model_dump(mode="json") for pool in pools],
        },
    )
    return validate(document, MixedCluster)


def _mixed_cluster(document: Document) -> MixedCluster:
    """The cluster of a file with `pools:`, whose GPUs may be names."""
    problems = dict(document.problems)
    pools = document.value["pools"]
    if isinstance(pools, list):
        pools = [dict(pool) if isinstance(pool, dict) else pool for pool in pools]
        for number, pool in enumerate(pools):
            if isinstance(pool, dict) and isinstance(name := pool.get("gpu"), str):
                key = ("pools", number, "gpu")
                try:
                    pool["gpu"] = catalog.gpu_fields(name)
                except InputError as error:
                    problems[key] = Problem(document.where(key), error.headline)
    fields = document.value | {"pools": pools}
    mixed = validate(replace(document, value=fields, problems=problems), MixedCluster)
    beside = tuple(_with_profile_beside(pool, document.source) for pool in mixed.pools)
    return mixed.model_copy(update={"pools": beside})


def _as_stated(mixed: MixedCluster, gpus: int | None) -> MixedCluster:
    """The cluster of pools, unless `--gpus` says another number. Raises InputError."""
    if gpus not in (None, mixed.num_gpus):
        raise InputError(
            f"--gpus {gpus} leaves open which pools of `{mixed.name}` they come from",
            hint="size the pools: `nodes:` in the file, or `dgx-a100-80gb:512+dgx-h100:512`",
        )
    return mixed


def _with_profile_beside(cluster: ClusterSpec, path: str) -> ClusterSpec:
    """The cluster with a relative path of its profile resolved beside the file that names it."""
    if cluster.profile and (beside := Path(path).parent / cluster.profile).is_file():
        return cluster.model_copy(update={"profile": str(beside)})
    return cluster


def _require_existing(gpus: int) -> None:
    if gpus > MAX_GPUS:
        raise InputError(f"{gpus:,} GPUs are more than there are", hint=f"{MAX_GPUS:,} are the most")


def resolve_training(path: str | None, **overrides: Any) -> TrainingSpec:
    """The training job from a YAML file (`kind: training`), flags, or both; a flag that is None was not given.

    Both may say `8K`, `4M tokens` and `15T` (`cost_models.files.amounts`).

    Raises:
        InputError: all problems of file and flags at once.
    """
    given = {name: list(value) if isinstance(value, tuple) else value for name, value in overrides.items()}
    given = {name: value for name, value in given.items() if value is not None}
    if path is None:
        document = Document(
            source="the training options", value=given, flags=_flags(TrainingSpec.model_fields)
        )
    else:
        document = read_document(path)
        check_kind(document, TrainingSpec)
        document = replace(document, value=document.value | given, flags=_flags(given))
    fields = document.value
    return validate(
        document,
        TrainingSpec,
        replace={
            "sequence_length": read_sequence,
            "global_batch": lambda text: read_batch(text, _sequence_of(fields)),
            "tokens": lambda text: read_tokens(text) if isinstance(text, str) else text,
        },
    )


def _sequence_of(fields: dict[str, Any]) -> Any:
    """Tokens of a sequence; None where they cannot be read."""
    try:
        return read_sequence(fields.get("sequence_length"))
    except ValueError:
        return None


def _flags(names: Any) -> dict[Key, str]:
    """Field → its command-line flag."""
    return {(name,): _FLAGS.get(name, "--" + name.replace("_", "-")) for name in names}


def sized(cluster: ClusterSpec, gpus: int) -> ClusterSpec:
    """The cluster with `gpus` GPUs: whole nodes, or part of one. Raises InputError where it cannot have them."""
    _require_existing(gpus)
    per_node = cluster.gpus_per_node
    if gpus < per_node:
        return cluster.model_copy(update={"nodes": 1, "gpus_per_node": gpus})
    nodes, rest = divmod(gpus, per_node)
    if rest:
        raise InputError(
            f"{gpus} GPUs are no whole number of `{cluster.name}` nodes, which have {per_node} each",
            hint=f"--gpus {nodes * per_node} or --gpus {(nodes + 1) * per_node}",
        )
    if nodes > 1 and cluster.links.inter_node is None:
        raise InputError(
            f"`{cluster.name}` has no network between nodes, so it ends at {counted(per_node, 'GPU')}",
            hint="describe yours in a file with `links.inter_node`",
        )
    if odd := cluster.odd_buildings(nodes):
        raise InputError(f"{grouped(gpus)} GPUs of `{cluster.name}` leave a building half full: {odd}")
    return cluster.model_copy(update={"nodes": nodes})


def _names_a_file(text: str) -> bool:
    """Whether the text means a file: it exists, or it is written like one."""
    return is_file(text) or "/" in text or "\\" in text or text.endswith(_FILE_SUFFIXES)
