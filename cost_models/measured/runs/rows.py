"""Reading of canonical tables of training runs: one line per run, in the terms of the project's specs.

A table is CSV as spreadsheets write it. A column is a field of `Row`, or sets a field of the run's model, cluster,
training job, stack or hardware profile by its path, as `model.num_layers` or `stack.attention`; the usual ones have
`SHORT_NAMES`. Cells are YAML scalars in the units of input files. docs/guides/validating.md lists the columns.
"""

from __future__ import annotations

import codecs
import copy
import csv
import io
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StringConstraints

from cost_models.axes.layout import Layout, parse_layout
from cost_models.base import GpuCount, Spec
from cost_models.documents import Document, Key, printable
from cost_models.errors import InputError, Problem
from cost_models.files.catalog import S, validate
from cost_models.files.reading import parse_yaml, read_raw
from cost_models.specs.cluster import ClusterSpec
from cost_models.specs.hardware import HardwareProfile
from cost_models.specs.stack import StackSpec
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec
from cost_models.units import MB

MAX_BYTES = int(256 * MB)
"""Maximum size of a table in bytes, enough for a million rows."""


def read_table(path: Path) -> str:
    """Read the text of a CSV file in UTF-8, UTF-16 with a byte-order mark, or else Latin-1.

    Raises:
        InputError: the file cannot be read, or is no text.
    """
    raw = read_raw(path, MAX_BYTES + 1)
    if len(raw) > MAX_BYTES:
        raise InputError(f"`{path}` is larger than {MAX_BYTES // int(MB)} MB; it is no table of runs")
    encodings, position = ["utf-8-sig", "latin-1"], raw.find(b"\0")
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encodings, position = ["utf-16"], -1
    for encoding in encodings if position < 0 else []:
        try:
            return raw.decode(encoding)
        except UnicodeDecodeError as error:
            position = error.start
    problem = Problem(str(path), f"byte {position} is no text")
    raise InputError(f"`{path}` is not a text file", problems=[problem])


Cells = dict[str, str]
"""Non-empty cells of a table's line by lower-case column name; cells beyond the last column under an empty name."""


def parse_table(
    text: str, *, place: str, needed: Sequence[str] = (), hint: str = ""
) -> tuple[list[str], list[tuple[int, Cells]]]:
    """Parse a table separated by commas, semicolons or tabs into its column names and rows. A row is the
    number of its last line (from 1) and its cells. `place` is the file's name in messages.

    Raises:
        InputError: it is no table, or a needed column is missing.
    """
    delimiter = max((",", ";", "\t"), key=text.partition("\n")[0].count)
    table = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        columns = table.fieldnames = [column.strip().lower() for column in table.fieldnames or ()]
        table.restkey = ""
        texts = ({key: "".join(cell or ()) for key, cell in row.items()} for row in table)
        filled = ({key: cell for key, cell in row.items() if cell} for row in texts)
        rows = [(table.line_num, cells) for cells in filled]
    except csv.Error as error:
        problem = Problem(f"{place}:{table.line_num}", str(error))
        raise InputError(f"`{place}` is not a table", problems=[problem]) from None
    if names := ", ".join(f"`{column}`" for column in needed if column not in columns):
        raise InputError(f"`{place}` has no column {names}", hint=hint)
    return columns, rows


SPECS: dict[str, type[Spec]] = {
    "model": TransformerSpec,
    "cluster": ClusterSpec,
    "training": TrainingSpec,
    "stack": StackSpec,
    "hardware": HardwareProfile,
}
"""Spec of the field that a column sets, by the first word of the column."""
SHORT_NAMES = {
    "intra_node": "cluster.links.intra_node.bandwidth",
    "inter_node": "cluster.links.inter_node.bandwidth",
    "rails": "cluster.rails",
    "sequence_length": "training.sequence_length",
    "global_batch": "training.global_batch",
    "precision": "training.precision",
}
"""Path of the field that a column with a short name sets, by column."""

_Text = Annotated[str, StringConstraints(strip_whitespace=True)]
_Listed = BeforeValidator(lambda cell: tuple(cell.split("; ")) if isinstance(cell, str) else cell)
_Notation = BeforeValidator(lambda cell: parse_layout(cell) if isinstance(cell, str) else cell)
_Measured = Annotated[float | None, Field(gt=0, allow_inf_nan=False)]


class Row(Spec):
    """Training run as a row of a canonical table. Columns that set fields of specs are in `values`, the
    others are fields."""

    row_id: _Text = ""
    """Name of the run; default: the table's name and a number."""
    source_id: _Text = ""
    """Short name of who measured it; default: the table's name."""
    trainer: _Text = ""
    """Trainer and release. Runs of one source, trainer and cluster are calibrated together."""
    sweep: _Text = ""
    """Name of the runs that differ in layout alone, its parts between ` | `; default: see `sweep_key`."""
    model: _Text = ""
    """Model of the catalogue, or any name beside `model.*` columns with a shape."""
    cluster: _Text = ""
    """Cluster of the catalogue, or a GPU: eight over PCIe a node."""
    gpus_per_node: GpuCount | None = None
    """GPUs that the run had in a node; default: the cluster's. The layout has the number of all."""
    stack: _Text = ""
    """Software stack of the catalogue or a file; default: that of `plan`."""
    layout: Annotated[Layout | None, _Notation] = None
    """Layout in the notation, with `layers=` where blocks do not divide into stages."""
    unstated: Annotated[tuple[Literal["gpus", "degrees", "recompute"], ...], _Listed] = ()
    """What the source does not state: of its GPUs only the memory is predicted, of degrees nothing where the undivided
    model does not fit, of recompute not that a run does not fit."""
    assumptions: Annotated[tuple[str, ...], _Listed] = ()
    """What was assumed to fill in the row."""
    skipped: _Text = ""
    """Reason why the run cannot be predicted; its other cells may then be blank."""

    step_seconds: _Measured = None
    """Measured seconds of an optimizer step."""
    peak_gb: _Measured = None
    """Measured peak memory, in 1e9 bytes."""
    peak_counts: Literal["allocated", "reserved", "in use"] = "allocated"
    """What the peak counts: tensors, what the allocator holds, or the device as the driver reports it."""
    peak_rank: int | None = None
    """Pipeline rank of the peak, counted from 0, from the last at -1; default: the fullest."""
    out_of_memory: bool | None = None
    """Whether the run ran out of memory; None: it ended otherwise."""
    suspect: bool = False
    """Whether its time is noisy, or bound by what no column says: refits of shipped profiles leave it out."""
    notes: _Text = ""
    """Remarks; for readers."""

    place: Annotated[str, Field(exclude=True)] = ""
    """File and line, for messages."""
    values: dict[str, Any] = Field(default_factory=dict)
    """Column → value, for columns that set a field of a spec."""

    def with_fields(self, part: str, base: S | dict[str, Any], spec_type: type[S]) -> S:
        """Spec of one `part` of the run: a copy of `base` with the fields that the row's columns set.

        Raises:
            InputError: all columns whose values the spec does not take.
        """
        paths = {column: SHORT_NAMES.get(column, column).split(".") for column in self.values}
        if isinstance(base, Spec) and not any(path[0] == part for path in paths.values()):
            return base
        fields: dict[str, Any] = base.model_dump(mode="json") if isinstance(base, Spec) else base
        columns = dict[Key, str]()
        for column, value in self.values.items():
            head, *path = paths[column]
            if head == part:
                group = fields
                for name in path[:-1]:
                    group[name] = group = group[name] if isinstance(group.get(name), dict) else {}
                group[path[-1]] = value
                columns[tuple(path)] = f"{self.place}  {column}"
        return validate(Document(source=self.place, value=fields, flags=columns), spec_type)


_FIELDS = [name for name in Row.model_fields if name not in ("place", "values")]
_AT = _FIELDS.index("stack")
FOR_READERS: tuple[str, ...] = ("source_cite", "task", "run_date", "flags", "step_deviation")
FOR_READERS += ("tokens_per_second_per_gpu", "tflops_per_gpu", "mfu")
"""Columns for readers only: place of publication and further printed figures."""
COLUMNS = (*_FIELDS[:_AT], *SHORT_NAMES, *_FIELDS[_AT:], *FOR_READERS)
"""Columns of a canonical table in their usual order, before those that set other fields of specs."""
NEEDED = ("model", "cluster", "layout", "sequence_length", "global_batch")
"""Columns without which no run is predicted."""


def unknown_columns(columns: Sequence[str]) -> list[str]:
    """Names of columns that canonical tables do not have."""
    return [name for name in columns if name not in COLUMNS and name.partition(".")[0] not in SPECS]


_TEXT = {name for name, field in Row.model_fields.items() if field.default not in (None, False)} | {"layout"}
"""Columns whose cells are text as it stands; all others hold YAML scalars."""


@lru_cache(maxsize=2**16)
def scalar(cell: str) -> Any:
    """Value of a cell as in an input file: a number, `true`, `null`, a list or text; cached. Raises
    InputError."""
    return parse_yaml(cell, source="the cell").value


def parse_row(cells: Mapping[str, str], place: str) -> Row:
    """Convert the cells of a table's line, by column, into a row; `place` is file and line in messages.

    Raises:
        InputError: all cells that are no value of their column.
    """
    fields, values, problems = dict[str, Any](place=place), dict[str, Any](), dict[Key, Problem]()
    for column, cell in cells.items():
        if column in FOR_READERS or not cell.strip():
            continue
        try:
            if not column:
                raise InputError("more cells than columns; put quotes around a cell that holds commas")
            target = values if column in SHORT_NAMES or column not in COLUMNS else fields
            target[column] = cell if column in _TEXT else copy.deepcopy(scalar(cell))
        except InputError as error:
            problems[(column,)] = Problem(f"{place}  {column}", f"`{printable(cell, 30)}`: {error.headline}")
    return validate(Document(source=place, value=fields | {"values": values}, problems=problems), Row)


def with_cells(row: Row, cells: Mapping[str, str]) -> Row:
    """Copy of a row in which further cells, by column, replace values. Raises InputError as `parse_row`."""
    changed = parse_row(cells, row.place)
    fields = {name: getattr(changed, name) for name in changed.model_fields_set}
    return row.model_copy(update=fields | {"values": row.values | changed.values})
