"""Loading of recommenders and their training jobs by name or from files, of this project or other trainers;
and reading of recorded accesses to a table as steps of a `TableSpec`'s histogram.

    TorchRec    a JSON list of `EmbeddingBagConfig`s: name, num_embeddings, embedding_dim, pooling, feature_names
                (torchrec/modules/embedding_configs.py)
    HugeCTR     JSON with `slot_size_array`, and what its samples write beside it: `multi_hot_sizes`, `ev_size`
                (samples/dlrm/train.py)

TorchRec's lists do not say how many ids a sample has, so a config may add `pooling_factor`. Neither says what dense
network stands on the tables: it is that of MLPerf's DLRM, with `dot` where all vectors are of its width.

A file of accesses is `.npy` (one count for each row, by row or by rank) or text: a count a line for each row, or
`row,count` with rows that nothing used left out. Counts are sorted, so it does not matter which rows they are of.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from cost_models.arrays import Array
from cost_models.documents import Document, Key, printable
from cost_models.errors import InputError, Problem
from cost_models.files import catalog
from cost_models.files.catalog import load_job, validate
from cost_models.files.loading import is_foreign_recommender, known_name, read_samples, unknown_model
from cost_models.files.reading import is_file, is_pipe, read_document
from cost_models.specs.recommender.model import MAX_TABLES, RecommenderSpec
from cost_models.specs.recommender.training import RecommenderTraining

HEAD = 1024
"""Number of most used rows that each have a histogram step of their own."""
STEPS_PER_E_FOLD = 64
"""Number of histogram steps while the rank of further rows grows by a factor e."""
MOST_FILE_BYTES = 2**34

Counts = Array
Steps = tuple[tuple[int, float], ...]


def read_histogram(path: str | Path, rows: int) -> Steps:
    """Read a file with the access counts of an embedding table of `rows` rows as histogram steps (rows, share
    of accesses).

    Raises:
        InputError: it cannot be read, holds what is no count, or counts other rows than the table has.
    """
    path = Path(path)
    if is_pipe(path):
        raise InputError(f"`{path}` is no file; write what a pipe gives to one")
    try:
        if path.stat().st_size > MOST_FILE_BYTES:
            raise InputError(f"`{path}` is larger than {MOST_FILE_BYTES >> 30} GiB; it is no histogram")
        counts = _of_array(path) if path.suffix == ".npy" else _of_text(path, rows)
    except OSError as error:
        raise InputError(f"cannot read `{path}`: {(error.strerror or str(error)).lower()}") from None
    if len(counts) != rows:
        hint = "write `row,count` lines to leave out rows that nothing used"
        raise InputError(f"`{path}` counts {len(counts):,} rows, the table has {rows:,}", hint=hint)
    if not np.isfinite(counts).all() or (counts < 0).any():
        raise InputError(f"`{path}` holds counts below zero, or that are no numbers")
    if not counts.sum() > 0:
        raise InputError(f"`{path}` counts no access at all")
    return steps_of(counts)


def steps_of(counts: Counts) -> Steps:
    """Convert the access counts of a table's rows, (rows,), into histogram steps (rows, share of accesses),
    hottest rows first. The `HEAD` hottest rows have a step each; later steps contain ever more rows."""
    ranked = np.sort(np.asarray(counts, np.float64))[::-1]
    edges = np.arange(min(len(ranked), HEAD) + 1)
    if len(ranked) > HEAD:
        folds = np.log(len(ranked) / HEAD)
        tail = np.rint(HEAD * np.exp(np.arange(1, int(folds * STEPS_PER_E_FOLD) + 1) / STEPS_PER_E_FOLD))
        used = int(np.count_nonzero(ranked))
        edges = np.unique(np.concatenate((edges, tail.astype(np.int64), [used, len(ranked)])))
        edges = edges[edges <= len(ranked)]
    shares = np.add.reduceat(ranked, edges[:-1]) / ranked.sum()
    return tuple(zip(np.diff(edges).tolist(), shares.tolist(), strict=True))


def _of_array(path: Path) -> Counts:
    """Read the access counts of a table's rows, (rows,), from a `.npy` file."""
    try:
        counts = np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError:
        raise InputError(f"`{path}` is no array of numbers (`numpy.save` writes one)") from None
    if counts.ndim != 1 or counts.dtype.kind not in "iuf":
        content = f"`{path}` holds {counts.dtype} of shape {counts.shape}"
        raise InputError(f"{content}; a count for each row is needed")
    return np.asarray(counts, np.float64)


def _of_text(path: Path, rows: int) -> Counts:
    """Read the access counts of a table's rows, (rows,), from a text file whose lines are a count or
    `row,count`. A first line of words is a header."""
    counts: list[float] = []
    pairs: dict[int, float] = {}
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            words = [word.strip() for word in line.split(",")]
            if not line.strip() or (number == 1 and not _NUMBER.fullmatch(words[-1])):
                continue
            message = ""
            if len(words) > 2 or not all(map(str.isdecimal, words[:-1])) or not _NUMBER.fullmatch(words[-1]):
                message = f"`{printable(line.strip(), limit=40)}` is neither a count nor `row,count`"
            elif len(words) == 1:
                counts.append(float(words[0]))
            elif (row := int(words[0])) >= rows:
                message = f"row {row} is not among the table's {rows:,}, which begin with 0"
            elif row in pairs:
                message = f"row {row} is counted twice"
            else:
                pairs[row] = float(words[1])
            if message:
                raise InputError(f"cannot read `{path}`", problems=[Problem(f"{path}:{number}", message)])
    if counts and pairs:
        raise InputError(f"`{path}` has lines of counts and lines of `row,count`")
    return np.pad(list(pairs.values()), (0, rows - len(pairs))) if pairs else np.array(counts)


_NUMBER = re.compile(r"[-+]?((\d+\.?\d*|\.\d+)(e[-+]?\d+)?|inf|nan)", re.ASCII | re.IGNORECASE)
_BOTTOM = 512, 256
_POOLINGS = {"SUM": "sum", "MEAN": "mean", "NONE": "concat"}
_NEEDED = ("name", "num_embeddings", "embedding_dim")


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
    same_width = len(widths) == 1
    fields: dict[str, Any] = {"kind": "recommender", "tables": tables, "source": document.source}
    fields["bottom_mlp"] = [*_BOTTOM, *widths] if same_width else [*_BOTTOM]
    fields["interaction"] = {"kind": "dot" if same_width else "none"}
    return validate(Document(source=document.source, value=fields, lines=document.lines), RecommenderSpec)


def _of_config(document: Document, at: int, config: Any) -> dict[str, Any]:
    """Fields of a `TableSpec` from one `EmbeddingBagConfig` of TorchRec, the `at`-th of a document."""
    if not isinstance(config, dict):
        raise InputError(f"{document.where((at,))}: table {at} is no table")
    if missing := ", ".join(f"`{name}`" for name in _NEEDED if name not in config):
        raise InputError(f"{document.where((at,))}: table {at} has no {missing}")
    pooling = str(config.get("pooling", "SUM")).rpartition(".")[2].upper()
    if pooling not in _POOLINGS:
        raise InputError(f"{document.where((at, 'pooling'))}: `{pooling}` is none of {', '.join(_POOLINGS)}")
    name, rows, width = (config[key] for key in _NEEDED)
    ids = float(config.get("pooling_factor", 1.0)) * len(config.get("feature_names") or [None])
    return {"name": name, "rows": rows, "width": width, "pooling": ids, "combiner": _POOLINGS[pooling]}


def _of_slots(document: Document, value: dict[str, Any]) -> list[dict[str, Any]]:
    """Fields of one `TableSpec` for each slot of a HugeCTR document."""
    sizes = value["slot_size_array"]
    if not isinstance(sizes, list) or not sizes:
        raise InputError(f"{document.where(('slot_size_array',))}: a list of rows of each table is needed")
    columns = {"rows": sizes}
    for field, name, default in (("pooling", "multi_hot_sizes", 1), ("width", "ev_size", 128)):
        numbers = value.get(name, default)  # a number is that of every slot
        columns[field] = numbers if isinstance(numbers, list) else [numbers] * len(sizes)
        if len(columns[field]) != len(sizes):
            raise InputError(f"{document.where((name,))}: {len(numbers)} numbers for {len(sizes)} slots")
    columns["pooling"] = [float(number) for number in columns["pooling"]]
    slots = enumerate(zip(*columns.values(), strict=True))
    return [{"name": f"slot{at}"} | dict(zip(columns, sizes, strict=True)) for at, sizes in slots]


def resolve_recommender(text: str | Document) -> RecommenderSpec:
    """Load the recommender that a user names by catalogue name or by file (YAML, TorchRec's or HugeCTR's
    JSON), or that a document describes. A YAML file has `kind: recommender`.

    Raises:
        UnknownNameError: neither a known name nor a file.
        InputError: a file that does not describe one; all problems at once.
    """
    document, folder = text, Path()
    if isinstance(document, str):
        if (catalogue_name := known_name(document, "recommenders")) and not is_file(document):
            return catalog.load_recommender(catalogue_name)
        if not is_file(document):
            if known_name(document, "models"):
                hint = "`meshwright catalog models` lists known names"
                raise InputError(f"`{document}` is a transformer; a recommender is needed here", hint=hint)
            raise unknown_model(document)
        folder, document = Path(document).parent, read_document(document)
    if is_foreign_recommender(document):
        return read_recommender(document)
    return validate(read_tables(document, folder), RecommenderSpec)


def read_tables(document: Document, folder: Path) -> Document:
    """Replace the file names in `histogram` fields of a recommender's document by the histograms in these
    files; relative paths start at `folder`. A problem is recorded for each file that cannot be read and each
    class of tables with a repeated name. Other errors are left to the spec's validation."""
    problems, first = dict(document.problems), dict[str, Key]()
    fields = json.loads(json.dumps(document.value))  # a copy, in which aliases share no table
    for group in ("tables", "wide"):
        listed = fields.get(group) if isinstance(fields, dict) else None
        for at, table in enumerate(listed if isinstance(listed, list) else ()):
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


def resolve_recommender_training(path: str | None, **flag_values: Any) -> RecommenderTraining:
    """Build a recommender's training job from a YAML file, command-line flags, or both. The file has
    `kind: recommender-training`; a flag that is None was not given.

    Raises:
        InputError: all problems of file and flags at once.
    """
    return load_job(path, RecommenderTraining, flag_values, lambda fields: {("global_batch",): read_samples})
