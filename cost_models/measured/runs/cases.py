"""Conversion of rows of canonical run tables into questions with layouts, and the published runs that the
project ships.

Reading a table reports every problem of every cell. Nothing in `data/published/` was measured by this project.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from cost_models.axes.layout import Layout
from cost_models.base import Spec
from cost_models.defaults import DEFAULT_STACK, complete_question
from cost_models.documents import printable
from cost_models.errors import MOST_PROBLEMS, InputError, Problem, did_you_mean
from cost_models.files import catalog, data_files, read_data
from cost_models.measured.runs.rows import (
    COLUMNS,
    NEEDED,
    SPECS,
    Row,
    parse_row,
    parse_table,
    read_table,
    unknown_columns,
)
from cost_models.question import Question
from cost_models.specs.cluster import ClusterSpec, GpuSpec, Links, LinkSpec
from cost_models.specs.hardware import HardwareProfile
from cost_models.specs.transformer import TransformerSpec
from cost_models.units import counted

MAX_ACTIONS = 10_000_000
"""Maximum number of stages × microbatches of a step that is scheduled action by action."""


Profile = str | HardwareProfile | None
"""Hardware profile, its name or its file; None: the catalogue's nearest profile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Published run that can be predicted: its row, question and layout."""

    row: Row
    question: Question
    layout: Layout


def case_or_reason(row: Row, *, stack: str | None = None, profile: Profile = None) -> Case | str:
    """Case of a row as `read_case` returns it, or the reason why the row cannot be predicted."""
    try:
        return read_case(row, stack=stack, profile=profile)
    except InputError as error:
        reason = "; ".join(problem.what for problem in error.problems) or error.headline
        return printable(reason.splitlines()[0])


def read_case(row: Row, *, stack: str | None = None, profile: Profile = None) -> Case:
    """Convert a row into a case: its model, cluster, job and stack as a question, and its layout; `stack`
    replaces the row's stack.

    Raises:
        InputError: the row is skipped, or with all cells that name or set nothing that can be priced.
    """
    if row.skipped:
        raise InputError(row.skipped)
    problems, parts = list[Problem](), dict[str, Any]()
    layout = row.layout or Layout()
    bases: dict[str, Callable[[], Any]] = {
        "model": lambda: _model_base(row),
        "cluster": lambda: cluster_fields(row, layout.num_gpus),
        "training": dict,
        "stack": lambda: catalog.load_stack(stack or row.stack or DEFAULT_STACK),
    }
    for part, base in bases.items():
        try:
            parts[part] = row.with_fields(part, base(), SPECS[part])
        except InputError as error:
            problems += error.problems or [Problem(f"{row.place}  {part}", error.headline)]
    if row.layout is None:
        problems.append(Problem(f"{row.place}  layout", "required field `layout` is missing"))
    elif "model" in parts and "training" in parts:
        blocks, stages, batch = parts["model"].num_layers, layout.num_stages, parts["training"].global_batch
        if not layout.layers and blocks % stages == 0:
            layout = layout.model_copy(update={"layers": (blocks // stages,) * stages})
        what = ""
        if sum(layout.layers) != blocks:
            what = f"{blocks} blocks on {counted(stages, 'stage')}: give `layers=`"
        elif layout.mbs * layout.dp > batch:
            what = f"mbs {layout.mbs} x dp {layout.dp} exceeds the global batch {batch}"
        elif layout.microbatches(batch) * stages > MAX_ACTIONS:
            what = f"global batch {batch} is too many microbatches"
        problems += [Problem(f"{row.place}  layout", what)] if what else []
    if problems:
        raise InputError(f"{counted(len(problems), 'problem')} in {row.place}", problems=problems)
    question = complete_question(**parts, profile=profile)
    question = replace(question, hardware=row.with_fields("hardware", question.hardware, HardwareProfile))
    return Case(row=row, question=question, layout=layout)


def _model_base(row: Row) -> TransformerSpec | dict[str, Any]:
    """Catalogue model that a row names. If the catalogue has none and columns state a shape, it is a
    dictionary with the name only. Raises UnknownNameError."""
    if any(column.startswith("model.") for column in row.values) and row.model not in catalog.names("models"):
        return {"name": row.model}
    return catalog.load_model(row.model)


_PCIE = LinkSpec.model_validate({"kind": "pcie", "bandwidth": "32 GB/s", "latency": "5 us"})
"""Link between a GPU and its host, with the most frequent bandwidth."""
_USUAL_BOX = 8


def host_link(gpu: GpuSpec) -> LinkSpec:
    """PCIe link between the GPUs of a node, for GPUs without a faster link."""
    return _PCIE.model_copy(update={"bandwidth": gpu.host_bandwidth or _PCIE.bandwidth})


def cluster_named(name: str) -> ClusterSpec:
    """Catalogue cluster with the given name or, for a GPU's name, nodes of eight such GPUs joined by PCIe.
    Each GPU has one adapter."""
    if name in catalog.names("gpus"):
        gpu = catalog.load_gpu(name)
        links = Links(intra_node=host_link(gpu))
        return ClusterSpec(name=name, gpu=gpu, gpus_per_node=_USUAL_BOX, links=links)
    return catalog.load_cluster(name).model_copy(update={"rails": None})


def cluster_fields(row: Row, num_gpus: int) -> dict[str, Any]:
    """Fields of the cluster that a row names, with as many nodes as `num_gpus` GPUs need."""
    cluster = cluster_named(row.cluster)
    per_node = min(row.gpus_per_node or cluster.gpus_per_node, num_gpus)
    return cluster.model_dump(mode="json") | {"gpus_per_node": per_node, "nodes": -(-num_gpus // per_node)}


def read_rows(path: Path, *, check: bool = True) -> tuple[Row, ...]:
    """Read the runs of a canonical table; rows without an id are numbered, and the file's name replaces a
    missing source.

    Raises:
        InputError: the file cannot be read, or is no canonical table: every column and every cell that is none.
    """
    columns, lines = parse_table(read_table(path), place=str(path))
    problems, rows, unknown = list[Problem](), list[Row](), unknown_columns(columns)
    for name in unknown:
        what = f"no column of a table of runs{did_you_mean(name, COLUMNS)}"
        problems.append(Problem(f"{path}:1  {name}", what))
    all_skipped = lines and all("skipped" in cells for _, cells in lines)
    missing = [name for name in NEEDED if name not in columns and not all_skipped]
    problems += [Problem(f"{path}:1", f"no column `{name}`") for name in missing]
    for number, (line, cells) in enumerate(lines if not missing else (), start=1):
        names, place = {"row_id": f"{path.stem}-{number:04}", "source_id": path.stem}, f"{path}:{line}"
        known = {column: cell for column, cell in cells.items() if column not in unknown}
        wrong = set[str]()
        try:
            row = parse_row(names | known, place)
        except InputError as error:
            problems += error.problems
            wrong = {problem.where.rpartition("  ")[2].partition("[")[0] for problem in error.problems}
            row = parse_row({column: cell for column, cell in known.items() if column not in wrong}, place)
        rows.append(row)
        try:
            if check and not row.skipped:
                read_case(row)
        except InputError as error:
            found = error.problems or [Problem(place, error.headline)]
            problems += [one for one in found if one.where.rpartition("  ")[2] not in wrong]
    if problems:
        headline = f"{counted(len(problems), 'problem')} in {path}"
        hint = "docs/guides/validating.md explains the columns"
        if unknown or missing:
            headline += ", which is no canonical table of runs"
            listed = ", ".join((*COLUMNS, *(f"{part}.*" for part in SPECS)))
            hint = f"meshwright validate --convert {path} --out NEW.csv converts other columns to these: {listed}"
        more = len(problems[MOST_PROBLEMS:])
        raise InputError(headline, problems=problems[:MOST_PROBLEMS], more=more, hint=hint)
    return tuple(rows)


@cache
def shipped_rows() -> tuple[Row, ...]:
    """Rows of all shipped tables of published runs, in the order of table names and lines; cached."""
    return tuple(row for table in data_files("published", ".csv") for row in read_rows(table, check=False))


@cache
def timed_cases() -> tuple[Case, ...]:
    """Cases of the shipped runs that have a step time and can be predicted; cached."""
    timed = (row for row in shipped_rows() if row.step_seconds is not None)
    return tuple(case for row in timed if isinstance(case := case_or_reason(row), Case))


class SourceNote(Spec):
    """Note on one source of published runs, with title, measurement and unknown facts."""

    title: str
    """Name of the source in plots."""
    measured: str
    """Description of the measurements: author, quantity, hardware."""
    unknown: str
    """Facts that were not printed, or read at second hand: possible causes of residuals."""


@cache
def source_notes() -> Mapping[str, SourceNote]:
    """Note on each source of the shipped run tables, by source id; cached."""
    return {name: SourceNote(**note) for name, note in read_data("published/sources").items()}


def source_title(source: str) -> str:
    """Title of a shipped source; for other sources, their name in the table."""
    note = source_notes().get(source)
    return printable(source, 32) if note is None else note.title
