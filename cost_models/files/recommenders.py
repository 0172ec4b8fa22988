"""Recommenders and their training jobs by name, from our files, or from files of other trainers.

    TorchRec    a JSON list of `EmbeddingBagConfig`s: name, num_embeddings, embedding_dim, pooling, feature_names
                (torchrec/modules/embedding_configs.py)
    HugeCTR     JSON with `slot_size_array`, and what its samples write beside it: `multi_hot_sizes`, `ev_size`
                (samples/dlrm/train.py)

TorchRec's lists do not say how many ids a sample has, so a config may add `pooling_factor`. Neither says what dense
network stands on the tables: it is that of MLPerf's DLRM, with `dot` where all vectors are of its width.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from cost_models.documents import Document, Key
from cost_models.errors import InputError, Problem
from cost_models.files import catalog
from cost_models.files.amounts import read_samples
from cost_models.files.histograms import read_histogram
from cost_models.files.names import known_model, known_recommender, unknown_model
from cost_models.files.parsing import load_job, validate
from cost_models.files.reading import is_file, read_document
from cost_models.specs.recommender.model import MAX_TABLES, RecommenderSpec
from cost_models.specs.recommender.training import RecommenderTraining

_BOTTOM = 512, 256
_POOLINGS = {"SUM": "sum", "MEAN": "mean", "NONE": "concat"}
_NEEDED = ("name", "num_embeddings", "embedding_dim")


def is_foreign_recommender(document: Document) -> bool:
    """Whether a document is a recommender in TorchRec's or HugeCTR's format."""
    value = document.value
    return isinstance(value, list) or (
        isinstance(value, dict) and bool({"slot_size_array", "tables"} & set(value)) and "kind" not in value
    )


def read_recommender(document: Document) -> RecommenderSpec:
    """Convert a document in TorchRec's or HugeCTR's format into a recommender specification.

    Raises:
        InputError: it is none, or a table lacks its size; all problems of tables at once.
    """
    value = document.value
    if isinstance(value, dict) and "slot_size_array" in value:
        tables = _of_slots(document, value)
    else:
        listed = value.get("tables") if isinstance(value, dict) else value
        if not isinstance(listed, list) or not listed:
            hint = "a list of EmbeddingBagConfigs, or slot_size_array"
            raise InputError(f"`{document.source}` lists no tables", hint=hint)
        tables = [_of_config(document, at, one) for at, one in enumerate(listed)]
    widths = {one["width"] for one in tables}
    fields: dict[str, Any] = {
        "kind": "recommender",
        "tables": tables,
        "bottom_mlp": [*_BOTTOM, *widths] if len(widths) == 1 else [*_BOTTOM],
        "interaction": {"kind": "dot" if len(widths) == 1 else "none"},
        "source": document.source,
    }
    return validate(Document(source=document.source, value=fields, lines=document.lines), RecommenderSpec)


def _of_config(document: Document, at: int, config: Any) -> dict[str, Any]:
    if not isinstance(config, dict):
        raise InputError(f"{document.where((at,))}: table {at} is no table")
    if missing := ", ".join(f"`{name}`" for name in _NEEDED if name not in config):
        raise InputError(f"{document.where((at,))}: table {at} has no {missing}")
    pooling = str(config.get("pooling", "SUM")).rpartition(".")[2].upper()
    if pooling not in _POOLINGS:
        raise InputError(f"{document.where((at, 'pooling'))}: `{pooling}` is none of {', '.join(_POOLINGS)}")
    features = len(config.get("feature_names") or [None])
    return {
        "name": config["name"],
        "rows": config["num_embeddings"],
        "width": config["embedding_dim"],
        "pooling": float(config.get("pooling_factor", 1.0)) * features,
        "combiner": _POOLINGS[pooling],
    }


def _of_slots(document: Document, value: dict[str, Any]) -> list[dict[str, Any]]:
    sizes = value["slot_size_array"]
    if not isinstance(sizes, list) or not sizes:
        raise InputError(f"{document.where(('slot_size_array',))}: a list of rows of each table is needed")
    columns = {"rows": sizes}
    for field, name, default in (("pooling", "multi_hot_sizes", 1), ("width", "ev_size", 128)):
        numbers = value.get(name, default)  # a number is that of every slot
        columns[field] = numbers if isinstance(numbers, list) else [numbers] * len(sizes)
        if len(columns[field]) != len(sizes):
            raise InputError(f"{document.where((name,))}: {len(numbers)} numbers for {len(sizes)} slots")
    return [
        {"name": f"slot{at}", "rows": rows, "width": width, "pooling": float(pooling)}
        for at, (rows, pooling, width) in enumerate(zip(*columns.values(), strict=True))
    ]


def resolve_recommender(text: str | Document) -> RecommenderSpec:
    """Load the recommender that a user names by catalogue name or by file (YAML, TorchRec's or HugeCTR's JSON),
    or that a document describes. Our YAML has `kind: recommender`.

    Raises:
        UnknownNameError: neither a known name nor a file.
        InputError: a file that does not describe one; all problems at once.
    """
    if isinstance(text, Document):
        return _of_document(text, Path())
    if (known := known_recommender(text)) and not is_file(text):
        return catalog.load_recommender(known)
    if not is_file(text):
        if known_model(text):
            hint = "known names: meshwright catalog models"
            raise InputError(f"`{text}` is a transformer; a recommender is needed here", hint=hint)
        raise unknown_model(text)
    return _of_document(read_document(text), Path(text).parent)


def _of_document(document: Document, folder: Path) -> RecommenderSpec:
    """Convert a document into a recommender; `folder` is the base of relative paths of histograms."""
    if is_foreign_recommender(document):
        return read_recommender(document)
    return validate(read_tables(document, folder), RecommenderSpec)


def read_tables(document: Document, folder: Path) -> Document:
    """Replace the file names in `histogram` fields of a recommender's document by the histograms read from the files,
    whose relative paths start at `folder`. A problem is noted at each file that cannot be read, and at each class of
    tables that repeats the name of another class. The spec reports any other nonsense."""
    problems, fields = dict(document.problems), document.value
    first: dict[str, Key] = {}
    for group in ("tables", "wide"):
        listed = fields.get(group) if isinstance(fields, dict) else None
        if not isinstance(listed, list):
            continue
        tables = [dict(one) if isinstance(one, dict) else one for one in listed]  # aliases share no table
        fields = fields | {group: tables}
        for at, table in enumerate(tables):
            if not isinstance(table, dict):
                continue
            name, count = table.get("name"), table.get("count", 1)
            file, rows = table.get("histogram"), table.get("rows")
            if isinstance(file, str) and isinstance(rows, int) and rows > 0:
                try:
                    table["histogram"] = [list(step) for step in read_histogram(folder / file, rows)]
                except InputError as error:
                    key: Key = (group, at, "histogram")
                    message = "; ".join([error.headline, *map(str, error.problems)])
                    problems[key] = Problem(document.where(key), message)
            if not isinstance(name, str) or not isinstance(count, int) or not 0 < count <= MAX_TABLES:
                continue
            names = [name] if count == 1 else [name, *(f"{name}.{index}" for index in range(count))]
            if twice := next((one for one in names if one in first), None):
                key = (group, at, "name")
                message = f"two tables are called `{twice}`; the other is {document.where(first[twice])}"
                problems[key] = Problem(document.where(key), message)
                del table["name"]
            first |= dict.fromkeys(names, (group, at))
    return replace(document, value=fields, problems=problems)


def resolve_recommender_training(path: str | None, **said: Any) -> RecommenderTraining:
    """Build a recommender's training job from a YAML file, command-line flags, or both. The file has
    `kind: recommender-training`; a flag that is None was not given.

    Raises:
        InputError: all problems of file and flags at once.
    """
    return load_job(path, RecommenderTraining, said, lambda fields: {"global_batch": read_samples})
