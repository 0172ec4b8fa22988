"""Specs from documents, files, and the catalogue of models, GPUs, clusters, stacks and profiles; specs as
YAML, and as JSON schemas with the docstring of every field. Problems are reported in the user's words.

A data file of the catalogue holds either one spec, whose name is the file's, or many `entries:` by name that take the
file's `source` and `shared:` fields. Files are read when first needed.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from functools import cache, partial, reduce
from operator import getitem
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import yaml
from pydantic import ValidationError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core.core_schema import ModelSchema

from cost_models.base import Spec
from cost_models.documents import Document, Key, printable, spec_problems
from cost_models.errors import InputError, Problem, UnknownNameError
from cost_models.families import FAMILIES
from cost_models.files import data_document, data_files
from cost_models.files.local import LOCAL, gpu_machine, installed_gpus, this_machine
from cost_models.files.reading import is_file, read_document
from cost_models.files.whole import write_whole
from cost_models.flags import field_docstrings
from cost_models.specs.cluster import ClusterSpec, GpuSpec, MixedCluster, OperationsSpec
from cost_models.specs.hardware import HardwareProfile
from cost_models.specs.recommender.constants import EmbeddingProfile
from cost_models.specs.recommender.model import RecommenderSpec
from cost_models.specs.recommender.training import RecommenderTraining
from cost_models.specs.stack import StackSpec
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec
from cost_models.units import counted

S = TypeVar("S", bound=Spec)

_FLAGS = {"sequence_length": "--sequence", "target_length": "--decoder-sequence"}
"""Command-line flag of each field whose flag is spelled differently, by field."""
Replacements = Mapping[Key, Callable[[Any], Any]]
"""Function that converts the file's value of a field for validation (a GPU's name to its fields), by path."""

FieldReaders = Callable[[Mapping[str, Any]], Replacements]
"""Function from all fields of a training job to the replacements of some."""


def load_spec(path: str | Path, spec_type: type[S]) -> S:
    """Read a YAML or JSON file and validate the content as `spec_type`.

    Raises:
        InputError: the file cannot be read, or does not say what `spec_type` needs; all problems at once.
    """
    return validate(read_document(path), spec_type)


def load_job(path: str | None, spec_type: type[S], overrides: Mapping[str, Any], readers: FieldReaders) -> S:
    """Build a training job of `spec_type` from a YAML file, command-line flags, or both. `overrides` are the
    values of the flags; None: the flag was not given.

    `readers` make the replacements from all fields of the job, as one field may depend on another.

    Raises:
        InputError: all problems of file and flags at once.
    """
    flag_values = {name: value for name, value in overrides.items() if value is not None}
    document = Document(source="the training options", value={}) if path is None else read_document(path)
    check_kind(document, spec_type)
    given_fields = spec_type.model_fields if path is None else flag_values
    flags: dict[Key, str] = {(one,): _FLAGS.get(one, "--" + one.replace("_", "-")) for one in given_fields}
    document = dataclasses.replace(document, value=document.value | flag_values, flags=flags)
    return validate(document, spec_type, readers(document.value))


def validate(document: Document, spec_type: type[S], replace: Replacements | None = None) -> S:
    """Validate a parsed document as `spec_type`, and report all problems by their place in the file.

    Raises:
        InputError: with one problem for each thing that is wrong, the first of many.
    """
    check_kind(document, spec_type)
    fields = copy.deepcopy(document.value) if replace else document.value
    problems, unlisted = dict(document.problems), 0
    for key, convert in (replace or {}).items():
        group = reduce(getitem, key[:-1], fields)
        try:
            if isinstance(group, dict) and key[-1] in group:
                group[key[-1]] = convert(group[key[-1]])
        except ValueError as error:
            message = error.headline if isinstance(error, InputError) else str(error)
            problems[key] = Problem(document.where(key), printable(message))
    try:
        spec = spec_type.model_validate_json(json.dumps(fields))
    except ValidationError as error:
        messages, unlisted = spec_problems(error, spec_type, dataclasses.replace(document, problems=problems))
        problems |= {key: Problem(document.where(key), what) for key, what in messages.items()}
    if problems:
        in_order = [problems[key] for key in sorted(problems, key=document.line)]
        number = counted(len(in_order) + unlisted, "problem")
        raise InputError(f"{number} in {document.source}", problems=in_order, more=unlisted)
    return spec


def check_kind(document: Document, spec_type: type[Spec]) -> None:
    """Raise InputError unless a document is a mapping whose `kind` is the kind of `spec_type`."""
    kinds = get_args(spec_type.model_fields["kind"].annotation) if "kind" in spec_type.model_fields else ()
    expected = kinds[0] if len(kinds) == 1 else None  # a GPU's kind is one of several, no file kind
    if not isinstance(document.value, dict):
        raise InputError(f"`{document.source}` holds no `field: value` pairs")
    kind = document.value.get("kind", expected)
    if expected is not None and kind != expected:
        unknown = expected in FAMILIES and str(kind) not in FAMILIES
        kinds_text = f" (kinds of models: {', '.join(FAMILIES)})" if unknown else ""
        stated = f"`{document.source}` is a `{printable(str(kind))}`"
        raise InputError(f"{stated}; a `{expected}` is needed here{kinds_text}")


KINDS: dict[str, type[Spec]] = {"transformer": TransformerSpec, "cluster": ClusterSpec, "pools": MixedCluster}
KINDS |= {"recommender": RecommenderSpec, "training": TrainingSpec}
KINDS["recommender-training"] = RecommenderTraining
KINDS |= {"stack": StackSpec, "profile": HardwareProfile, "operations": OperationsSpec}
"""Spec of each kind of input file; `pools` is a cluster of several pools."""


def save_spec(spec: Spec, path: Path) -> None:
    """Write a spec atomically as YAML that `load_spec` can read. Raises OSError, which names `path`."""
    fields = spec.model_dump(mode="json", exclude_none=True)
    write_whole(path, yaml.safe_dump(fields, sort_keys=False, width=100))


class _DescribedSchema(GenerateJsonSchema):
    """Generator of JSON schemas in which each field's docstring is its description."""

    def model_schema(self, schema: ModelSchema) -> JsonSchemaValue:
        """JSON schema of a spec, with the field docstrings added as descriptions."""
        written = super().model_schema(schema)
        for field, text in field_docstrings(schema["cls"]).items():
            if field in written.get("properties", {}):
                written["properties"][field] = {"description": text, **written["properties"][field]}
        return written


def json_schema(kind: str) -> dict[str, Any]:
    """JSON schema of a kind of input file (such as `cluster`), for files as users write them: quantities are
    text with a unit, and a cluster's GPU may be a name.

    Raises:
        UnknownNameError: no such kind of file.
    """
    if kind not in KINDS:
        raise UnknownNameError("kind of file", kind, KINDS, hint=f"kinds: {', '.join(KINDS)}")
    schema = KINDS[kind].model_json_schema(mode="serialization", schema_generator=_DescribedSchema)
    if kind in ("cluster", "pools"):
        cluster = schema if kind == "cluster" else schema["$defs"]["ClusterSpec"]
        gpu = cluster["properties"]["gpu"]
        gpu["anyOf"] = [{"type": "string"}, {"$ref": gpu.pop("$ref")}]
    return schema


Kind = Literal["models", "recommenders", "gpus", "clusters", "stacks", "profiles", "embeddings", "operations"]

_ENTRIES = re.compile(r"^entries:", re.MULTILINE)


def names(kind: Kind) -> tuple[str, ...]:
    """Names of all catalogue entries of one kind, in the order of the data files."""
    return tuple(_index(kind))


def _load(kind: Kind, noun: str, spec_type: type[S], name: str, *, or_file: bool = False) -> S:
    """Load a catalogue entry by name, or, with `or_file`, from the YAML file with that path."""
    if or_file and name not in _index(kind) and is_file(name):
        return load_spec(name, spec_type)
    spec: S = _entry(kind, noun, name, spec_type)  # `cache` forgets the type
    return spec


@cache
def _entry(kind: Kind, noun: str, name: str, spec_type: type[S]) -> S:
    """Validate the catalogue entry called `name`, whose fields may be partly shared with other entries of its
    file; cached."""
    index = _index(kind)
    if name not in index:
        hint = f"`meshwright catalog {kind}` lists known names"
        raise UnknownNameError(noun, printable(name), index, hint=hint)
    document = data_document(index[name])
    family, prefix = document.value, ("entries", name)
    if "entries" in family:
        source = {"source": family["source"]} if "source" in family else {}
        fields = source | family.get("shared", {}) | family["entries"][name] | {"name": name}
        lines = {key[2:]: line for key, line in document.lines.items() if key[:2] == prefix and len(key) > 2}
        document = Document(source=document.source, value=fields, lines=lines)
    return validate(document, spec_type, GPU_BY_NAME if spec_type is ClusterSpec else None)


@cache
def _index(kind: Kind) -> dict[str, Path]:
    """Path of the data file with each catalogue entry of one kind, by name. A file with a single spec is not
    parsed."""
    index: dict[str, Path] = {}
    for file in data_files(kind):
        several = _ENTRIES.search(file.read_text(encoding="utf-8"))
        entry_names = data_document(file).value["entries"] if several else [file.stem]
        assert not index.keys() & set(entry_names), f"{kind}/{file.name} repeats names of another file"
        index |= dict.fromkeys(entry_names, file)
    return index


load_model = partial(_load, "models", "model", TransformerSpec)
"""Load a transformer from the catalogue by name. Raises UnknownNameError."""
load_recommender = partial(_load, "recommenders", "recommender", RecommenderSpec)
"""Load a recommender from the catalogue by name. Raises UnknownNameError."""
load_gpu = partial(_load, "gpus", "GPU", GpuSpec)
"""Load a GPU from the catalogue by name. Raises UnknownNameError."""
load_stack = partial(_load, "stacks", "stack", StackSpec, or_file=True)
"""Load a software stack by catalogue name, or from the YAML file of that path. Raises InputError."""
load_profile = partial(_load, "profiles", "profile", HardwareProfile, or_file=True)
"""Load a hardware profile by catalogue name, or from the YAML file of that path. Raises InputError."""
load_embedding_profile = partial(_load, "embeddings", "embedding profile", EmbeddingProfile, or_file=True)
"""Load the constants of embedding tables on a GPU by catalogue name, or from the YAML file of that path. Raises
InputError."""
load_operations = partial(_load, "operations", "operations", OperationsSpec, or_file=True)
"""Load the operations of a cluster (failures, storage, spares) by catalogue name, or from the YAML file of that path.
Raises InputError."""


def gpu_fields(value: Any) -> Any:
    """Fields of the GPU that the text in a cluster file's `gpu` names; a value that is not a name is returned
    unchanged."""
    return load_gpu(value).model_dump(mode="json") if isinstance(value, str) else value


GPU_BY_NAME: Replacements = {("gpu",): gpu_fields}


def load_cluster(name: str) -> ClusterSpec:
    """Load a cluster of one node from the catalogue by name, with all fields of its GPU. Raises
    UnknownNameError."""
    return local_cluster() if name == LOCAL else _load("clusters", "cluster", ClusterSpec, name)


def local_cluster(processes: int | None = None) -> ClusterSpec:
    """Describe this computer as a cluster of its GPUs if the catalogue has them, else of `processes` equal
    shares of its CPU.

    Without `processes`: all GPUs, or one share for each physical core.
    """
    reported = installed_gpus()
    for gpu in map(load_gpu, names("gpus") if reported else ()):
        if gpu.reported_as and set(reported) <= set(gpu.reported_as):
            nodes = (load_cluster(name) for name in names("clusters") if name != LOCAL)
            node = next((one for one in nodes if one.gpu.name == gpu.name), None)
            return gpu_machine(gpu, node, processes or len(reported))
    return this_machine(_load("clusters", "cluster", ClusterSpec, LOCAL), processes)


@cache
def embedding_profile_of(gpu: str) -> EmbeddingProfile:
    """Measured constants of embedding tables on a GPU: from the profile of the GPU, else from a profile
    marked `also_for` the GPU, else documented estimates."""
    profiles = [load_embedding_profile(name) for name in names("embeddings")]
    matches = [one for one in profiles if one.gpu == gpu] or [one for one in profiles if gpu in one.also_for]
    return matches[0] if matches else EmbeddingProfile()
