"""`catalog`: list models, GPUs, clusters, stacks, profiles and operations known by name, or print one of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, cast

from cost_models.errors import InputError
from cost_models.flags import Options, argument
from cost_models.units import format_bandwidth, format_bytes, format_count, format_seconds
from meshwright.records import JSON_SCHEMA
from meshwright.verbs.contract import command

if TYPE_CHECKING:
    from cost_models.base import Spec
    from cost_models.communication.topology import Level
    from cost_models.files.catalog import Kind
    from cost_models.specs.cluster import ClusterSpec, GpuSpec, OperationsSpec
    from cost_models.specs.hardware import HardwareProfile
    from cost_models.specs.recommender.model import RecommenderSpec
    from cost_models.specs.stack import StackSpec
    from cost_models.specs.transformer import TransformerSpec
    from meshwright.render.tables import Table
    from meshwright.terminal.output import Output


CatalogKind = StrEnum(
    "CatalogKind", ["MODELS", "GPUS", "CLUSTERS", "STACKS", "PROFILES", "OPERATIONS", "SCHEMA"]
)
"""Kind of catalogue entry."""


class CatalogOptions(Options, kw_only=True):
    """Options of `meshwright catalog`: kind of entries, and name of one entry."""

    kind: CatalogKind | None = field(
        default=None, metadata=argument("KIND", f"{', '.join(CatalogKind)}.", kind=CatalogKind)
    )
    name: str | None = field(default=None, metadata=argument("", completion="entries"))
    """One entry in full; for schema: model, cluster, training, ..."""


@command(CatalogOptions)
def catalog_command(options: CatalogOptions, output: Output) -> None:
    """List what is known, or print a YAML schema."""
    if options.kind is None:
        _kinds(output)
    elif options.kind is CatalogKind.SCHEMA:
        _schema(options.name, output)
    elif options.name is None:
        _list(options.kind.value, output)
    else:
        _show(options.kind.value, options.name, output)


def _kinds(output: Output) -> None:
    """Print a table with a row for each kind of entries, and their number."""
    from cost_models.files import catalog
    from meshwright.render.tables import table

    kinds = [one.value for one in CatalogKind if one is not CatalogKind.SCHEMA]
    counts = {kind: sum(len(catalog.names(section)) for section in _sections(kind)) for kind in kinds}
    rows = [{"kind": kind, "entries": number} for kind, number in counts.items()]
    cells = [(kind, str(number), f"meshwright catalog {kind}") for kind, number in counts.items()]
    listing = table(("kind", "entries", "lists them"), cells, names=("kind", "lists them"))
    output.answer({"schema": JSON_SCHEMA, "kinds": rows}, rows, listing)


def _list(kind: str, output: Output) -> None:
    """Print a table with a row for each entry of a kind; transformers and recommenders in separate tables."""
    from cost_models.files import catalog
    from meshwright.render.tables import table

    rows: list[dict[str, Any]] = []
    text: list[str | Table] = []
    for section, family in _sections(kind).items():
        column, load, cells_of = _catalogue()[section]
        entries = [{column: name, **cells_of(load(name))} for name in catalog.names(section)]
        pairs = [{name: _value_and_text(cell) for name, cell in entry.items()} for entry in entries]
        headers = [name for name, (_, words) in pairs[0].items() if words]
        cells = [[row[name][1] for name in headers] for row in pairs]
        text += [""] * bool(text) + [f"{family}s"] * bool(family)
        text.append(table(headers, cells, names=headers[:1], words=headers[-1:]))
        shared = {"kind": family} if family else {}
        rows += [shared | {name: value for name, (value, _) in row.items()} for row in pairs]
    output.answer({"schema": JSON_SCHEMA, kind: rows}, rows, *text)


def _show(kind: str, name: str, output: Output) -> None:
    """Print one catalogue entry in full, as YAML."""
    import yaml

    from cost_models.files import catalog

    sections = list(_sections(kind))
    section = next((one for one in sections if name in catalog.names(one)), sections[0])
    fields = _catalogue()[section][1](name).model_dump(mode="json", exclude_none=True)
    text = yaml.safe_dump(fields, sort_keys=False, allow_unicode=True).rstrip()
    rows = [{"field": field, "value": value} for field, value in fields.items()]
    output.answer({"schema": JSON_SCHEMA, "entry": fields}, rows, text)


def _schema(name: str | None, output: Output) -> None:
    """Print the JSON schema of a kind of file; nothing else, so that it can be redirected into a file."""
    from cost_models.files.catalog import KINDS, json_schema
    from meshwright.terminal.output import as_json

    if name is None:
        raise InputError("which schema?", hint=f"meshwright catalog schema {'|'.join(KINDS)}")
    schema = json_schema("transformer" if name == "model" else name)
    rows = [{"field": field} for field in schema["properties"]]
    output.answer(schema, rows, as_json(schema))


Cells = dict[str, Any]
"""Column → number, word, or pair of a number in base units and its text; with an empty text, tables lack the column."""
_TRAINED_IN = ("bf16", "fp16", "fp32")
"""Precisions in which a GPU's peak rate is shown: the first that the GPU has."""


def _catalogue() -> dict[Kind, tuple[str, Callable[[str], Spec], Callable[[Any], Cells]]]:
    """Kind of entries → header of their names, function that loads an entry, function that makes its row."""
    from cost_models.files import catalog

    return {
        "models": ("model", catalog.load_model, _model_row),
        "recommenders": ("model", catalog.load_recommender, _recommender_row),
        "gpus": ("gpu", catalog.load_gpu, _gpu_row),
        "clusters": ("cluster", catalog.load_cluster, _cluster_row),
        "stacks": ("stack", catalog.load_stack, _stack_row),
        "profiles": ("profile", catalog.load_profile, _profile_row),
        "operations": ("operations", catalog.load_operations, _operations_row),
    }


def _sections(kind: str) -> dict[Kind, str]:
    """Sections of the catalogue's files with entries of a kind → family of their models; empty for other kinds."""
    from cost_models.families import RECOMMENDER, TRANSFORMER

    return (
        {"models": TRANSFORMER, "recommenders": RECOMMENDER} if kind == "models" else {cast("Kind", kind): ""}
    )


def _value_and_text(cell: Any) -> tuple[Any, str]:
    """Value of a cell, and its text."""
    return cell if isinstance(cell, tuple) else (cell, str(cell))


def _model_row(model: TransformerSpec) -> Cells:
    """Cells of a transformer: parameters, layers, widths, heads, vocabulary."""
    from cost_models.operators.parameters import total_parameters

    width = model.moe_ffn_hidden_size if model.has_experts else model.ffn_hidden_size
    return {
        "parameters": _cell(round(total_parameters(model)), format_count),
        "layers": model.num_layers,
        "hidden": model.hidden_size,
        "heads": (model.num_heads, f"{model.num_heads}/{model.num_kv_heads}"),
        "kv_heads": (model.num_kv_heads, ""),
        "vocab": model.vocab_size,
        "MLP": (width, f"{f'{model.num_experts} x ' * model.has_experts}{width}{' gated' * model.gated_mlp}"),
        "experts": (model.num_experts, ""),
        "gated": (model.gated_mlp, ""),
    }


def _recommender_row(model: RecommenderSpec) -> Cells:
    """Cells of a recommender: embedding parameters, tables, largest table, ids per sample, vector widths,
    interaction."""
    rows, widths = ([one.rows for one in model.classes], {one.width for one in model.classes})
    return {
        "parameters": _cell(model.embedding_parameters, format_count),
        "tables": model.num_tables,
        "largest": (max(rows), f"{format_count(float(max(rows)))} rows"),
        "ids": (model.lookups, f"{model.lookups:g}"),
        "wide": (max(widths), " to ".join(map(str, dict.fromkeys((min(widths), max(widths)))))),
        "interaction": model.interaction.kind,
    }


def _cell(value: float, text: Callable[[float], str]) -> tuple[float, str]:
    """Pair of a number and its text."""
    return value, text(value)


def _gpu_row(gpu: GpuSpec) -> Cells:
    """Cells of a GPU: memory, bandwidth, peak rate and its precision."""
    precision = next(name for name in _TRAINED_IN if name in gpu.peak)
    return {
        "memory": _cell(gpu.memory, format_bytes),
        "bandwidth": _cell(gpu.memory_bandwidth, format_bandwidth),
        "peak": (gpu.peak[precision], f"{format_count(gpu.peak[precision] / 1e12)} TFLOP/s"),
        "in": precision,
    }


def _cluster_row(cluster: ClusterSpec) -> Cells:
    """Cells of a cluster: GPUs per node, bandwidths inside and between nodes, GPU."""
    from cost_models.communication.topology import levels_of

    levels = levels_of(cluster)
    return {
        "GPUs": cluster.gpus_per_node,
        "inside a node": _rates([level for level in levels if not level.network]),
        "between nodes": _rates([level for level in levels if level.network]),
        "GPU": cluster.gpu.name,
    }


def _rates(levels: list[Level]) -> tuple[float | None, str]:
    """Lowest bandwidth per GPU among these network levels (None without levels), and text with the lowest and
    highest."""
    rates = sorted({level.bandwidth for level in levels})
    if not rates:
        return None, "-"
    low, high = (format_bandwidth(rate) for rate in (rates[0], rates[-1]))
    spread = f"{low.partition(' ')[0] if low[-4:] == high[-4:] else low} to {high}"
    return rates[0], high if low == high else spread


def _stack_row(stack: StackSpec) -> Cells:
    """Cells of a software stack: attention kernel and source."""
    return {"attention": stack.attention, "source": stack.source}


def _profile_row(profile: HardwareProfile) -> Cells:
    """Cells of a hardware profile: tier, median error, validated runs, GPU and stack."""
    error = profile.median_error
    return {
        "tier": profile.tier,
        "error": (error, "-" if error is None else f"{100 * error:.0f} %"),
        "runs": profile.validated_runs,
        "GPU, stack": f"{profile.gpu}, {profile.stack}",
    }


def _operations_row(operations: OperationsSpec) -> Cells:
    """Cells of operations: GPU-hours per failure, recovery time, storage bandwidth, source."""
    return {
        "GPU-hours a failure": _cell(operations.mtbf / 3600, "{:,.0f}".format),
        "back after": _cell(operations.detection + operations.restart, format_seconds),
        "storage": _cell(operations.storage_write, format_bandwidth),
        "source": operations.source,
    }
