"""Ids that are asked for, in batches: drawn by the law of each table, or of a file.

{"users": 17, "items": [3, 99, 3]}      a line of JSON each: tables and their ids; a table without any is left out
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from cost_models.documents import printable
from cost_models.errors import InputError, Problem, did_you_mean, first_few
from cost_models.files.reading import parse_json, read_text
from cost_models.specs.recommender.model import RecommenderSpec, TableSpec
from executor.data.clicks import MadeUpClicks
from executor.embeddings.bags import Bags

Batch = list[Bags]
"""Ids of some samples, by table."""
Request = list[list[int]]
"""Ids of one sample, by table."""
MOST_BYTES = 1 << 30
"""Of a file of requests: it is read whole."""


def drawn(model: RecommenderSpec, batch: int, count: int, *, seed: int) -> Iterator[Batch]:
    """`count` batches of so many samples."""
    clicks = MadeUpClicks(model, batch, seed=seed)
    for step in range(count):
        ids = [clicks.ids(table, step, 0, batch) for table in range(model.num_tables)]
        yield [Bags(torch.from_numpy(values), torch.from_numpy(lengths)) for values, lengths in ids]


def recorded(path: Path, model: RecommenderSpec) -> list[Request]:
    """The requests of a file. Raises InputError: with their lines, all that are wrong at once."""
    specs = [model.classes[index] for index in model.class_of_table]
    tables = dict(zip(model.table_names, specs, strict=True))
    requests: list[Request] = []
    problems: list[Problem] = []
    for number, line in enumerate(read_text(path, most_bytes=MOST_BYTES).splitlines(), 1):
        try:
            if line.strip():
                requests.append(_request(line, tables))
        except InputError as error:
            what = error.problems[0].what if error.problems else error.headline
            problems.append(Problem(f"{path}:{number}", what))
    if problems:
        raise InputError("requests that cannot be answered", problems=first_few(problems))
    if not requests:
        raise InputError(
            f"`{path}` has no request", hint='a line of JSON each, as `{"users": 17, "items": [3, 99]}`'
        )
    return requests


def in_batches(requests: Sequence[Request], batch: int) -> Iterator[Batch]:
    """Requests in their order, so many at once."""
    for first in range(0, len(requests), batch):
        of_tables = zip(*requests[first : first + batch], strict=True)
        yield [
            Bags(
                torch.tensor(list(chain(*of)), dtype=torch.int64),
                torch.tensor(list(map(len, of)), dtype=torch.int32),
            )
            for of in of_tables
        ]


def _request(line: str, tables: Mapping[str, TableSpec]) -> Request:
    said = parse_json(line, source="request").value
    if not isinstance(said, dict):
        raise InputError("it is no object of tables and their ids")
    if strangers := [name for name in said if name not in tables]:
        name = strangers[0]
        raise InputError(f"there is no table `{printable(name, limit=40)}`{did_you_mean(name, tables)}")
    return [_ids(name, spec, said.get(name, [])) for name, spec in tables.items()]


def _ids(name: str, spec: TableSpec, said: Any) -> list[int]:
    ids = said if isinstance(said, list) else [said]
    if not all(type(one) is int for one in ids):
        raise InputError(f"`{name}`: ids are whole numbers, one or a list of them")
    if spec.combiner == "concat" and len(ids) > spec.pooling:
        raise InputError(f"`{name}`: {len(ids)} ids; it sets {int(spec.pooling)} side by side")
    strays = [one for one in ids if not 0 <= one < spec.rows]
    if strays and spec.out_of_range == "error":
        stray = printable(str(strays[0]), limit=24)
        raise InputError(f"`{name}`: id {stray} is not between 0 and {spec.rows - 1}")
    modulo = spec.out_of_range == "modulo"
    return [one if 0 <= one < spec.rows else one % spec.rows if modulo else 0 for one in ids]
