"""Entries of the catalogue as rows, and each in full."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cost_models.base import Spec
from cost_models.communication.topology import Level, levels_of
from cost_models.families import RECOMMENDER, TRANSFORMER
from cost_models.files import catalog as known
from cost_models.operators.parameters import total_parameters
from cost_models.specs.cluster import ClusterSpec, GpuSpec, OperationsSpec, Precision
from cost_models.specs.hardware import HardwareProfile
from cost_models.specs.recommender.model import RecommenderSpec
from cost_models.specs.stack import StackSpec
from cost_models.specs.transformer import TransformerSpec
from cost_models.units import format_bandwidth, format_bytes, format_count, format_seconds

Row = dict[str, Any]
"""Column → number or word, or a number in base units with its text."""
_HIDDEN = ("kind", "kv_heads", "experts", "gated")
"""Columns that a table shows within others, or not."""
_TRAINED_IN: tuple[Precision, ...] = ("bf16", "fp16", "fp32")
"""The precision a GPU's rate is quoted in: the first it has."""


def entries(kind: str) -> list[Row]:
    """A row for each entry of one kind: `models`, `gpus`, `clusters`, `stacks`, `profiles` or `operations`;
    models of one family after another, each with its `kind`."""
    if kind != "models":
        return _rows(kind)
    families = {TRANSFORMER: "models", RECOMMENDER: "recommenders"}
    return [{"kind": family} | row for family, named in families.items() for row in _rows(named)]


def _rows(kind: str) -> list[Row]:
    kind_name = next(one for one in _KINDS if one == kind)
    column, load, row_of = _KINDS[kind_name]
    return [{column: name, **row_of(load(name))} for name in known.names(kind_name)]


def entry(kind: str, name: str) -> dict[str, Any]:
    """One entry in full. Raises UnknownNameError: no such entry."""
    is_recommender = kind == "models" and name in known.names("recommenders")
    kind = "recommenders" if is_recommender else kind
    load = next(load for one, (_, load, _) in _KINDS.items() if one == kind)
    return load(name).model_dump(mode="json", exclude_none=True)


def cell_texts(row: Row) -> dict[str, str]:
    """The cells of a row in a table."""
    cells = {name: value for name, value in row.items() if name not in _HIDDEN}
    return {name: value[1] if isinstance(value, tuple) else str(value) for name, value in cells.items()}


def _model_row(model: TransformerSpec) -> Row:
    width = model.moe_ffn_hidden_size if model.has_experts else model.ffn_hidden_size
    return {
        "parameters": _cell(round(total_parameters(model)), format_count),
        "layers": model.num_layers,
        "hidden": model.hidden_size,
        "heads": (model.num_heads, f"{model.num_heads}/{model.num_kv_heads}"),
        "kv_heads": model.num_kv_heads,
        "vocab": model.vocab_size,
        "MLP": (width, f"{f'{model.num_experts} x ' * model.has_experts}{width}{' gated' * model.gated_mlp}"),
        "experts": model.num_experts,
        "gated": model.gated_mlp,
    }


def _recommender_row(model: RecommenderSpec) -> Row:
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


def _gpu_row(gpu: GpuSpec) -> Row:
    precision = next(name for name in _TRAINED_IN if name in gpu.peak)
    return {
        "memory": _cell(gpu.memory, format_bytes),
        "bandwidth": _cell(gpu.memory_bandwidth, format_bandwidth),
        "peak": (gpu.peak[precision], f"{format_count(gpu.peak[precision] / 1e12)} TFLOP/s"),
        "in": precision,
    }


def _cluster_row(cluster: ClusterSpec) -> Row:
    levels = levels_of(cluster)
    return {
        "GPUs": cluster.gpus_per_node,
        "inside a node": _rates([level for level in levels if not level.network]),
        "between nodes": _rates([level for level in levels if level.network]),
        "GPU": cluster.gpu.name,
    }


def _rates(levels: list[Level]) -> tuple[float | None, str]:
    """The least bandwidth of a GPU, and as text also the most."""
    rates = sorted({level.bandwidth for level in levels})
    if not rates:
        return None, "-"
    low, high = (format_bandwidth(rate) for rate in (rates[0], rates[-1]))
    spread = f"{low.partition(' ')[0] if low[-4:] == high[-4:] else low} to {high}"
    return rates[0], high if low == high else spread


def _stack_row(stack: StackSpec) -> Row:
    return {"attention": stack.attention, "source": stack.source}


def _profile_row(profile: HardwareProfile) -> Row:
    error = profile.median_error
    return {
        "tier": profile.tier,
        "error": (error, "-" if error is None else f"{100 * error:.0f} %"),
        "runs": profile.validated_runs,
        "GPU, stack": f"{profile.gpu}, {profile.stack}",
    }


def _operations_row(operations: OperationsSpec) -> Row:
    return {
        "GPU-hours a failure": _cell(operations.mtbf / 3600, "{:,.0f}".format),
        "back after": _cell(operations.detection + operations.restart, format_seconds),
        "storage": _cell(operations.storage_write, format_bandwidth),
        "source": operations.source,
    }


_KINDS: dict[known.Kind, tuple[str, Callable[[str], Spec], Callable[[Any], Row]]] = {
    "models": ("model", known.load_model, _model_row),
    "recommenders": ("model", known.load_recommender, _recommender_row),
    "gpus": ("gpu", known.load_gpu, _gpu_row),
    "clusters": ("cluster", known.load_cluster, _cluster_row),
    "stacks": ("stack", known.load_stack, _stack_row),
    "profiles": ("profile", known.load_profile, _profile_row),
    "operations": ("operations", known.load_operations, _operations_row),
}
"""Kind → heading of the column of names, what loads an entry, and the cells of its row."""
