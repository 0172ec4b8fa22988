"""The catalogue: models, GPUs, clusters, stacks and profiles by name, from the package's YAML data.

A data file holds either one spec, whose name is the file's, or many `entries:` by name that take the file's
`source` and `shared:` fields. Files are read when first needed.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Literal, TypeVar

from cost_models.base import Spec
from cost_models.documents import Document, printable
from cost_models.errors import UnknownNameError
from cost_models.files import data_files
from cost_models.files.local import LOCAL, gpu_machine, installed_gpus, this_machine
from cost_models.files.parsing import load_spec, validate
from cost_models.files.reading import is_file
from cost_models.files.yaml_text import parse_yaml
from cost_models.specs.cluster import ClusterSpec, GpuSpec, OperationsSpec
from cost_models.specs.hardware import HardwareProfile
from cost_models.specs.recommender.constants import EmbeddingProfile
from cost_models.specs.recommender.model import RecommenderSpec
from cost_models.specs.stack import StackSpec
from cost_models.specs.transformer import TransformerSpec

Kind = Literal["models", "recommenders", "gpus", "clusters", "stacks", "profiles", "embeddings", "operations"]
S = TypeVar("S", bound=Spec)

_ENTRIES = re.compile(r"^entries:", re.MULTILINE)


def names(kind: Kind) -> tuple[str, ...]:
    """Names of all catalogue entries of one kind, in the order of the data files."""
    return tuple(_index(kind))


def load_model(name: str) -> TransformerSpec:
    """Load a transformer from the catalogue by name. Raises UnknownNameError."""
    return _load("models", "model", name, TransformerSpec)


def load_recommender(name: str) -> RecommenderSpec:
    """Load a recommender from the catalogue by name. Raises UnknownNameError."""
    return _load("recommenders", "recommender", name, RecommenderSpec)


def load_embedding_profile(name: str) -> EmbeddingProfile:
    """Load the constants of embedding tables on a GPU by catalogue name, or from the YAML file of that path.
    Raises InputError."""
    return _named_or_read("embeddings", "embedding profile", name, EmbeddingProfile)


@cache
def embedding_profile_of(gpu: str) -> EmbeddingProfile:
    """Constants of embedding tables on a GPU, from the profile of the GPU, else from one marked `also_for` the
    GPU, else documented estimates."""
    profiles = [load_embedding_profile(name) for name in names("embeddings")]
    matches = [one for one in profiles if one.gpu == gpu] or [one for one in profiles if gpu in one.also_for]
    return matches[0] if matches else EmbeddingProfile()


def load_gpu(name: str) -> GpuSpec:
    """Load a GPU from the catalogue by name. Raises UnknownNameError."""
    return _load("gpus", "GPU", name, GpuSpec)


def load_cluster(name: str) -> ClusterSpec:
    """Load one node of a cluster, with the GPU's fields, from the catalogue by name. Raises UnknownNameError."""
    return local_cluster() if name == LOCAL else _load("clusters", "cluster", name, ClusterSpec)


def local_cluster(processes: int | None = None) -> ClusterSpec:
    """Describe the computer that runs the program as a cluster of catalogued GPUs, else of shares of the CPU for
    `processes`.

    Default: all GPUs, or a process for each physical core.
    """
    reported = installed_gpus()
    for gpu in map(load_gpu, names("gpus") if reported else ()):
        if gpu.reported_as and set(reported) <= set(gpu.reported_as):
            nodes = (load_cluster(name) for name in names("clusters") if name != LOCAL)
            node = next((one for one in nodes if one.gpu.name == gpu.name), None)
            return gpu_machine(gpu, node, processes or len(reported))
    return this_machine(_load("clusters", "cluster", LOCAL, ClusterSpec), processes)


def load_stack(name: str) -> StackSpec:
    """Load a software stack by catalogue name, or from the YAML file of that path. Raises InputError."""
    return _named_or_read("stacks", "stack", name, StackSpec)


def load_profile(name: str) -> HardwareProfile:
    """Load a hardware profile by catalogue name, or from the YAML file of that path. Raises InputError."""
    return _named_or_read("profiles", "profile", name, HardwareProfile)


def load_operations(name: str) -> OperationsSpec:
    """Load the operations of a cluster (failures, storage, spares) by catalogue name, or from the YAML file of
    that path. Raises InputError."""
    return _named_or_read("operations", "operations", name, OperationsSpec)


def gpu_fields(value: Any) -> Any:
    """Fields of the GPU that a cluster file names in `gpu`; a value that is not a name is returned unchanged."""
    return load_gpu(value).model_dump(mode="json") if isinstance(value, str) else value


def _named_or_read(kind: Kind, noun: str, name: str, spec_type: type[S]) -> S:
    if name not in _index(kind) and is_file(name):
        return load_spec(name, spec_type)
    return _load(kind, noun, name, spec_type)


def _load(kind: Kind, noun: str, name: str, spec_type: type[S]) -> S:
    spec: S = _validated(kind, noun, name, spec_type)  # `cache` forgets the type
    return spec


@cache
def _validated(kind: Kind, noun: str, name: str, spec_type: type[S]) -> S:
    index = _index(kind)
    if name not in index:
        raise UnknownNameError(noun, printable(name), index, hint=f"known names: meshwright catalog {kind}")
    document = _document(kind, index[name])
    if "entries" in document.value:
        document = _entry(document, name)
    return validate(document, spec_type, replace={"gpu": gpu_fields} if spec_type is ClusterSpec else None)


@cache
def _index(kind: Kind) -> dict[str, str]:
    """Map each catalogue name of one kind to the data file with the entry. A file of a single spec is not parsed
    for its name."""
    index: dict[str, str] = {}
    for file, text in _texts(kind).items():
        single = [file.removesuffix(".yaml")]
        entry_names = _document(kind, file).value["entries"] if _ENTRIES.search(text) else single
        assert not index.keys() & set(entry_names), f"{kind}/{file} repeats names of another file"
        index |= dict.fromkeys(entry_names, file)
    return index


@cache
def _texts(kind: Kind) -> dict[str, str]:
    return {file.name: file.read_text(encoding="utf-8") for file in data_files(kind)}


@cache
def _document(kind: Kind, file: str) -> Document:
    document = parse_yaml(_texts(kind)[file], source=f"{kind}/{file}")
    assert not document.problems, document.problems
    return document


def _entry(document: Document, name: str) -> Document:
    """Extract one named entry of a data file, merged with the file's shared fields, as a separate document."""
    family = document.value
    source = {"source": family["source"]} if "source" in family else {}
    fields = source | family.get("shared", {}) | family["entries"][name] | {"name": name}
    prefix = ("entries", name)
    lines = {key[2:]: line for key, line in document.lines.items() if key[:2] == prefix and len(key) > 2}
    return Document(source=document.source, value=fields, lines=lines)
