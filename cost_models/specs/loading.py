"""What the user names → specs: a catalogue name, a file of ours, or a Hugging Face config."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cost_models.errors import InputError, UnknownNameError
from cost_models.specs import catalog
from cost_models.specs.base import MAX_GPUS
from cost_models.specs.cluster import ClusterSpec
from cost_models.specs.documents import Document, Key, printable
from cost_models.specs.huggingface import read_config
from cost_models.specs.local import LOCAL
from cost_models.specs.parsing import check_kind, load_spec, parse_spec, validate
from cost_models.specs.reading import is_file, read_document
from cost_models.specs.schema import json_schema
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec

__all__ = [
    "LoadedModel",
    "json_schema",
    "load_spec",
    "parse_spec",
    "resolve_cluster",
    "resolve_model",
    "resolve_training",
]

HUGGING_FACE_FILE = "config.json"
_FILE_SUFFIXES = (".yaml", ".yml", ".json")
_FLAGS = {"sequence_length": "--sequence"}
"""Flags not spelt like their field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model, and what had to be assumed to know its shape."""

    spec: TransformerSpec
    assumptions: tuple[str, ...] = ()
    """Facts the file does not say, in words; empty for the catalogue and for our own files."""


def resolve_model(text: str) -> LoadedModel:
    """A catalogue name, or the path of our YAML (`kind: transformer`) or of a Hugging Face config.

    Raises:
        UnknownNameError: neither a known name nor a file.
        InputError: a file that does not describe a model; all problems at once.
    """
    if text in catalog.names("models"):
        return LoadedModel(spec=catalog.load_model(text))
    path = Path(text)
    if is_file(path / HUGGING_FACE_FILE):
        path = path / HUGGING_FACE_FILE
    elif not _names_a_file(text):
        raise UnknownNameError(
            "model", printable(text), catalog.names("models"), hint="known names: meshwright catalog models"
        )
    document = read_document(path)
    if isinstance(document.value, dict) and "kind" not in document.value and path.suffix == ".json":
        fields, assumptions = read_config(document)
        return LoadedModel(spec=validate(fields, TransformerSpec), assumptions=assumptions)
    return LoadedModel(spec=validate(document, TransformerSpec))


def resolve_cluster(text: str, gpus: int | None = None) -> ClusterSpec:
    """A catalogue name or a YAML file, cut or grown to `gpus` GPUs in all.

    Catalogue clusters have any number of nodes (one unless `gpus` says more), `local` any number of
    processes; a file has the nodes it states and no more. `gpus` is whole nodes, or part of one.

    Raises:
        UnknownNameError: neither a known name nor a file.
        InputError: a file with problems, or a number of GPUs that this cluster cannot have.
    """
    if gpus is not None and gpus <= 0:
        raise InputError(f"a cluster of {gpus} GPUs cannot train anything", hint="--gpus must be above zero")
    _require_existing(gpus or 0)
    if text == LOCAL:
        return catalog.local_cluster(gpus)
    if text in catalog.names("clusters"):
        cluster = catalog.load_cluster(text)
        return _sized(cluster, gpus or cluster.num_gpus)
    if not _names_a_file(text):
        raise UnknownNameError(
            "cluster",
            printable(text),
            catalog.names("clusters"),
            hint="known names: meshwright catalog clusters",
        )
    cluster = load_spec(text, ClusterSpec, replace={"gpu": catalog.gpu_fields})
    if cluster.profile and (beside := Path(text).parent / cluster.profile).is_file():
        cluster = cluster.model_copy(update={"profile": str(beside)})
    if gpus is not None and gpus > cluster.num_gpus:
        raise InputError(
            f"{gpus} GPUs are more than cluster `{cluster.name}` has, {cluster.num_gpus}",
            hint=f"--gpus {cluster.num_gpus} is all of it; `nodes:` in {text} says how many there are",
        )
    _require_existing(gpus or cluster.num_gpus)
    return _sized(cluster, gpus or cluster.num_gpus)


def _require_existing(gpus: int) -> None:
    if gpus > MAX_GPUS:
        raise InputError(f"{gpus:,} GPUs are more than there are", hint=f"{MAX_GPUS:,} are the most")


def resolve_training(path: str | None, **overrides: Any) -> TrainingSpec:
    """A training job from a YAML file (`kind: training`), flags or both; None is no flag.

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
    return validate(document, TrainingSpec)


def _flags(names: Any) -> dict[Key, str]:
    """Field → its command-line flag."""
    return {(name,): _FLAGS.get(name, "--" + name.replace("_", "-")) for name in names}


def _sized(cluster: ClusterSpec, gpus: int) -> ClusterSpec:
    """The cluster with `gpus` GPUs: whole nodes, or part of one. Raises InputError where that cannot be."""
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
            f"`{cluster.name}` has no network between nodes, so it ends at {per_node} GPUs",
            hint="describe yours in a file with `links.inter_node`",
        )
    return cluster.model_copy(update={"nodes": nodes})


def _names_a_file(text: str) -> bool:
    """Whether the user means a file: it exists, or it is written like one."""
    return is_file(text) or "/" in text or "\\" in text or text.endswith(_FILE_SUFFIXES)
